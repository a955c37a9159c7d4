"""Placement rules for operations along one axis, and for products."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

from ....sharding import MIXED, ONE, Axes, PlacementRule
from ..lengths import Lengths, broadcastable, ndim


def labels(variable: Any, names: Sequence[Any]) -> List[Any]:
    """Return labels for the axes of a variable, with `ONE` for axes of length 1."""
    return [ONE if one else name for one, name in zip(broadcastable(variable), names)]


def along(axis: Callable[[Any], Any], linear: bool = False) -> Callable[[Any], Optional[PlacementRule]]:
    """Return a function that makes the placement rule for an operation along one axis of its first input."""

    def rule(node: Any) -> Optional[PlacementRule]:
        n, found = ndim(node.inputs[0]), axis(node)
        if found is None or any(ndim(one) != n for one in node.outputs):
            return None
        names = [MIXED if i == int(found) % n else i for i in range(n)]
        rest: List[Any] = [[MIXED] * ndim(one) for one in node.inputs[1:]]
        return Axes([names, *rest], [names] * len(node.outputs), [[0]] if linear else [])

    return rule


def by_rows(linear: Sequence[int] = ()) -> Callable[[Any], PlacementRule]:
    """Return a function that makes the rule for an operation on independent rows of all its arguments."""

    def rule(node: Any) -> PlacementRule:
        def names(variable: Any) -> List[Any]:
            return [0, *[MIXED] * (ndim(variable) - 1)] if ndim(variable) else []

        inputs, outputs = list(map(names, node.inputs)), list(map(names, node.outputs))
        return Axes(inputs, outputs, [[i] for i in linear])

    return rule


def own_axis(node: Any) -> Any:
    return node.op.axis


def cumulative(lengths: Lengths, node: Any) -> Optional[PlacementRule]:
    return along(own_axis, linear=node.op.mode == "add")(node)


def sort(lengths: Lengths, node: Any) -> Optional[PlacementRule]:
    return along(lengths.classes.axis_of)(node)


def dot(lengths: Lengths, node: Any) -> Axes:
    one, other = node.inputs
    left, right = (["i", "k"] if ndim(one) == 2 else ["k"]), (["k", "j"] if ndim(other) == 2 else ["k"])
    output = [name for name in left + right if name != "k"]
    is_outer = any(broadcastable(one)[-1:]) or any(broadcastable(other)[:1])  # nothing is summed
    is_integer = node.outputs[0].dtype in lengths.classes.discrete_dtypes
    factors = [lengths.value(one), lengths.value(other)] if is_outer and is_integer else None
    names = [labels(one, left), labels(other, right)]
    output = [name if name in names[0] + names[1] else ONE for name in output]
    return Axes(names, [output], [[0], [1]], factors=factors)


def batched_dot(lengths: Lengths, node: Any) -> PlacementRule:
    one, other = node.inputs
    left, right = ["n", "i", "k"][: ndim(one)], ["n", "k", "j"][: ndim(other)]
    if ndim(one) == 2:
        left = ["n", "k"]
    return Axes([left, right], [["n"] + ["i"] * (ndim(one) == 3) + ["j"] * (ndim(other) == 3)], [[0], [1]])


def solve(node: Any) -> Axes:
    """Return the rule for a linear system with a replicated matrix: columns of right-hand sides are independent."""
    names = [MIXED, "n"][: ndim(node.inputs[1])]
    return Axes([[MIXED, MIXED], names], [names], [[1]])
