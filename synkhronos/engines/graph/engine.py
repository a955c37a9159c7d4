"""Base class of the engines for Theano and PyTensor, whose compiled functions have makers and storages."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import sys
from functools import partial
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
from weakref import WeakKeyDictionary

import numpy as np

from ...errors import ArgumentTypeError, ArgumentValueError
from ...reductions import IN_GRAPH, ReduceOp, check_dtype
from ...sharding import Placement, PlacementRule, Shard, Stream
from ...trace import point
from .. import pickling
from ..base import ArrayType, Collectives, Engine, Input, Output, Sharding
from ..exact import placed
from . import exact, profiles, states, table
from . import snapshot as snapshots
from .dependence import survey
from .library import Library
from .observed import Patched
from .slim_pickles import Slim
from .snapshot import Snapshot
from .unread_rows import explained
from .written_lengths import NONE
from .written_means import means


class Blueprint(NamedTuple):
    """Picklable description of a shared variable without its value."""

    cls: type
    type: Any
    name: Optional[str]
    strict: bool
    allow_downcast: Optional[bool]
    is_rng: bool


class GraphEngine(Engine):
    """Base class of engines for libraries like Theano, whose compiled functions have makers and storages."""

    library: Library
    #: The attributes of a function, and of its maker, that determine the form of its outputs.
    forms_of_outputs: Sequence[str] = ("unpack_single", "output_keys")
    #: Returns the key of a graph's node in the dictionaries of the library's profiles.
    profile_key: profiles.Key = staticmethod(lambda graph, node: node)

    def __init__(self) -> None:
        #: Results of `_find_own` by function maker; a result never changes, and lives as long as the maker.
        self._is_own: WeakKeyDictionary[Any, List[bool]] = WeakKeyDictionary()
        #: The expressions of the functions that ranks call, by maker; compiling changes a function's own graph.
        self.sources: WeakKeyDictionary[Any, snapshots.Source] = WeakKeyDictionary()
        #: By maker: why a function computes new values whole.
        self._whole: WeakKeyDictionary[Any, Sequence[str]] = WeakKeyDictionary()
        self._patched = Patched(self.library)
        self.catcher = self.library.function

    def owns(self, thing: Any) -> bool:
        library = self.library
        return isinstance(thing, (library.Variable, library.SymbolicInput, library.SymbolicOutput, library.Function))

    def is_shared(self, thing: Any) -> bool:
        return isinstance(thing, self.library.SharedVariable)

    def label(self, variable: Any, place: str = "unnamed") -> str:
        if isinstance(variable, self.library.SymbolicInput) and variable.name:
            return str(variable.name)
        if isinstance(variable, (self.library.SymbolicInput, self.library.SymbolicOutput)):
            variable = variable.variable
        if self.is_shared(variable) and not variable.name:
            type_ = self.shared_type(variable)
            return f"{place} ({type_.words if type_ else variable.type})"
        return str(variable.name or variable)

    @staticmethod
    def host_type(type_: Any) -> Any:
        """Return the host type for the arrays of a device type; return any other type unchanged."""
        return type_

    def is_dense(self, type_: Any) -> bool:
        """Return whether a type of the library describes dense arrays on the host."""
        return isinstance(type_, self.library.TensorType)

    def array_type(self, type_: Any) -> Optional[ArrayType]:
        """Convert a type of the library to an `ArrayType`; return None if its arrays are not dense."""
        type_ = self.host_type(type_)
        if self.is_dense(type_):
            return ArrayType(type_.numpy_dtype, type_.ndim, type_.broadcastable)
        return None

    def filter(self, type_: Any, value: Any, strict: bool, allow_downcast: Optional[bool], argument: str) -> Any:
        """Return the value as the library stores it, or raise an ArgumentError that quotes the library's reason."""
        try:
            return type_.filter(value, strict=strict, allow_downcast=allow_downcast)
        except MemoryError:
            raise
        except Exception as error:
            got = type(value).__name__
            if isinstance(value, np.ndarray):
                got = _described(value.dtype, value.shape)
            _refuse(argument, type_, got, error, " ".join(map(str, error.args)))

    # -- shared variables ----------------------------------------------------------------------------------------

    def shared_type(self, shared: Any) -> Optional[ArrayType]:
        return self.array_type(shared.type)

    def identity(self, shared: Any) -> Hashable:
        # Each function has its own container for a variable, but all containers of the variable share the list inside.
        return id(shared.container.storage)

    def storage(self, shared: Any) -> List[Any]:
        storage: List[Any] = shared.container.storage
        return storage

    def coerce(self, shared: Any, value: Any, argument: str) -> Any:
        container = shared.container
        return self.filter(container.type, value, container.strict, container.allow_downcast, argument)

    def blueprint(self, shared: Any) -> Blueprint:
        container = shared.container
        return Blueprint(
            type(shared),
            shared.type,
            shared.name,
            container.strict,
            container.allow_downcast,
            bool(getattr(shared.tag, "is_rng", False)),
        )

    def build(self, blueprint: Blueprint, value: Any, storage_of: Optional[Any] = None) -> Any:
        container = self.library.Container(
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
        # Pass copies, because the library modifies the inputs that it receives.
        inputs = [copy.copy(one) if isinstance(one, self.library.SymbolicInput) else one for one in inputs]
        if kwargs.get("name") is None:
            kwargs["name"] = _place_of_call()
        pickling.prepare_thread()
        return self.library.function.original(inputs, outputs, updates=list(updates or ()), givens=givens, **kwargs)

    def draft(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Tuple[Any, Snapshot]:
        own = dict(kwargs, mode=self.library.small, profile=False)
        # If there is an error, compile the program's own graph, so that the error names its operations.
        with contextlib.suppress(Exception):
            snapshot = self.snapshot(inputs, outputs, updates, givens, **kwargs)
            if not any(map(states.state_of, inputs)):
                graph = snapshots.as_one_operation(self.library, snapshot, outputs)
                return self.compile(inputs, *graph, givens, **{"no_default_updates": True, **own}), snapshot
        compiled = self.compile(inputs, outputs, updates, givens, **own)
        return compiled, self.snapshot(inputs, outputs, updates, givens, **kwargs)

    def settings_after_draft(self, snapshot: Snapshot) -> Dict[str, Any]:
        return {"mode": snapshot.settings["mode"], "on_unused_input": "ignore"}  # the draft has checked the inputs

    def with_states(self, inputs: Sequence[Any]) -> List[Any]:
        """See `Engine.with_states`. The inputs are copies, so that the program cannot change them later."""
        inputs = [copy.copy(one) if isinstance(one, self.library.SymbolicInput) else one for one in inputs]
        return states.with_states(self.library, inputs)

    def is_implicit(self, given: Any) -> bool:
        return isinstance(given, self.library.SymbolicInput) and bool(given.implicit)

    def inputs(self, compiled: Any) -> List[Input]:
        return [
            Input(
                variable=given.variable,
                name=given.name,
                type=self.array_type(given.variable.type),
                mutable=bool(given.mutable) or states.state_of(given) is not None,
                has_default=given.value is not None,
                default=given.value,
                spec=given,
                state=states.state_of(given),
                is_updated=given.update is not None,
            )
            for given in compiled.maker.inputs
            if not given.implicit
        ]

    def outputs(self, compiled: Any) -> List[Output]:
        maker = compiled.maker
        keys: Sequence[Optional[str]] = self.output_keys(compiled) or [None] * len(maker.outputs)
        result = []
        for index, (key, output) in enumerate(zip(keys, maker.outputs)):
            label = "output" if maker.unpack_single else f"outputs[{(index if key is None else key)!r}]"
            if output.variable.name:
                label += f" ({output.variable.name})"
            result.append(Output(output.variable, label, self.array_type(output.variable.type), key))
        return result

    def shareds(self, compiled: Any) -> List[Any]:
        found: List[Any] = []
        for given in compiled.maker.inputs:
            shared = given.variable if given.implicit else None
            shared = shared if states.state_of(given) is None else states.state_of(given)
            if shared is not None and not any(shared is other for other in found):
                found.append(shared)
        return found

    def written(self, compiled: Any) -> List[Any]:
        found = [(states.state_of(given), given.variable) for given in self._patched.written(compiled)]
        return [one for state, variable in found if self.is_shared(one := variable if state is None else state)]

    def states(self, compiled: Any) -> List[Any]:
        return [state for state in map(states.state_of, compiled.maker.inputs) if state is not None]

    def convert(self, input: Input, value: Any, argument: str) -> Any:
        if value is None and input.type is None:
            return None  # the library does not check None
        spec = input.spec
        return self.filter(self.host_type(input.variable.type), value, spec.strict, spec.allow_downcast, argument)

    def check(self, input: Input, dtype: np.dtype[Any], shape: Tuple[int, ...], argument: str) -> None:
        # A small array suffices: only the dtype, the number of dimensions, and lengths that are fixed or 1 are checked.
        type_, spec = self.host_type(input.variable.type), input.spec
        fixed = getattr(type_, "shape", ())
        free = len(fixed) != len(shape)
        small = np.zeros([min(n, 2) if free or fixed[i] is None else n for i, n in enumerate(shape)], dtype)
        try:
            type_.filter(small, strict=spec.strict, allow_downcast=spec.allow_downcast)
        except Exception as error:
            advice = "cast or reshape the array, or compile with allow_input_downcast=True if only the dtype differs"
            _refuse(argument, input.variable.type, _described(dtype, shape), error, advice)

    @staticmethod
    def output_keys(compiled: Any) -> Optional[List[str]]:
        """Return the keys of a function that returns a dict; None for any other function."""
        keys: Optional[List[str]] = compiled.output_keys
        return keys

    @point("engine")
    def call(self, compiled: Any, args: Sequence[Any], output_subset: Optional[Sequence[int]] = None) -> List[Any]:
        outputs = compiled.maker.outputs
        subset = None if output_subset is None else list(map(int, output_subset))
        if subset is not None and not all(0 <= index < len(outputs) for index in subset):
            # Without this check, the library's C code would write out of bounds.
            raise ArgumentValueError("output_subset", f"indices of outputs (n_outputs={len(outputs)})", str(subset))
        chosen = range(len(outputs)) if subset is None else subset
        is_own = self._is_own.get(compiled.maker)
        if is_own is None:
            is_own = self._is_own[compiled.maker] = self._find_own(compiled)
            self._patched.leave_out(compiled)
        result = self.results(compiled, args) if subset is None else self.some_results(compiled, args, subset)
        return [
            value if is_own[index] and type(value) is np.ndarray else self._own(compiled, index, value, is_own[index])
            for index, value in zip(chosen, result)
        ]

    def results(self, compiled: Any, args: Sequence[Any]) -> List[Any]:
        """Call the function; return its outputs as a flat list."""
        result = self._patched.call(compiled, *args)
        if compiled.unpack_single:
            return [result]
        return list(result.values()) if type(result) is dict else result or []

    def some_results(self, compiled: Any, args: Sequence[Any], subset: List[int]) -> List[Any]:
        results = self.results(compiled, args)
        return [results[index] for index in subset]

    def _find_own(self, compiled: Any) -> List[bool]:
        """Return, for every output, whether the caller can own its value without a copy."""
        # An output may be the former array of an updated shared variable ([w], updates=[(w, w + 1)]). The library
        # abandons that array, but Synkhronos may reuse its memory. Arrays of In(borrow=True) may be reused, too. So may
        # arrays of Out(borrow=True): in modes without allow_gc, the next call may overwrite them.
        found = []
        for output, given in zip(compiled.maker.fgraph.outputs, compiled.maker.outputs):
            root = self.library.alias_root(output)
            found.append(not given.borrow and root.owner is not None or isinstance(root, self.library.Constant))
        return found

    def _own(self, compiled: Any, index: int, value: Any, is_own: bool) -> Any:
        """Return the output's value; copy it if it is a dense array that does not belong to the caller alone."""
        on_host = self.is_dense(compiled.maker.fgraph.outputs[index].type)
        if not on_host and not self.is_on_device(value):
            return value
        if isinstance(value, np.generic):
            return np.asarray(value)  # the Python code of some operations returns a NumPy scalar for an array type
        return value if is_own else value.copy("K" if on_host else "A")

    def copy(self, compiled: Any, snapshot: Snapshot, **kwargs: Any) -> Tuple[Any, Snapshot]:
        swap = dict(kwargs.get("swap") or {})
        for old, new in swap.items():
            if not (self.is_shared(old) and self.is_shared(new) and old.type == new.type):
                got = f"{new!r} ({getattr(new, 'type', type(new))}) for {old!r} ({getattr(old, 'type', type(old))})"
                raise ArgumentTypeError("swap", "shared variables of the same type", got)
        ins, kept = compiled.maker.inputs, list(compiled.maker.inputs)
        try:  # the library copies the elements of this list
            ins[:] = [states.detached(self.library, given, not kwargs.get("delete_updates")) for given in ins]
            copied = compiled.copy(**kwargs)
        finally:
            news, ins[:] = list(ins), kept
        for old, new in zip(kept, copied.maker.inputs):
            # Theano tries to do this, but misspells `variable`, so inputs keep the variables of the graph's clone.
            new.variable = swap.get(old.variable, old.variable)
        for old, new in zip(kept, news):
            if states.state_of(old) is not None and states.state_of(new) is not None:
                swap.setdefault(old.state, new.state)
        # The library's copy loses the output form of the original.
        for attribute in self.forms_of_outputs:
            setattr(copied, attribute, getattr(compiled, attribute))
            setattr(copied.maker, attribute, getattr(compiled.maker, attribute))
        return copied, snapshots.of_copy(self.library, snapshot, copied, swap, kwargs.get("delete_updates"))

    def trust_input(self, compiled: Any) -> bool:
        return bool(compiled.trust_input)

    def set_trust_input(self, compiled: Any, trust_input: bool) -> None:
        compiled.trust_input = trust_input

    def free(self, compiled: Any) -> None:
        compiled.free()

    def profile(self, compiled: Sequence[Any]) -> Optional[profiles.Counts]:
        return profiles.count(compiled, self.profile_key)

    def merged_profile(self, compiled: Sequence[Any], counts: Sequence[profiles.Counts]) -> Any:
        return profiles.merge(compiled, counts, self.profile_key)

    # -- other graphs of the same function -----------------------------------------------------------------------

    def given_pairs(self, givens: Any) -> List[Tuple[Any, Any]]:
        pairs = givens.items() if isinstance(givens, dict) else givens or ()
        library = self.library
        return [(old, new if isinstance(new, library.Variable) else library.shared(new)) for old, new in pairs]

    def snapshot(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Snapshot:
        name = kwargs.pop("name", None) or _place_of_call()
        return snapshots.take(self.library, inputs, outputs, updates, givens, name, **kwargs)

    def updated_in(self, snapshot: Snapshot) -> List[Any]:
        return [target for target, _ in snapshot.updates]

    def variant(self, snapshot: Snapshot, sliced: bool, as_inputs: Sequence[Any]) -> Any:
        divides = self.opened_device() is None
        compiled, source, reasons = snapshots.compile_variant(
            self.library, snapshot, sliced, as_inputs, self.is_random, self.label, divides
        )
        self._whole[compiled.maker] = reasons
        return self._noted(compiled, source)

    def why_whole(self, compiled: Any) -> Sequence[str]:
        return self._whole.get(compiled.maker, ())

    def after_collective(self, snapshot: Snapshot, as_inputs: Sequence[Any]) -> Any:
        return self._noted(*snapshots.compile_second_half(self.library, snapshot, as_inputs, self.is_random))

    def note_graph(self, compiled: Any, snapshot: Snapshot) -> None:
        self._noted(compiled, snapshots.Source(snapshot.inputs, snapshot.outputs, snapshot.updates))

    def _noted(self, compiled: Any, source: snapshots.Source) -> Any:
        self.sources[compiled.maker] = source
        return compiled

    def all_reduce(self, variables: Sequence[Any], op: ReduceOp) -> List[Any]:
        for index, variable in enumerate(variables):
            argument = f"x[{index}]" if len(variables) > 1 else "x"
            if self.owns(variable):
                argument = f"{argument} ({self.label(variable)})"
            type_ = self.array_type(variable.type) if isinstance(variable, self.library.Variable) else None
            if type_ is None:
                got = str(getattr(variable, "type", repr(variable)))
                hint = "convert the variable to a dense array, or leave it out"
                raise ArgumentTypeError(argument, f"a dense array ({self.name})", got, hint)
            check_dtype(op, type_.dtype, argument, IN_GRAPH)
        results: List[Any] = self.library.AllReduce(op, len(variables))(*variables, return_list=True)
        return results

    def shard(self, variable: Any, axis: int) -> Any:
        argument = f"v ({self.label(variable)})"
        type_ = self.array_type(variable.type) if isinstance(variable, self.library.Variable) else None
        if type_ is None:
            raise ArgumentTypeError(argument, f"a dense array ({self.name})", str(getattr(variable, "type", variable)))
        return self.library.TakeShare(type_.axis_of_rows(axis, argument))(variable)

    def collectives(self, snapshot: Snapshot, scattered: Mapping[Any, int]) -> Optional[Collectives]:
        return survey(self.library, snapshot, scattered, self.is_random)

    def placed(self, snapshot: Snapshot, shards: Mapping[Any, Shard]) -> List[Placement]:
        if snapshot.placements is not None:
            return list(snapshot.placements)
        expressions = snapshot.expressions()
        return explained(self.library, expressions, shards, placed(self.library.graph_of(expressions), shards))

    def with_late_outputs(
        self, snapshot: Snapshot, shards: Mapping[Any, Shard], ops: Sequence[Any]
    ) -> Tuple[Snapshot, List[Placement]]:
        return exact.with_late_outputs(self.library, snapshot, shards, ops, self.label, self.is_random)

    def has_late_outputs(self, snapshot: Snapshot) -> bool:
        return snapshot.has_late_outputs

    def output_types(self, snapshot: Snapshot) -> List[Optional[ArrayType]]:
        return [self.array_type(output.variable.type) for output in snapshot.outputs]

    def common_streams(self, snapshot: Snapshot) -> List[Any]:
        return list(snapshot.streams)

    def with_rows(
        self, snapshot: Snapshot, shards: Mapping[Any, Shard], rows: Optional[int], own: Optional[Sequence[int]] = None
    ) -> Tuple[Snapshot, List[str]]:
        library, expressions = self.library, snapshot.expressions()
        if rows is None and not library.written_rows.are_properties(expressions):
            return snapshot, []
        known: Dict[Any, Placement] = dict(shards)
        inputs = library.graph_inputs(expressions)
        known.update({one: Stream(one) for one in inputs if self.is_shared(one) and self.is_random(one)})
        with library.without_test_values():
            marks = NONE if own is None or rows is None or rows < 2 else means(library, expressions, own, known, rows)
            read = library.written_rows(expressions, known, rows, marks)
        if read.unclear and own is not None:
            expected = f"a program that shows clearly where {rows} is the number of rows"
            hint = "write x.shape[0] if this number is the number of rows, or a length such as W.shape[1] if it is not"
            raise ArgumentValueError("rows", expected, read.unclear, hint)
        return snapshot.with_expressions(library, read.outputs), read.where

    def completed(self, snapshot: Snapshot, shards: Mapping[Any, Shard]) -> Tuple[Snapshot, List[Placement]]:
        return exact.completed(self.library, snapshot, shards, self.label, self.is_random)

    def sharding(self, snapshot: Snapshot, shards: Mapping[Any, Shard], in_parts: bool = False) -> Sharding:
        if in_parts:
            with self.library.without_test_values():
                snapshot, _ = snapshots.in_parts(self.library, snapshot, self.is_random)
        return table.sharding(self.library, snapshot, shards, self.label, self.array_type)

    def is_operation(self, cls: Any) -> bool:
        return isinstance(cls, type) and issubclass(cls, self.library.Op)

    def add_rule(self, cls: Any, make: Callable[[Any, Sequence[int], Sequence[int]], PlacementRule]) -> None:
        self.library.placing.add_rule(cls, make)

    def shapes(self, snapshot: Snapshot, as_inputs: Sequence[Any]) -> Any:
        return self._noted(*snapshots.compile_shapes(self.library, snapshot, as_inputs))

    # -- transfer to other processes -----------------------------------------------------------------------------

    def constants(self, compiled: Any) -> List[np.ndarray[Any, Any]]:
        variables = {variable for node in compiled.maker.fgraph.apply_nodes for variable in node.inputs}
        return [
            variable.data
            for variable in variables
            if isinstance(variable, self.library.Constant) and type(variable.data) is np.ndarray
        ]

    def restored(self, maker: Any, name: Optional[str], trust_input: bool) -> Any:
        """Create the function of a maker, and set its name and ``trust_input``, which makers do not store."""
        compiled = self.create(maker, [getattr(given, "value", None) for given in maker.inputs])
        compiled.name = name
        compiled.trust_input = trust_input
        return compiled

    def create(self, maker: Any, values: List[Any]) -> Any:
        """Create the function of a maker with these values for its inputs and shared variables."""
        with self.library.without_test_values():
            return maker.create(values, trustme=True)

    def dumps(
        self,
        compiled: Sequence[Any],
        numbers: Mapping[Hashable, int],
        variables: Mapping[int, int],
        constants: Mapping[int, Any],
    ) -> bytes:
        known = pickling.names(numbers, variables, constants)
        slim = Slim(self.library, partial(_restore, self))
        pickled = pickling.dumps(compiled, known, slim, _label_of_function, self._parts, _nodes)
        return pickle.dumps((self.library.flags.to_send(), self.attached_data())) + pickled

    @point("replication")
    def loads(
        self, data: Any, replicas: Mapping[int, Any], constant: Callable[[Any], np.ndarray[Any, Any]]
    ) -> List[Any]:
        def find(kind: str, place: Any) -> Any:
            if kind == "constant":
                return constant(place)
            return replicas[place] if kind == "variable" else replicas[place].container.storage

        file = io.BytesIO(data)
        flags, attached = pickle.load(file)
        self.load_attached_data(attached)
        with self.library.flags.set(flags):
            return pickling.loads(file.getbuffer()[file.tell() :], find)

    def attached_data(self) -> Any:
        """Return data that is sent with functions and loaded before them; see `load_attached_data`."""

    def load_attached_data(self, attached: Any) -> None:
        """Load the `attached_data` of the process that sent the functions."""

    def _parts(self, compiled: Any) -> Iterator[Tuple[str, Any]]:
        maker = compiled.maker
        yield f"its mode {type(maker.mode).__name__}", maker.mode
        yield "its profile", maker.profile
        for given in maker.inputs:
            if not given.implicit:
                yield f"the default of input {given.name or given.variable}", given.value
        for node in maker.fgraph.toposort():
            yield f"the operation {node.op}", node.op
        for node in maker.fgraph.toposort():
            for variable in node.inputs:
                if isinstance(variable, self.library.Constant):
                    yield f"the constant {variable}", variable.data


def _nodes(compiled: Any) -> List[Any]:
    """Return the nodes of a function's graph in topological order."""
    return list(compiled.maker.fgraph.toposort())


def _restore(engine: GraphEngine, maker: Any, name: Optional[str], trust_input: bool) -> Any:
    return engine.restored(maker, name, trust_input)


def _label_of_function(function: Any) -> str:
    return f"function {function.name!r}"


def _described(dtype: Any, shape: Tuple[int, ...]) -> str:
    return f"an array of {dtype} with shape {shape}"


def _refuse(argument: str, type_: Any, got: str, error: Exception, advice: str) -> NoReturn:
    # The library raises NumPy's ValueError for text that is not a number; all its other errors concern the type.
    kind = ArgumentValueError if isinstance(error, ValueError) else ArgumentTypeError
    raise kind(argument, str(type_), got, advice) from error


def _place_of_call() -> str:
    """Return the default name of a function: the file and line of the call from outside this library."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "synkhronos":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
