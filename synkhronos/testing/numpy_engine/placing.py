"""NumPy graphs as graphs of placement rules, and the exact graphs that result.

Ufuncs that are not in `RULES` are elementwise. Results of other functions, except collectives, are replicated if all
inputs are replicated arrays, and unknown otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ... import sharding
from ...engines import exact
from ...reductions import ReduceOp
from .function import NumpyGraph
from .graph import Apply, NumpyVariable, ordered
from .operations import AllReduce, all_reduce, cast, draw, length, scaled, whole_length


def graph_of(roots: Sequence[Any]) -> sharding.NestedGraph:
    """Convert a NumPy graph to a graph of placement rules."""
    order = [node for node in ordered(roots) if isinstance(node, Apply)]
    elements: Dict[Any, Dict[int, Any]] = {}
    for node in order:
        if is_element(node):
            elements.setdefault(node.args[0], {})[_index(node)] = node
    nodes: List[sharding.Node] = []
    known: Dict[Any, sharding.Placement] = {}
    for node in order:
        if is_element(node):
            continue
        rule, n_inputs, n_outputs = _described(node)
        inputs = [arg if isinstance(arg, NumpyVariable) else _Constant() for arg in node.args[:n_inputs]]
        known.update((one, sharding.ZERO) for one, arg in zip(inputs, node.args) if _is_zero(arg))
        found = elements.get(node, {})
        outputs = [found.get(i, _Constant()) for i in range(n_outputs)] if found else [node]
        nodes.append(sharding.Node(rule, tuple(inputs), tuple(outputs), partial(_label, node)))
    return sharding.NestedGraph(nodes, [], list(roots), known)


class _Constant:
    """Placeholder for an argument that is not a variable, or for an unused result."""


def is_element(node: Apply) -> bool:
    """Return whether a node selects one of a function's several results."""
    return isinstance(node.function, operator.itemgetter)


def _index(node: Apply) -> int:
    index: Any = node.function.__reduce__()[1][0]
    return int(index)


def _is_zero(arg: Any) -> bool:
    return isinstance(arg, (int, float, np.ndarray, np.generic)) and not np.any(arg)


def _label(node: Apply) -> str:
    name = getattr(node.function, "__name__", type(node.function).__name__)
    return f"{name} ({node.name})" if node.name else name


# -- exact graphs ------------------------------------------------------------------------------------------------------


def completed(
    graph: NumpyGraph,
    shards: Mapping[Any, sharding.Shard],
    label: Callable[[Any], str],
    is_random: Callable[[Any], bool],
) -> Tuple[NumpyGraph, List[sharding.Placement]]:
    """Return the graph with collectives, and the placements of its outputs; see `Engine.completed`."""
    nodes = graph_of(graph.expressions())
    found = exact.completed(
        nodes, exact.propagated(nodes, shards), graph.outputs, graph.updates, shards, BUILDER, label, is_random
    )
    updates = [(target, new) for (target, _), new in zip(graph.updates, found.news)]
    return graph._replace(outputs=found.outputs, updates=updates, halves=found.halves), found.placements


def _apply(node: sharding.Node, inputs: Sequence[Any]) -> Sequence[Any]:
    one = next(output for output in node.outputs if isinstance(output, Apply))
    before = one.args[0] if is_element(one) else one
    args = [new if isinstance(new, NumpyVariable) else arg for new, arg in zip(inputs, before.args)]
    new = Apply(before.function, (*args, *before.args[len(args) :]), before.type, before.name)
    if before is one:
        return [new]
    return [
        Apply(output.function, (new,), output.type, output.name) if isinstance(output, Apply) else output
        for output in node.outputs
    ]


def _as_average(part: Any) -> Any:
    return None if part.type.dtype.kind in "biu" else Apply(scaled, (part,), part.type)


BUILDER = sharding.GraphBuilder(
    _apply,
    lambda variables, op: all_reduce(variables, ReduceOp(op)),
    lambda lengths, position: Apply(whole_length, (lengths, position), lengths.type),
    _as_average,
)


