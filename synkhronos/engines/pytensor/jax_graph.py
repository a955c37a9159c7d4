"""A PyTensor function's graph as JAX computes it, for one rank or for several ranks in lockstep.

The graph is rewritten for JAX, and every node is converted by PyTensor's own `jax_funcify`. Operations of
`synkhronos.ops` ask the current `Trace`, which a caller sets while JAX traces the function.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import warnings
from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import JAX
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.link.jax.dispatch import jax_funcify, jax_typify
from pytensor.link.jax.dispatch.random import jax_sample_fn
from pytensor.link.jax.dispatch.shape import JAXShapeTuple
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Cast, Switch, discrete_dtypes, upcast
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.extra_ops import Unique
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.rewriting.ofg import inline_ofg_node
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import DenseTensorType, TensorType

from ...errors import ArgumentTypeError, ArgumentValueError
from ...reductions import ReduceOp
from ..graph.snapshot import Source
from .operations import AllReduce, InverseShare, PutShare, TakeShare, WholeLength

logger = logging.getLogger("synkhronos")

#: Operations whose own conversions compute float64 in 32 bits (`jax.nn.dot_product_attention`).
ROUNDED = ("AttentionLayer",)


class Trace(ABC):
    """The ranks' rows and collectives, for the operations that JAX traces; ``rank`` is a position in lockstep."""

    rank = 0

    @abstractmethod
    def all_reduce(self, number: int, op: ReduceOp, of_ranks: Sequence[Sequence[Any]]) -> List[List[Any]]:
        """Reduce the arrays of the traced ranks over all ranks; return the results of each traced rank."""

    @abstractmethod
    def share(self, length: int) -> Tuple[Any, int]:
        """Return the start, which may be traced, and the number of the rank's rows among ``length`` rows."""

    @abstractmethod
    def whole_length(self, length: Any) -> Any:
        """Convert a length that is proportional to the rank's rows into the length for all rows."""

    @abstractmethod
    def inverse_share(self) -> float:
        """Return the number of all rows divided by the number of the rank's rows."""


class _Tracing(threading.local):
    trace: Any = None


_tracing = _Tracing()


