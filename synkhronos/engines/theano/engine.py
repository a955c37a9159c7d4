"""Theano 1.0 as an engine."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
from typing import (
    Any,
    Callable,
    Dict,
    Hashable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
import theano
from theano.compile.debugmode import DebugMode
from theano.compile.function_module import Function, alias_root, convert_function_input
from theano.compile.io import SymbolicInput, SymbolicOutput
from theano.compile.mode import get_mode
from theano.compile.ops import FromFunctionOp
from theano.compile.pfunc import rebuild_collect_shared
from theano.compile.profiling import ProfileStats
from theano.compile.sharedvalue import SharedVariable
from theano.gof import Apply, Constant, Container, Variable, compilelock, vm
from theano.gof.utils import scratchpad
from theano.tensor import TensorType
from theano.tensor.raw_random import RandomStateType

from ...reductions import ReduceOp
from .. import pickling, random_states
from ..base import ArrayType, Engine, Input, Output
from . import gpu

_BLAS = "local_ger"  # what `ScipyGer` notes in the tag of its node, and no pickle takes

# The only linkers whose functions take an output_subset (CVM is missing where Theano has no C++ compiler).
_LAZY = tuple(getattr(vm, name) for name in ("CVM", "Stack") if hasattr(vm, name))


class Blueprint(NamedTuple):
    """A shared variable without its value."""

    cls: type
    type: Any
    name: Optional[str]
    strict: bool
    allow_downcast: Optional[bool]
    is_rng: bool


class Snapshot(NamedTuple):
    """A function before it is compiled, for which its givens and default updates do not exist any more."""

    inputs: List[theano.In]
    outputs: List[theano.Out]
    updates: List[Tuple[Any, Any]]
    settings: Dict[str, Any]  # the keywords of theano.function that are left


class Counts(NamedTuple):
    """What profiles of functions have counted, without their graphs."""

    calls: int
    call_time: float
    vm_time: float
    nodes: List[List[Tuple[float, int, bool]]]  # by function and node: time, executions, whether in C


class TheanoEngine(Engine):
    """Compiles with ``theano.function``; the storage of a shared variable is ``container.storage``."""

    name = "theano"

    # -- recognising ---------------------------------------------------------------------------------------------

    def owns(self, thing: Any) -> bool:
        return isinstance(thing, (Variable, SymbolicInput, SymbolicOutput, Function))

    def is_shared(self, thing: Any) -> bool:
        return isinstance(thing, SharedVariable)

    def label(self, variable: Any) -> str:
        if isinstance(variable, SymbolicInput) and variable.name:
            return variable.name
        if isinstance(variable, (SymbolicInput, SymbolicOutput)):
            variable = variable.variable
        return variable.name or str(variable)

    # -- shared variables ----------------------------------------------------------------------------------------

    def shared_type(self, shared: Any) -> Optional[ArrayType]:
        return _array_type(shared.type)

    def identity(self, shared: Any) -> Hashable:
        # Clones have a container in common, functions make new containers around it: only the list inside is the same
        # wherever the value can be reached.
        return id(shared.container.storage)

    def get(self, shared: Any) -> Any:
        return shared.container.storage[0]

    def put(self, shared: Any, value: Any) -> None:
        shared.container.storage[0] = value

    def coerce(self, shared: Any, value: Any, argument: str) -> np.ndarray:
        container = shared.container
        if not gpu.is_type(container.type):
            return _filter(container.type, value, container.strict, container.allow_downcast, argument)
        if gpu.is_array(value):
            value = np.asarray(value)
        return _filter(gpu.host_type(container.type), value, False, container.allow_downcast, argument)

    def to_device(self, shared: Any, value: Any) -> Any:
        if gpu.is_type(shared.type):
            return gpu.on_device(shared.type, value)
        return np.asarray(value) if gpu.is_array(value) else value

    def export(self, shared: Any) -> Any:
        value = self.get(shared)
        return np.array(value) if gpu.is_array(value) else copy.deepcopy(value)

    def blueprint(self, shared: Any) -> Blueprint:
        container = shared.container
        gpu.check_context(f"shared variable {self.label(shared)}", shared.type)
        return Blueprint(
            type(shared),
            shared.type,
            shared.name,
            container.strict,
            container.allow_downcast,
            bool(getattr(shared.tag, "is_rng", False)),
        )

    def build(self, blueprint: Blueprint, value: Any, storage_of: Optional[Any] = None) -> Any:
        if gpu.is_type(blueprint.type) and storage_of is None:
            value = gpu.on_device(blueprint.type, value)
        container = Container(
            blueprint.type,
            name=blueprint.name,
            strict=blueprint.strict,
            allow_downcast=blueprint.allow_downcast,
            storage=[value] if storage_of is None else storage_of.container.storage,
        )
        shared = blueprint.cls(name=blueprint.name, type=blueprint.type, value=None, strict=None, container=container)
        if blueprint.is_rng:
            shared.tag.is_rng = True
        return shared

    # -- functions -----------------------------------------------------------------------------------------------

    def compile(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Any:
        for index, given in enumerate(inputs if isinstance(inputs, (list, tuple)) else ()):
            wrapped = convert_function_input(given) if isinstance(given, (list, tuple)) else given
            if isinstance(wrapped, SymbolicInput):
                self._refuse_state(index, wrapped)
        kwargs.setdefault("name", None)
        if kwargs["name"] is None:
            kwargs["name"] = _place_of_call()
        return theano.function(inputs, outputs, updates=list(updates or ()), givens=givens, **kwargs)

    def _refuse_state(self, index: int, given: SymbolicInput) -> None:
        """Raise ValueError where the input keeps a value between calls, which only shared variables do on all ranks."""
        what = f"inputs[{index}] ({self.label(given)}): "
        if given.update is not None:
            raise ValueError(
                what + "expected an input without state, got In(update=...); make it a shared variable, "
                "theano.shared(value), and pass updates=[(shared, expression)]"
            )
        if given.implicit:
            raise ValueError(
                what + "expected an input that the caller gives, got one bound to a shared variable "
                "(implicit=True); pass givens=[(variable, shared)] instead"
            )

    def inputs(self, compiled: Any) -> List[Input]:
        return [
            Input(
                variable=given.variable,
                name=given.name,
                type=_array_type(given.variable.type),
                mutable=bool(given.mutable),
                has_default=given.value is not None,
                default=given.value,
                spec=given,
            )
            for given in compiled.maker.inputs
            if not given.implicit
        ]

    def outputs(self, compiled: Any) -> List[Output]:
        maker = compiled.maker
        keys = maker.output_keys or [None] * len(maker.outputs)
        result = []
        for index, (key, output) in enumerate(zip(keys, maker.outputs)):
            label = "output" if maker.unpack_single else f"outputs[{(index if key is None else key)!r}]"
            if output.variable.name:
                label += f" ({output.variable.name})"
            result.append(Output(output.variable, label, _array_type(output.variable.type), key))
        return result

    def shareds(self, compiled: Any) -> List[Any]:
        return [given.variable for given in compiled.maker.inputs if given.implicit]

    def updated(self, compiled: Any) -> List[Any]:
        return [given.variable for given in compiled.maker.inputs if given.implicit and given.update is not None]

    def convert(self, input: Input, value: Any, argument: str) -> Any:
        if value is None and input.type is None:
            return None  # Theano does not look at None
        return _filter(
            gpu.host_type(input.variable.type), value, input.spec.strict, input.spec.allow_downcast, argument
        )

    def check(self, input: Input, dtype: np.dtype, shape: Tuple[int, ...], argument: str) -> None:
        # Theano decides by dtype, number of dimensions, and where lengths are 1: a small array shows the same.
        small = np.zeros([min(length, 2) for length in shape], dtype)
        try:
            gpu.host_type(input.variable.type).filter(
                small, strict=input.spec.strict, allow_downcast=input.spec.allow_downcast
            )
        except Exception as error:
            _refuse(
                argument,
                input.variable.type,
                f"an array of {dtype} with shape {shape}",
                error,
                "cast or reshape it, or compile with allow_input_downcast=True where only the dtype differs",
            )

    def call(self, compiled: Any, args: Sequence[Any], output_subset: Optional[Sequence[int]] = None) -> List[Any]:
        outputs = compiled.maker.outputs
        subset = None if output_subset is None else list(map(int, output_subset))
        if subset is not None and not all(0 <= index < len(outputs) for index in subset):
            # Theano's C code would write out of bounds.
            raise ValueError(f"output_subset: expected indices from 0 to {len(outputs) - 1}, got {subset}")
        if subset is None or not isinstance(compiled.fn, _LAZY):
            result = _flat(compiled, compiled(*args))
            chosen = range(len(outputs)) if subset is None else subset
            result = [result[index] for index in chosen]
        else:
            chosen = subset
            keys = compiled.output_keys
            if keys is None:
                result = compiled(*args, output_subset=subset) or []
            else:
                by_key = compiled(*args, output_subset=[keys[index] for index in subset])
                result = [by_key[keys[index]] for index in subset]
        return [
            _own(compiled.maker.fgraph.outputs[index], outputs[index].borrow, value)
            for index, value in zip(chosen, result)
        ]

    def on_ranks(self, compiled: Any) -> Any:
        changed = gpu.outputs_on_device(compiled)
        return compiled if changed is compiled else _restore(changed, compiled.name, compiled.trust_input)

    def present(self, compiled: Any, index: int, value: Any) -> Any:
        type_ = compiled.maker.outputs[index].variable.type
        if gpu.is_type(type_):
            return None if value is None else gpu.on_device(type_, value)
        return np.asarray(value) if gpu.is_array(value) else value

    def take(self, array: Any, rows: Any) -> Any:
        return gpu.take(array, rows) if gpu.is_array(array) else super().take(array, rows)

    def accumulator(self, op: ReduceOp, keep_dtype: bool = False) -> Any:
        return gpu.accumulator(op, keep_dtype)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return gpu.is_out_of_memory(error)

    def copy(self, compiled: Any, snapshot: Snapshot, **kwargs: Any) -> Tuple[Any, Snapshot]:
        swap = dict(kwargs.get("swap") or {})
        for old, new in swap.items():
            if not (self.is_shared(old) and self.is_shared(new) and old.type == new.type):
                raise TypeError(
                    "swap: expected shared variables of the same type, got {!r} ({}) for {!r} ({})".format(
                        new, getattr(new, "type", None), old, getattr(old, "type", None)
                    )
                )
        copied = compiled.copy(**kwargs)
        # Theano forgets in what form the original returns its outputs.
        for attribute in ("unpack_single", "output_keys"):
            setattr(copied, attribute, getattr(compiled, attribute))
            setattr(copied.maker, attribute, getattr(compiled.maker, attribute))
        updates = [] if kwargs.get("delete_updates") else snapshot.updates
        expressions = [output.variable for output in snapshot.outputs] + [new for _, new in updates]
        _, cloned, _ = rebuild_collect_shared(
            expressions,
            [given.variable for given in snapshot.inputs],
            swap,
            copy_inputs_over=True,
            no_default_updates=True,
        )
        n_outputs = len(snapshot.outputs)
        return copied, Snapshot(
            snapshot.inputs,
            [theano.Out(new, output.borrow) for new, output in zip(cloned, snapshot.outputs)],
            [(swap.get(target, target), new) for (target, _), new in zip(updates, cloned[n_outputs:])],
            dict(snapshot.settings, name=copied.name, profile=copied.profile),
        )

    def profile(self, compiled: Sequence[Any]) -> Optional[Counts]:
        profiles = {id(one.profile): one.profile for one in compiled if one.profile}  # functions may share one
        if not compiled[0].profile:
            return None
        nodes = [
            [
                (one.profile.apply_time[node], one.profile.apply_callcount[node], one.profile.apply_cimpl[node])
                if one.profile and node in one.profile.apply_time
                else (0.0, 0, False)
                for node in one.maker.fgraph.toposort()
            ]
            for one in compiled
        ]
        stats = profiles.values()
        return Counts(
            sum(each.fct_callcount for each in stats),
            sum(each.fct_call_time for each in stats),
            sum(each.vm_call_time for each in stats),
            nodes,
        )

    def merged_profile(self, compiled: Sequence[Any], counts: Sequence[Counts]) -> ProfileStats:
        merged = copy.copy(compiled[0].profile)
        merged.fct_callcount = sum(each.calls for each in counts)
        merged.fct_call_time = sum(each.call_time for each in counts)
        merged.vm_call_time = sum(each.vm_time for each in counts)
        merged.apply_time, merged.apply_callcount, merged.apply_cimpl = {}, {}, {}
        for each in counts:
            for one, of_nodes in zip(compiled, each.nodes):
                for node, (time, executions, in_c) in zip(one.maker.fgraph.toposort(), of_nodes):
                    merged.apply_time[node] = merged.apply_time.get(node, 0.0) + time
                    merged.apply_callcount[node] = merged.apply_callcount.get(node, 0) + executions
                    merged.apply_cimpl[node] = merged.apply_cimpl.get(node, False) or in_c
        return merged

    # -- other graphs of the same function -----------------------------------------------------------------------

    def given_pairs(self, givens: Any) -> List[Tuple[Any, Any]]:
        pairs = givens.items() if isinstance(givens, dict) else givens or ()
        return [(old, new if isinstance(new, Variable) else theano.shared(new)) for old, new in pairs]

    def snapshot(
        self,
        inputs: Sequence[Any],
        outputs: Any,  # type: ignore[override]
        updates: Sequence[Tuple[Any, Any]],
        givens: Any,
        mode: Any = None,
        name: Optional[str] = None,
        allow_input_downcast: Optional[bool] = None,
        no_default_updates: Any = False,
        rebuild_strict: bool = True,
        accept_inplace: bool = False,
        profile: Any = None,
        on_unused_input: Any = None,
    ) -> Snapshot:
        wrapped = []
        for given in inputs:
            if isinstance(given, Variable):
                given = theano.In(given, allow_downcast=allow_input_downcast)
            wrapped.append(copy.copy(convert_function_input(given)))
        if isinstance(outputs, dict):
            outputs = [outputs[key] for key in sorted(outputs)]
        elif not isinstance(outputs, (list, tuple)):
            outputs = [] if outputs is None else [outputs]
        # As theano.function does. Inputs, constants and shared variables stay what they are, all else is copied.
        _, cloned, (_, new_values, collected, _) = rebuild_collect_shared(
            list(outputs),
            [given.variable for given in wrapped],
            givens,
            list(updates or ()),
            rebuild_strict,
            copy_inputs_over=True,
            no_default_updates=no_default_updates,
        )
        return Snapshot(
            wrapped,
            [output if isinstance(output, SymbolicOutput) else theano.Out(output) for output in cloned],
            [(target, new_values[target]) for target, _ in collected],
            dict(mode=get_mode(mode), name=name or _place_of_call(), accept_inplace=accept_inplace, profile=profile),
        )

    def updated_in(self, snapshot: Snapshot) -> List[Any]:
        return [target for target, _ in snapshot.updates]

    def variant(self, snapshot: Snapshot, sliced: bool, as_inputs: Sequence[Any]) -> Any:
        replaced = [(shared, shared.type(shared.name)) for shared in as_inputs]
        # Nameless, because a function's inputs cannot have one name twice.
        inputs = snapshot.inputs + [theano.In(variable, autoname=False) for _, variable in replaced]
        outputs, updates = snapshot.outputs, snapshot.updates
        if sliced:
            # What is borrowed, the next call may overwrite: with slices it is still needed then.
            outputs = [theano.Out(output.variable) for output in outputs]
            outputs += [theano.Out(new) for target, new in updates if not self.is_random(target)]
            updates = [(target, new) for target, new in updates if self.is_random(target)]
        label = ", ".join(["sliced"] * sliced + [f"{self.label(shared)} as input" for shared in as_inputs])
        name = snapshot.settings["name"]
        settings = dict(snapshot.settings, name=f"{name} ({label})" if label else name)
        return theano.function(
            inputs,
            outputs,
            updates=updates,
            givens=replaced,
            no_default_updates=True,
            on_unused_input="ignore",
            **settings,
        )

    # -- random streams ------------------------------------------------------------------------------------------

    def is_random(self, shared: Any) -> bool:
        return bool(getattr(shared.tag, "is_rng", False)) or isinstance(shared.type, RandomStateType)

    def jumped(self, shared: Any, value: Any, jumps: int) -> Any:
        if isinstance(shared.type, RandomStateType):
            return random_states.jumped_random_state(value, jumps)
        return shared.type.filter(random_states.jumped_mrg(self._mrg_state(shared, value), jumps))

    def reseeded(self, shared: Any, value: Any, seed: int, index: int) -> Any:
        if isinstance(shared.type, RandomStateType):
            return random_states.seeded_random_state(seed, index)
        return shared.type.filter(random_states.seeded_mrg(self._mrg_state(shared, value), seed, index))

    def _mrg_state(self, shared: Any, value: Any) -> np.ndarray:
        state = np.asarray(value)  # it may be on a GPU
        if state.dtype != np.int32 or state.ndim != 2 or state.shape[1] != 6:
            raise TypeError(
                "random state {}: expected one of MRG_RandomStreams (int32 with shape (rows, 6)) or of "
                "RandomStreams, got {}; use one of these, or delete its tag.is_rng".format(
                    self.label(shared),
                    type(value).__name__
                    if state.dtype == object
                    else f"an array of {state.dtype} with shape {state.shape}",
                )
            )
        return state

    # -- devices -------------------------------------------------------------------------------------------------

    def check_devices(self) -> str:
        return gpu.missing()

    def foreign_device(self) -> str:
        return gpu.foreign()

    def opened_device(self) -> Optional[str]:
        return gpu.opened()

    def open_device(self, name: str) -> Any:
        return gpu.open_device(name)

    # -- travel --------------------------------------------------------------------------------------------------

    def constants(self, compiled: Any) -> List[np.ndarray]:
        variables = {variable for node in compiled.maker.fgraph.apply_nodes for variable in node.inputs}
        return [
            variable.data
            for variable in variables
            if isinstance(variable, Constant) and type(variable.data) is np.ndarray
        ]

    def dumps(
        self,
        compiled: Sequence[Any],
        numbers: Mapping[Hashable, int],
        variables: Mapping[int, int],
        constants: Mapping[int, Any],
    ) -> bytes:
        return pickling.dumps(
            compiled,
            pickling.names(numbers, variables, constants),
            _reduce,
            lambda function: f"function {function.name!r}",
            _parts,
        )

    def loads(self, data: Any, replicas: Mapping[int, Any], constant: Callable[[Any], np.ndarray]) -> List[Any]:
        def find(kind: str, place: Any) -> Any:
            if kind == "constant":
                return constant(place)
            return replicas[place] if kind == "variable" else replicas[place].container.storage

        _wait_in_small_steps()
        return pickling.loads(data, find)


def _array_type(type_: Any) -> Optional[ArrayType]:
    type_ = gpu.host_type(type_)
    if isinstance(type_, TensorType):
        return ArrayType(type_.numpy_dtype, type_.ndim, type_.broadcastable)
    return None


def _filter(type_: Any, value: Any, strict: bool, allow_downcast: Optional[bool], argument: str) -> Any:
    """Return the value as Theano stores it, or say in Theano's words why it does not."""
    try:
        return type_.filter(value, strict=strict, allow_downcast=allow_downcast)
    except MemoryError:
        raise
    except Exception as error:
        got = type(value).__name__
        if isinstance(value, np.ndarray):
            got = f"an array of {value.dtype} with shape {value.shape}"
        _refuse(argument, type_, got, error, " ".join(map(str, error.args)))


