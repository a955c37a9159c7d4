"""Engine for Theano 1.0: table of names, linkers, random states, devices and compiled modules."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np
import theano
from theano import configparser, gof
from theano.compile import debugmode, function_module, io, mode, sharedvalue
from theano.compile.pfunc import rebuild_collect_shared
from theano.gof import graph, vm
from theano.tensor import opt, sharedvar
from theano.tensor.raw_random import RandomStateType

from ...errors import ArgumentTypeError
from ...reductions import ReduceOp
from .. import random_states
from ..base import Input
from ..graph.catching import Catcher
from ..graph.classes import table
from ..graph.engine import Blueprint, GraphEngine
from ..graph.flags import CompileFlags
from ..graph.library import Library
from ..graph.precision import BeforeRounding
from . import formulas, gpu, modules, operations, pickling_repairs, repairs, rewrites
from .classes import CLASSES
from .placing import PLACING
from .scans import SCANS
from .written_rows import WRITTEN_ROWS


def _parameters() -> Dict[str, Any]:
    return {parameter.fullname: parameter for parameter in configparser._config_var_list}


class TheanoEngine(GraphEngine):
    """Engine that compiles with Theano's own ``function``."""

    name = "theano"
    library = table(
        Library,
        *(operations, rewrites, formulas),
        *(gof, function_module, io, mode, sharedvalue, sharedvar, debugmode, opt),
        flags=CompileFlags(_parameters, theano.change_flags),
        # Find the function through its module, because a program may have assigned synkhronos.function to
        # theano.function before this import. The attribute theano.compile.function is the function, not its module.
        function=Catcher(importlib.import_module("theano.compile.function").function),
        rebuild_collect_shared=rebuild_collect_shared,
        without_test_values=lambda: theano.change_flags(compute_test_value="off"),
        graph_inputs=graph.inputs,
        clone_replace=theano.clone,
        placing=PLACING,
        written_rows=WRITTEN_ROWS,
        before_rounding=BeforeRounding(CLASSES),
        scans=SCANS,
        Tag=gof.utils.scratchpad,
        MergeFeature=gof.opt.MergeFeature,
        reduce=pickling_repairs.reduce,
        small=mode.Mode(linker="py", optimizer=None),
        **vars(CLASSES),
    )
    #: Virtual machines that accept an ``output_subset``; Theano lacks ``CVM`` without a C++ compiler.
    lazy_linkers = tuple(getattr(vm, name) for name in ("CVM", "Stack") if hasattr(vm, name))
    host_type = staticmethod(gpu.host_type)
    is_on_device = staticmethod(gpu.is_array)

    def coerce(self, shared: Any, value: Any, argument: str) -> Any:
        type_ = shared.container.type
        if not gpu.is_type(type_):
            return super().coerce(shared, value, argument)
        allow_downcast = shared.container.allow_downcast
        return self.filter(gpu.host_type(type_), self.to_host(value), False, allow_downcast, argument)

    def to_device(self, shared: Any, value: Any) -> Any:
        return gpu.on_device(shared.type, value) if gpu.is_type(shared.type) else self.to_host(value)

    def blueprint(self, shared: Any) -> Blueprint:
        gpu.check_context(f"shared variable {self.label(shared)}", shared.type)
        return super().blueprint(shared)

    def build(self, blueprint: Blueprint, value: Any, storage_of: Optional[Any] = None) -> Any:
        if gpu.is_type(blueprint.type) and storage_of is None and value is not None:
            value = gpu.on_device(blueprint.type, value)
        return super().build(blueprint, value, storage_of)

    # -- functions -----------------------------------------------------------------------------------------------

    def default(self, compiled: Any, given: Input) -> Any:
        container = compiled.container[given.variable]  # the variable is the same in all graphs of the function
        value = container.value
        container.value = given.default  # because a value stored by f[input] = value is used only once
        return value

    def free(self, compiled: Any) -> None:
        # Theano may empty all storages but those of constants, so restore shared variables, states and defaults.
        held = [
            (container.storage, container.storage[0])
            for given, container in zip(compiled.maker.inputs, compiled.input_storage)
            if given.implicit or given.value is not None
        ]
        super().free(compiled)
        for storage, value in held:
            storage[0] = value

    def some_results(self, compiled: Any, args: Sequence[Any], subset: List[int]) -> List[Any]:
        if not isinstance(compiled.fn, self.lazy_linkers):
            return super().some_results(compiled, args, subset)
        keys = self.output_keys(compiled)
        if keys is None:
            return self._patched.call(compiled, *args, output_subset=subset) or []
        by_key = self._patched.call(compiled, *args, output_subset=[keys[index] for index in subset])
        return [by_key[keys[index]] for index in subset]

    def on_ranks(self, compiled: Any) -> Any:
        changed = gpu.outputs_on_device(compiled)
        return compiled if changed is compiled else self.restored(changed, compiled.name, compiled.trust_input)

    def present(self, compiled: Any, index: int, value: Any) -> Any:
        type_ = compiled.maker.outputs[index].variable.type
        if gpu.is_type(type_):
            return None if value is None else gpu.on_device(type_, value)
        return self.to_host(value)

    def take(self, array: Any, rows: Any) -> Any:
        return gpu.take(array, rows) if gpu.is_array(array) else super().take(array, rows)

    def accumulator(self, op: ReduceOp, keep_dtype: bool = False) -> Any:
        return gpu.accumulator(op, keep_dtype)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return gpu.is_out_of_memory(error)

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

    def _mrg_state(self, shared: Any, value: Any) -> np.ndarray[Any, Any]:
        state = np.asarray(value)  # the value may be on a GPU
        if state.dtype != np.int32 or state.ndim != 2 or state.shape[1] != 6:
            is_array = state.dtype != object
            raise ArgumentTypeError(
                f"random state {self.label(shared)}",
                "a state of MRG_RandomStreams (int32 with shape (rows, 6)) or of RandomStreams",
                f"an array of {state.dtype} with shape {state.shape}" if is_array else type(value).__name__,
                "use one of these classes, or delete the variable's tag.is_rng",
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

    def watch_modules(self, tell: Optional[Callable[[str], object]]) -> None:
        modules.watch(tell)

    def preload(self, file: str) -> None:
        modules.preload(file)

    def attached_data(self) -> Any:
        return modules.unshared()

    def load_attached_data(self, attached: Any) -> None:
        modules.share(attached)


repairs.repair()
ENGINE = TheanoEngine()