class JaxGraph:
    """The graph of a compiled function: its inputs (explicit and shared), outputs, and new values of updates.

    ``random`` and ``static`` are positions of inputs: random states, and integers that determine shapes (JAX needs them
    as Python numbers). ``updates`` maps positions of inputs to positions of results. ``sources`` maps the positions of
    results that are random states to the inputs with the earlier states; `evaluate` omits these results (None).
    ``reads_rows`` means that the graph depends on the division of rows, and ``divides_rows`` that it takes a rank's
    rows of an array.
    """

    def __init__(self, source: Source, name: str) -> None:
        targets = [target for target, _ in source.updates]
        results = [output.variable for output in source.outputs] + [new for _, new in source.updates]
        results = clone_replace(results, replace=list(source.givens), rebuild_strict=False)
        explicit = [one.variable for one in source.inputs]
        shareds = [one for one in graph_inputs([*results, *targets]) if isinstance(one, SharedVariable)]
        shareds = [one for one in dict.fromkeys([*shareds, *targets]) if one not in explicit]
        self.name, self.n_outputs = name, len(source.outputs)
        self.failed = ""  # the node that JAX could not trace
        self.explicit = list(range(len(explicit)))
        #: The storages of shared variables by the positions of the inputs.
        self.cells = {i: one.container.storage for i, one in enumerate(shareds, len(explicit))}
        self.updates = {len(explicit) + shareds.index(one): self.n_outputs + k for k, one in enumerate(targets)}
        self.graph = FunctionGraph([*explicit, *shareds], results, clone=True)
        self._expand()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            JAX.optimizer.rewrite(self.graph)
        inputs = self.graph.inputs
        self.random = [i for i, one in enumerate(inputs) if isinstance(one.type, RandomType)]
        self.static = [i for i, one in enumerate(inputs) if self._is_static(one)]
        self.sources = {
            i: self._source(one) for i, one in enumerate(self.graph.outputs) if isinstance(one.type, RandomType)
        }
        self.order = self.graph.toposort()
        shapes = {one for node in self.order if isinstance(node.op, (Shape, Shape_i)) for one in node.outputs}
        of_values = set(inputs) - {inputs[i] for i in self.static}
        checks = [
            str(node.op)
            for node in self.order
            if isinstance(node.op, CheckAndRaise) and of_values & set(ancestors(node.inputs[1:], blockers=shapes))
        ]
        if checks:
            logger.warning(
                "function %s: JAX omits these checks of values in its graph, so they raise no errors: %s",
                name,
                ", ".join(dict.fromkeys(checks)),
            )
        kinds = TakeShare, PutShare, WholeLength, InverseShare
        self.reads_rows = any(isinstance(node.op, kinds) for node in self.order)
        self.divides_rows = any(isinstance(node.op, kinds[:2]) for node in self.order)
        self._functions = {node: self._with_types(node, self._converted(node)) for node in self.order}
        self._of_shapes = {node for node in self.order if _is_of_shapes(node)}
        constants = {one for node in self.order for one in node.inputs if isinstance(one, Constant)}
        constants.update(one for one in self.graph.outputs if isinstance(one, Constant))
        self._constants = {one: jax_typify(one.data, variable=one, storage=[one.data]) for one in constants}
        for one in inputs:
            if not isinstance(one.type, (DenseTensorType, RandomType)):
                got = f"{one.name or one} of type {one.type}"
                raise ArgumentTypeError(f"function {name}", "dense arrays and random states, for JAX", got)

    def _expand(self) -> None:
        """Replace operations that are defined by graphs by these graphs, unless JAX has an equal operation."""
        while True:
            found = [node for node in self.graph.toposort() if isinstance(node.op, OpFromGraph) and _is_defined(node)]
            if not found:
                return
            for node in found:
                self.graph.replace_all(list(zip(node.outputs, inline_ofg_node(node))), import_missing=True)

    def _is_static(self, variable: Any) -> bool:
        clients = [node for node, _ in self.graph.clients[variable]]
        return bool(clients) and all(isinstance(getattr(node, "op", None), JAXShapeTuple) for node in clients)

    def _source(self, variable: Any) -> int:
        """Return the position of the input with the earlier state of a random state."""
        while variable.owner is not None:
            variable = next(one for one in variable.owner.inputs if isinstance(one.type, RandomType))
        if variable not in self.graph.inputs:
            expected = "random states that follow from the states of shared variables, for JAX"
            raise ArgumentValueError(f"function {self.name}", expected, f"the constant state {variable}")
        position: int = self.graph.inputs.index(variable)
        return position

    def _converted(self, node: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTensor's warnings of omitted checks: see `__init__`
                if isinstance(node.op, RandomVariable):  # otherwise, PyTensor looks the distribution up in every trace
                    jax_sample_fn(node.op, node=node)
                if isinstance(node.op, Unique):  # PyTensor's conversion raises AttributeError when it is called
                    raise NotImplementedError("its output shape depends on values")
                return jax_funcify(node.op, node=node, storage_map={})
        except NotImplementedError as error:
            reason = str(error).split("\n")[0]
            hint = "replace the operation, or fork processes instead of devices='jax'"
            expected = "operations that PyTensor converts for JAX"
            raise ArgumentValueError(f"function {self.name}", expected, f"{node.op} ({reason})", hint) from error

    @staticmethod
    def _with_types(node: Any, function: Any) -> Any:
        """Return a node's function of arguments in the type that PyTensor computes in; JAX alone might use fewer bits.

        For example, JAX multiplies float32 by int64 in float32, and rounds a sum of float32 before a cast to float64.
        """
        first, dtype = 0, None
        core = getattr(node.op, "core_op", node.op)
        dtypes = [getattr(one.type, "dtype", None) for one in node.inputs]
        if isinstance(core, CAReduce):
            dtype = getattr(core, "acc_dtype", None)
        elif isinstance(core, Elemwise):
            first = int(isinstance(core.scalar_op, Switch))
            is_inexact = node.outputs[0].dtype not in discrete_dtypes
            if not isinstance(core.scalar_op, Cast):
                dtype = upcast(*dtypes[first:], *[node.outputs[0].dtype] * is_inexact)
        elif isinstance(core, (BatchedDot, Dot, Join, MakeVector)) and dtypes:
            dtype = upcast(*dtypes)
        if dtype is None or all(one == dtype for one in dtypes[first:]):
            return function

        def typed(*values: Any) -> Any:
            return function(*values[:first], *[_as_type(value, dtype) for value in values[first:]])

        return typed

    def evaluate(self, of_ranks: Sequence[Sequence[Any]], trace: Trace) -> List[List[Any]]:
        """Compute the results from the values of all inputs of one or more ranks; in JAX, while it traces."""
        environments: List[Dict[Any, Any]] = [
            {**self._constants, **dict(zip(self.graph.inputs, values))} for values in of_ranks
        ]
        before, _tracing.trace, outputs = _tracing.trace, trace, self.graph.outputs
        try:
            for node in self.order:
                self.failed = str(node)
                given = [[environment[one] for one in node.inputs] for environment in environments]
                if isinstance(node.op, AllReduce):
                    found = trace.all_reduce(node.op.number, node.op.op, [values[: node.op.n] for values in given])
                    made = [[*some, *values[node.op.n :]] for some, values in zip(found, given)]
                else:
                    made = []
                    for trace.rank, values in enumerate(given):  # noqa: B020, the trace is for one rank after another
                        # PyTensor's conversions change random states (dicts) in place, which other nodes may use, too.
                        values = [dict(one) if type(one) is dict else one for one in values]
                        if isinstance(node.op, CheckAndRaise) and any(map(_is_false, values[1:])):
                            raise node.op.exc_type(node.op.msg)
                        # Shapes must remain numbers; within `jit`, JAX would make unknown numbers of them.
                        is_known = not any(isinstance(one, jax.core.Tracer) for one in values)
                        at_once = is_known and node in self._of_shapes
                        with jax.ensure_compile_time_eval() if at_once else contextlib.nullcontext():
                            result = self._functions[node](*values)
                        made.append(list(result) if len(node.outputs) > 1 else [result])
                for environment, values in zip(environments, made):
                    environment.update(zip(node.outputs, map(_of_type, node.outputs, values)))
            self.failed = ""
        finally:
            _tracing.trace = before
        return [
            [None if i in self.sources else jnp.asarray(environment[one], one.dtype) for i, one in enumerate(outputs)]
            for environment in environments
        ]


def _is_false(condition: Any) -> bool:  # (conditions of values are unknown while JAX traces)
    return not isinstance(condition, jax.core.Tracer) and not np.asarray(condition).all()


def _is_defined(node: Any) -> bool:
    """Return whether only the definition of an operation computes the same as PyTensor does."""
    is_rounded = type(node.op).__name__ in ROUNDED and node.outputs[0].dtype == "float64"
    return is_rounded or jax_funcify.dispatch(type(node.op)) is jax_funcify.dispatch(OpFromGraph)


def _is_of_shapes(node: Any) -> bool:
    """Return whether a node computes only integers or bools with at most two axes, such as shapes and paddings."""
    types = [one.type for one in node.outputs]
    return all(getattr(one, "dtype", "") in discrete_dtypes and getattr(one, "ndim", 0) < 3 for one in types)


def _as_type(value: Any, dtype: str) -> Any:
    if hasattr(value, "dtype"):
        return value if value.dtype == dtype else value.astype(dtype)
    return value if dtype in discrete_dtypes else np.asarray(value, dtype)  # (a shape remains a number)


def _of_type(variable: Any, value: Any) -> Any:
    """Return a value in the dtype of its variable; JAX's rules of promotion differ from PyTensor's, e.g. for sums."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or not isinstance(variable.type, TensorType) or dtype == variable.type.dtype:
        return value
    return value.astype(variable.type.dtype)


def key_of(generator: np.random.Generator) -> Tuple[Any, np.random.Generator]:
    """Return a key for JAX's random numbers, drawn from a generator, and the generator after the draw."""
    after = copy.deepcopy(generator)
    word = int(after.bit_generator.random_raw())
    return np.array([word >> 32, word & 0xFFFFFFFF], np.uint32), after


def _all_reduce(op: Any, **_: Any) -> Any:
    """Convert a collective inside a loop or a condition; `JaxGraph.evaluate` computes all other collectives."""

    def reduce(*values: Any) -> Any:
        (results,) = _tracing.trace.all_reduce(op.number, op.op, [values[: op.n]])
        found = [*results, *values[op.n :]]
        return found[0] if len(found) == 1 else tuple(found)

    return reduce


def _take_share(op: Any, **_: Any) -> Any:
    def take(array: Any) -> Any:
        begin, n_rows = _tracing.trace.share(array.shape[op.axis])
        return jnp.take(array, begin + jnp.arange(n_rows), axis=op.axis)

    return take


def _put_share(op: Any, **_: Any) -> Any:
    def put(like: Any, rows: Any) -> Any:
        begin, n_rows = _tracing.trace.share(like.shape[op.axis])
        place = (slice(None),) * op.axis + (begin + jnp.arange(n_rows),)
        return jnp.zeros(like.shape, rows.dtype).at[place].set(rows)

    return put


def _whole_length(op: Any, **_: Any) -> Any:
    def whole(lengths: Any) -> Any:
        if jnp.ndim(lengths) == 0:
            return _tracing.trace.whole_length(lengths)
        place: Optional[int] = op.position
        return jnp.asarray(lengths).at[place].set(_tracing.trace.whole_length(lengths[place]))

    return whole


def _inverse_share(op: Any, **_: Any) -> Any:
    return lambda part: jnp.asarray(_tracing.trace.inverse_share(), "float64")


for operation, conversion in (
    (AllReduce, _all_reduce),
    (TakeShare, _take_share),
    (PutShare, _put_share),
    (WholeLength, _whole_length),
    (InverseShare, _inverse_share),
):
    jax_funcify.register(operation)(conversion)