# -- rules -------------------------------------------------------------------------------------------------------------


class Description(NamedTuple):
    """The placement rule for a node, the number of leading arguments that it covers, and the number of results."""

    rule: sharding.PlacementRule
    n_inputs: int
    n_outputs: int = 1


def _described(node: Apply) -> Description:
    make = RULES.get(node.function) if isinstance(node.function, Hashable) else None
    if isinstance(node.function, AllReduce):
        n = len(node.args)
        return Description(sharding.Completed(n, node.function.op.name or ""), n, n)
    if make is None and isinstance(node.function, np.ufunc) and node.function.nout == 1 and not node.function.signature:
        make = _elementwise()
    found = None if make is None else make(node)
    if found is None or any(isinstance(arg, NumpyVariable) for arg in node.args[found.n_inputs :]):
        n_outputs = 2 if node.type is None else 1
        takes_objects = any(isinstance(arg, NumpyVariable) and arg.type is None for arg in node.args)
        rule = _OfObjects(n_outputs) if takes_objects else sharding.Opaque(n_outputs)
        return Description(rule, len(node.args), n_outputs)
    return found


class _OfObjects(sharding.PlacementRule):
    """Placement rule for an operation on objects, such as states of random number generators."""

    def __init__(self, n_outputs: int) -> None:
        self.n_outputs = n_outputs

    def place(self, inputs: Sequence[sharding.Placement], exact: bool) -> sharding.RuleResult:
        return sharding.RuleResult([sharding.Unknown("computes with an object that is not an array")] * self.n_outputs)


class _Mean(sharding.AxisReduction):
    """Placement rule for a mean: a sum, divided by the rank's number of rows if the mean is over rows."""

    def __init__(self, ndim: int, axes: Sequence[int]) -> None:
        super().__init__(ndim, axes, "sum")
        self.axes = axes

    def place(self, inputs: Sequence[sharding.Placement], exact: bool) -> sharding.RuleResult:
        placed, (one,) = super().place(inputs, exact), inputs
        (found,) = placed.outputs
        if isinstance(one, sharding.Shard) and one.axis in self.axes and isinstance(found, sharding.Partial):
            found = found._replace(power=found.power - 1)
        return sharding.RuleResult([found], placed.whole)


def _ones(arg: Any) -> Tuple[bool, ...]:
    """Return, for each axis, whether its length is known to be 1."""
    if isinstance(arg, NumpyVariable):
        return () if arg.type is None else arg.type.broadcastable
    return tuple(length == 1 for length in np.shape(arg))


def _ndim(node: Apply) -> int:
    return len(_ones(node.args[0]))


def _dtype(arg: Any) -> Any:
    return arg.type.dtype if isinstance(arg, NumpyVariable) and arg.type else np.asarray(arg).dtype


Maker = Callable[[Apply], Optional[Description]]


def _aligned(args: Sequence[Any], **kwargs: Any) -> Description:
    """Return the rule for an elementwise operation on arguments that are aligned at their last axes, as in NumPy."""
    patterns = [list(_ones(arg)) for arg in args]
    ndim = max(map(len, patterns))
    rule = sharding.Elementwise([[True] * (ndim - len(pattern)) + pattern for pattern in patterns], **kwargs)
    # (a number keeps its labels, all of axes of length 1, so that it may be a length)
    rule.inputs = [labels[ndim - len(pattern or labels) :] for labels, pattern in zip(rule.inputs, patterns)]
    return Description(rule, len(args))


def _elementwise(linear: Sequence[Sequence[int]] = (), **kwargs: Any) -> Maker:
    return lambda node: _aligned(node.args, linear=() if _dtype(node).kind == "b" else linear, **kwargs)


def _power(node: Apply) -> Description:
    exponent = node.args[1]
    return _aligned(node.args, powers={0: exponent} if isinstance(exponent, int) else {})


