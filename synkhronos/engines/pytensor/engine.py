"""Engine for PyTensor 3: table of names, linkers and random states."""

from __future__ import annotations

import contextlib
import copy
import warnings
import weakref
from functools import partial
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from pytensor import config
from pytensor.compile import aliasing, executor, io, maker, mode, rebuild, sharedvalue
from pytensor.compile.debug import debugmode
from pytensor.compile.io import SymbolicInput, SymbolicOutput
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph import basic, fg, op, replace
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.basic import MergeFeature
from pytensor.graph.traversal import graph_inputs
from pytensor.graph.utils import Scratchpad
from pytensor.link import basic as link
from pytensor.tensor import sharedvar
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.rewriting import shape
from pytensor.tensor.type import TensorType

from ...errors import ArgumentTypeError, ArgumentValueError
from .. import random_states
from ..base import Collectives
from ..graph.catching import Catcher
from ..graph.classes import table
from ..graph.collectives import of_calls
from ..graph.engine import GraphEngine
from ..graph.flags import CompileFlags
from ..graph.library import Library
from ..graph.precision import BeforeRounding
from ..graph.snapshot import Snapshot
from . import formulas, jax_functions, jit, operations, pickling_repairs, repairs, rewrites
from .classes import CLASSES, is_sparse
from .hidden import refuse_hidden
from .placing import PLACING
from .scans import SCANS
from .written_rows import WRITTEN_ROWS


