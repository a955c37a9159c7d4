"""Placement rules for operations that create, use or change shapes."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Optional, Sequence

from ....sharding import (
    MIXED,
    Axes,
    CheckedInput,
    Divided,
    Filled,
    Joined,
    JoinedShape,
    Moved,
    Opaque,
    PlacementRule,
    Positions,
    Product,
    Reshaped,
    ShapeOf,
)
from ..lengths import Lengths, broadcastable, ndim


def shape(lengths: Lengths, node: Any) -> PlacementRule:
    return ShapeOf(ndim(node.inputs[0]), None, partial(lengths.axis_length, node.inputs[0]))


def length(lengths: Lengths, node: Any) -> PlacementRule:
    return ShapeOf(ndim(node.inputs[0]), node.op.i, partial(lengths.axis_length, node.inputs[0]))


def filled(lengths: Lengths, node: Any) -> PlacementRule:
    return _filled(node, 1)


def empty(lengths: Lengths, node: Any) -> PlacementRule:
    return _filled(node, 0)


def _filled(node: Any, values: int) -> PlacementRule:
    shape = range(values, len(node.inputs))
    return Filled([broadcastable(one) for one in node.inputs[:values]], ndim(node.outputs[0]), shape)


def reshaped(lengths: Lengths, node: Any) -> PlacementRule:
    before = [lengths.axis_length(node.inputs[0], axis) for axis in range(ndim(node.inputs[0]))]
    after: List[Optional[Product]] = [None] * node.op.ndim
    free = None
    for axis, one in enumerate(lengths.elements(node.inputs[1]) or ()):
        if one == Product(-1):
            free = axis
        elif one.number > 0:
            after[axis] = one
    return Reshaped(before, after, free, lengths.same())


def vector(lengths: Lengths, node: Any) -> PlacementRule:
    n = len(node.inputs)
    return JoinedShape(partial(_values, lengths, node.inputs), Axes([[]] * n, [[MIXED]], [range(n)], moves=True))


def _values(lengths: Lengths, variables: Sequence[Any]) -> List[Optional[List[Optional[Product]]]]:
    return [lengths.values(one) for one in variables]


def joined(lengths: Lengths, node: Any) -> PlacementRule:
    axis, arrays = lengths.classes.joined(node)
    if axis is None:
        return Opaque(1)
    has_axis = len(node.inputs) > len(arrays)
    rule = Joined(len(arrays), ndim(arrays[0]), axis % ndim(arrays[0]), has_axis)
    if ndim(arrays[0]) != 1:
        return rule
    return JoinedShape(lambda: [*[[]] * has_axis, *_values(lengths, arrays)], rule)


def split(lengths: Lengths, node: Any) -> PlacementRule:
    axis, n = lengths.classes.axis_of(node), ndim(node.inputs[0])
    if axis is None:
        return Opaque(len(node.outputs))
    return Divided(len(node.outputs), n, axis % n, has_axis=len(node.inputs) > 2)


def counting(lengths: Lengths, node: Any) -> PlacementRule:
    start, step = lengths.length(node.inputs[0]), lengths.length(node.inputs[2])
    return Positions(step if start == Product(0) and step.number > 0 else None)


def checked(lengths: Lengths, node: Any) -> PlacementRule:
    return CheckedInput(ndim(node.inputs[0]), len(node.inputs) - 1)


def same_as_first(lengths: Lengths, node: Any) -> PlacementRule:
    """Return the rule for an operation that returns its first input, regardless of the values of its other inputs."""
    others: List[Any] = [[MIXED] * ndim(one) for one in node.inputs[1:]]
    names = _but_for_new_ones(node)
    return Axes([names, *others], [names], [[0]], shapes_only=range(1, len(node.inputs)))


def rebroadcast(lengths: Lengths, node: Any) -> PlacementRule:
    """Return the placement rule for an operation that only changes which axes are known to have length 1."""
    names = _but_for_new_ones(node)
    return Axes([names], [names], [[0]], moves=True) if MIXED in names else Moved(len(names), names)


def _but_for_new_ones(node: Any) -> List[Any]:
    """Return labels for the axes of an array, with `MIXED` for axes newly declared to have length 1."""
    before, after = broadcastable(node.inputs[0]), broadcastable(node.outputs[0])
    return [MIXED if one and not other else axis for axis, (one, other) in enumerate(zip(after, before))]