def _refuse(argument: str, type_: Any, got: str, error: Exception, advice: str) -> NoReturn:
    # Text that is no number is a ValueError in Theano (it is NumPy's); the rest is as good as a TypeError.
    kind = ValueError if isinstance(error, ValueError) else TypeError
    raise kind(f"{argument}: expected {type_}, got {got}; {advice}") from error


def _place_of_call() -> str:
    """Return file and line outside this library, by which Theano names a function that has no name."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "synkhronos":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _own(output: Any, borrow: bool, value: Any) -> Any:
    """Return the output's value as an array that belongs to the caller alone."""
    if not isinstance(output.type, TensorType) and not gpu.is_array(value):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)  # the Python code of some Ops leaves a NumPy scalar where the type says array
    # An output may be the array that an updated shared variable held before ([w], updates=[(w, w + 1)]), which Theano
    # gives up; but here it can be memory that is used again. The same holds for In(borrow=True) and Out(borrow=True),
    # and what Out(borrow=True) has computed is where the next call may write to (in modes without allow_gc).
    root = alias_root(output)
    if (borrow or root.owner is None) and not isinstance(root, Constant):
        return value.copy("A" if gpu.is_array(value) else "K")
    return value


def _wait_in_small_steps() -> None:
    """Look more often whether the lock of the compile cache is free, on ranks.

    They all load at the same time what the master has compiled. Each holds the lock for some milliseconds, but one
    that finds it taken would sleep for 5 to 10 seconds (``compile.wait``, which cannot be changed in a program).
    """
    if not isinstance(compilelock.lock, functools.partial):
        compilelock.lock = functools.partial(compilelock.lock, min_wait=0.005, max_wait=0.02, verbosity=0)