def _cast(node: Apply) -> Description:
    before, after = _dtype(node.args[0]), _dtype(node)
    # Integers of fewer than 64 bits may have wrapped around.
    widens = before.kind in "iu" and before.itemsize < 8 and (after.kind == "f" or after.itemsize > before.itemsize)
    is_linear = (after.kind == "f" or before.kind in "iub" and after.kind in "iu") and not widens
    return _aligned(node.args[:1], linear=[[0]] if is_linear else [])


def _axes(node: Apply) -> Sequence[int]:
    axis, ndim = node.args[1] if len(node.args) > 1 else None, _ndim(node)
    return range(ndim) if axis is None else [one % ndim for one in np.atleast_1d(axis).tolist()]


def _reduction(op: Optional[str], only_bools: bool = False) -> Maker:
    def make(node: Apply) -> Description:
        known = op if not only_bools or _dtype(node.args[0]).kind == "b" else None
        return Description(sharding.AxisReduction(_ndim(node), _axes(node), known), 1)

    return make


def _dot(node: Apply) -> Optional[Description]:
    one, other = map(_ones, node.args)
    if not (1 <= len(one) <= 2 and 1 <= len(other) <= 2):
        return None
    inputs = "ik"[2 - len(one) :], "kj"[: len(other)]
    labels = [[sharding.ONE if is_one else name for name, is_one in zip(*each)] for each in zip(inputs, (one, other))]
    output = [name if name in labels[0] + labels[1] else sharding.ONE for name in "".join(inputs) if name != "k"]
    is_any = _dtype(node).kind == "b"
    return Description(sharding.Axes(labels, [output], [[0], [1]], reduce=["max"] if is_any else None), 2)


def _subscript(node: Apply) -> Optional[Description]:
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if not all(type(entry) in (int, slice) for entry in index):
        return None
    entries = [*index, *[slice(None)] * (_ndim(node) - len(index))]
    before = [axis if entry == slice(None) else sharding.MIXED for axis, entry in enumerate(entries)]
    after = [name for name, entry in zip(before, entries) if isinstance(entry, slice)]
    return Description(sharding.Subscript([before], [after], [[0]]), 1)


RULES: Mapping[Any, Maker] = {
    np.add: _elementwise([[0, 1]]),
    np.subtract: _elementwise([[0, 1]]),
    np.negative: _elementwise([[0]], reverses=0),
    np.multiply: _elementwise([[0], [1]]),
    np.true_divide: _elementwise([[0]], powers={1: -1}),
    np.where: _elementwise([[1, 2]]),
    np.absolute: _elementwise(powers={0: 1}),
    np.sqrt: _elementwise(powers={0: 0.5}),
    np.square: _elementwise(powers={0: 2}),
    np.sign: _elementwise(powers={0: 0}),
    np.power: _power,
    np.greater: _elementwise(degree=0),
    np.less: _elementwise(degree=0),
    np.maximum: _elementwise(degree=1),
    np.minimum: _elementwise(degree=1),
    cast: _cast,
    np.sum: _reduction("sum"),
    np.prod: _reduction("prod"),
    np.max: _reduction("max"),
    np.min: _reduction("min"),
    np.any: _reduction("max", only_bools=True),
    np.all: _reduction("min", only_bools=True),
    np.argmax: _reduction(None),
    np.mean: lambda node: Description(_Mean(_ndim(node), _axes(node)), 1),
    np.dot: _dot,
    np.transpose: lambda node: Description(sharding.Moved(_ndim(node), range(_ndim(node))[::-1]), 1),
    np.shape: lambda node: Description(sharding.ShapeOf(_ndim(node)), 1),
    length: lambda node: Description(sharding.ShapeOf(_ndim(node), 0), 1),
    operator.getitem: _subscript,
    draw: lambda node: Description(sharding.Drawn([()], node.args[2], [1]), 2, 2),
}