class PyTensorEngine(GraphEngine):
    """Engine that compiles with PyTensor's own ``function``."""

    name = "pytensor"
    library = table(
        Library,
        *(aliasing, basic, op, debugmode, executor, io, maker, mode, rebuild, sharedvalue, link, sharedvar, operations),
        *(fg, replace, shape, rewrites, formulas),
        flags=CompileFlags(lambda: config._config_var_dict, config.change_flags),
        function=Catcher(maker.function),
        convert_function_input=lambda given: given if isinstance(given, SymbolicInput) else io.In(given),
        without_test_values=contextlib.nullcontext,
        graph_inputs=lambda outputs: list(graph_inputs(outputs)),
        placing=PLACING,
        written_rows=WRITTEN_ROWS,
        before_rounding=BeforeRounding(CLASSES),
        scans=SCANS,
        Tag=Scratchpad,
        MergeFeature=MergeFeature,
        reduce=pickling_repairs.reduce,
        small=Mode(linker="py", optimizer=None),
        **vars(CLASSES),
    )
    forms_of_outputs = ("unpack_single",)
    profile_key = staticmethod(lambda graph, node: (graph, node))

    def __init__(self) -> None:
        super().__init__()
        #: Maps a function's maker to the storages of the function's shared variables and states.
        self._cells: weakref.WeakKeyDictionary[Any, List[List[Any]]] = weakref.WeakKeyDictionary()

    def is_dense(self, type_: Any) -> bool:
        return super().is_dense(type_) and not is_sparse(type_)

    # -- functions -----------------------------------------------------------------------------------------------

    def compile(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Any:
        if isinstance(outputs, dict):
            hint = "PyTensor's functions cannot return dicts"
            raise ArgumentTypeError("outputs", "a variable or a list of variables", "a dict", hint)
        linker = _linker_of(kwargs.get("mode"))
        if jax_functions.is_jax(linker):  # JAX would raise its own error before `collectives` is called
            given = outputs if isinstance(outputs, (list, tuple)) else [] if outputs is None else [outputs]
            found = [each.variable if isinstance(each, SymbolicOutput) else each for each in given]
            found += [new for _, new in updates]
            if of_calls(self.library, [each for each in found if isinstance(each, Variable)]):
                jax_functions.refuse_collectives()
        compiled = super().compile(inputs, outputs, updates, givens, **kwargs)
        if jax_functions.is_jax(linker):
            jax_functions.refuse_random(self.function_name(compiled), self.shareds(compiled))
        return compiled

    def with_any_rows(
        self, inputs: Sequence[Any], axes: Sequence[Optional[int]], givens: Any, rows: int
    ) -> Tuple[List[Any], Any]:
        after, pairs = list(inputs), list(givens or ())
        for i, (given, axis) in enumerate(zip(inputs, axes)):
            variable = given.variable if isinstance(given, SymbolicInput) else given
            shape = list(getattr(variable.type, "shape", ()))
            if axis is None or not -len(shape) <= axis < len(shape) or rows == 1 or shape[axis] != rows:
                continue
            shape[axis] = None
            new = TensorType(variable.dtype, shape=tuple(shape))(variable.name)
            after[i] = new
            if given is not variable:
                after[i] = copy.copy(given)
                after[i].variable = new
            pairs.append((variable, new))
        return after, pairs

    def results(self, compiled: Any, args: Sequence[Any]) -> List[Any]:
        cells = self._cells.get(compiled.maker)
        if cells is None:
            maker = compiled.maker
            cells = self._cells[maker] = [given.value.storage for given in maker.inputs if given.implicit]
        jit.settle(cells)
        if jit.is_jitted(compiled.maker.linker):
            args = list(map(jit.laid_out, args))
        results = super().results(compiled, args)
        if jax_functions.is_jax(compiled.maker.linker):
            jax_functions.settle(cells)
            results = list(map(jax_functions.as_numpy, results))
        return results

    def reference(self, owner: Any) -> Callable[[], Any]:
        return partial(_on_ranks, weakref.ref(owner))  # PyTensor's own functions do not support weak references

    def warm_up(self, compiled: Any) -> None:
        jit.compile_now(compiled)

    @staticmethod
    def output_keys(compiled: Any) -> Optional[List[str]]:
        return None  # PyTensor no longer supports dicts of outputs

    def restored(self, maker: Any, name: Optional[str], trust_input: bool) -> Any:
        if jax_functions.is_jax(maker.linker):
            jax_functions.refuse_inherited(name)
        return super().restored(maker, name, trust_input)

    def create(self, maker: Any, values: List[Any]) -> Any:
        return maker.create(values)

    def snapshot(
        self, inputs: Sequence[Any], outputs: Any, updates: Sequence[Tuple[Any, Any]], givens: Any, **kwargs: Any
    ) -> Snapshot:
        _linker_of(kwargs.get("mode"))
        found = super().snapshot(inputs, outputs, updates, givens, **kwargs)
        refuse_hidden(found.expressions())
        return found

    def collectives(self, snapshot: Snapshot, scattered: Mapping[Any, int]) -> Optional[Collectives]:
        if jax_functions.is_jax(snapshot.settings["mode"].linker) and snapshot.is_joint(self.library):
            jax_functions.refuse_collectives()
        return super().collectives(snapshot, scattered)

    # -- random streams ------------------------------------------------------------------------------------------

    def is_random(self, shared: Any) -> bool:
        return isinstance(shared.type, RandomGeneratorType)

    def jumped(self, shared: Any, value: Any, jumps: int) -> Any:
        return random_states.jumped_generator(value, jumps, f"random state {self.label(shared)}")

    def reseeded(self, shared: Any, value: Any, seed: int, index: int) -> Any:
        return random_states.seeded_generator(value, seed, index)


def _linker_of(mode: Any) -> Any:
    """Return the linker of a mode, or raise an error if functions of this mode cannot run on ranks."""
    mode = get_mode(mode)
    if not isinstance(mode, Mode):
        raise ArgumentTypeError("mode", "a PyTensor mode, or the name of a mode", repr(mode))
    linker = mode.linker
    if not jit.is_known(linker):
        raise ArgumentValueError(
            "mode",
            "a mode that compiles with Numba (NUMBA, the default), C or Python (CVM, FAST_COMPILE), or JAX (JAX)",
            f"a mode with the linker {type(linker).__name__}",
        )
    return linker


def _on_ranks(owner: Callable[[], Any]) -> Any:
    living = owner()
    return None if living is None else living.on_ranks


# Snapshots include default updates, so variants set ``no_default_updates``, although PyTensor deprecates it.
warnings.filterwarnings("ignore", "The no_default_updates parameter", DeprecationWarning, "synkhronos")
repairs.repair()
ENGINE = PyTensorEngine()