def _flat(compiled: Any, result: Any) -> List[Any]:
    if result is None:
        return []
    if compiled.output_keys is not None:
        return [result[key] for key in compiled.output_keys]
    return [result] if compiled.unpack_single else result


def _reduce(thing: Any) -> Any:
    """Pickle otherwise than Theano does where its way fails; the rest is NotImplemented."""
    if isinstance(thing, Function):
        # Theano's own way sends the values of all inputs and compares them on arrival; that fails for NaN, and where
        # the rank's replica has another shape. Storage and defaults are already in the maker.
        return _restore, (thing.maker, thing.name, thing.trust_input)
    if type(thing) is FromFunctionOp:
        return _reduce_from_function(thing)
    if isinstance(thing, Apply) and gpu.KERNEL_OF_REDUCTION in vars(thing):
        return gpu.without_kernel(thing)
    if isinstance(thing, scratchpad) and _BLAS in vars(thing):
        # The tag of an outer product that SciPy computes; each rank looks its routine up itself.
        return _new_tag, ({name: value for name, value in vars(thing).items() if name != _BLAS},)
    if type(thing) is ProfileStats:
        return _new_profile, (thing.message, thing.flag_time_thunks)  # each rank counts its own calls
    if type(thing) is DebugMode:
        # Theano's own way forgets what it was told to check.
        return _debug_mode, (
            thing.__getstate__(),
            {
                name: value
                for name, value in vars(thing).items()
                if name.split("_")[0] in ("check", "stability", "require")
            },
        )
    return NotImplemented


def _debug_mode(state: Any, settings: Dict[str, Any]) -> DebugMode:
    mode = DebugMode.__new__(DebugMode)
    mode.__setstate__(state)
    vars(mode).update(settings)
    return mode


def _new_tag(state: Dict[str, Any]) -> scratchpad:
    tag = scratchpad()
    vars(tag).update(state)
    return tag


def _new_profile(message: Optional[str], flag_time_thunks: bool) -> ProfileStats:
    return ProfileStats(False, flag_time_thunks, gpu_checks=False, message=message)


def _reduce_from_function(op: FromFunctionOp) -> Any:
    """Pickle what ``as_op`` made: by name where the other side can import it, else with its function inside."""
    function, infer_shape = op._FromFunctionOp__fn, op._FromFunctionOp__infer_shape
    if function.__module__ != "__main__":
        try:
            return op.__reduce__()
        except pickle.PicklingError:
            pass
    return FromFunctionOp, (function, op.itypes, op.otypes, infer_shape)


def _restore(maker: Any, name: Optional[str], trust_input: bool) -> Any:
    with theano.change_flags(compute_test_value="off"):
        compiled = maker.create([getattr(given, "value", None) for given in maker.inputs], trustme=True)
    compiled.name = name
    compiled.trust_input = trust_input
    return compiled


def _parts(compiled: Any) -> Iterator[Tuple[str, Any]]:
    maker = compiled.maker
    yield f"its mode {type(maker.mode).__name__}", maker.mode
    yield "its profile", maker.profile
    for given in maker.inputs:
        if not given.implicit:
            yield "the default of input %s" % (given.name or given.variable), given.value
    for node in maker.fgraph.toposort():
        yield f"the operation {node.op}", node.op
    for node in maker.fgraph.toposort():
        for variable in node.inputs:
            if isinstance(variable, Constant):
                yield f"the constant {variable}", variable.data


ENGINE = TheanoEngine()
