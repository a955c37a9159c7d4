"""Placement rules for basic and advanced indices, and for masks."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

from ....sharding import (
    MIXED,
    ONE,
    Axes,
    Changed,
    Coordinate,
    Element,
    Masked,
    PlacementRule,
    Product,
    Slice,
    Subscript,
)
from ..classes import Classes
from ..indices import constant_index, is_all
from ..lengths import Lengths, broadcastable, ndim
from .along import labels


def _basic_index(
    lengths: Lengths, node: Any, first: int, as_it_is: Optional[int] = None
) -> Tuple[List[Any], List[Any]]:
    """Return the axis labels of a basic index's array and result, as if the index selected all of axis ``as_it_is``."""
    array = node.inputs[0]
    entries = lengths.classes.get_idx_list(node.inputs[first - 1 :], node.op.idx_list)
    before = list(range(ndim(array)))
    for axis, entry in enumerate(entries):
        if axis != as_it_is and not is_all(lengths, entry):
            before[axis] = MIXED  # type: ignore[call-overload]
    after = [name for axis, name in enumerate(before) if axis >= len(entries) or isinstance(entries[axis], slice)]
    return before, after


def _slices(lengths: Lengths, node: Any, first: int, rule_if: Callable[[int], Axes]) -> Dict[int, Slice]:
    """Return, by axis, the slices of a basic index whose ends are inputs of the node."""
    found: Dict[int, Slice] = {}
    entries = lengths.classes.get_idx_list([None, *range(first, len(node.inputs))], node.op.idx_list)
    for axis, entry in enumerate(entries):
        if isinstance(entry, slice) and entry.step is None and not (entry.start is None and entry.stop is None):
            is_start = entry.start is not None and _is_zero(lengths, node.inputs[entry.start])
            found[axis] = Slice(None if is_start else entry.start, entry.stop, rule_if(axis))
    return found


def _is_zero(lengths: Lengths, variable: Any) -> bool:
    value = lengths.constant(variable)
    return value is not None and not value.any()


def subtensor(lengths: Lengths, node: Any) -> PlacementRule:
    array, classes = node.inputs[0], lengths.classes
    if array.owner is not None and isinstance(array.owner.op, classes.Nonzero) and ndim(node.outputs[0]) == 1:
        (entry,) = classes.get_idx_list(node.inputs, node.op.idx_list)
        if not isinstance(entry, slice) and lengths.constant(entry) is not None:
            return Coordinate(int(lengths.constant(entry)))
    ends = range(1, len(node.inputs))

    def rule_if(as_it_is: Optional[int]) -> Any:
        before, after = _basic_index(lengths, node, 1, as_it_is)
        return [before, *[[]] * len(ends)], [after], [[0]]

    is_vector = ndim(node.inputs[0]) == 1 and ndim(node.outputs[0]) == 1
    slices = _slices(lengths, node, 1, lambda axis: Axes(*rule_if(axis)))
    inputs, outputs, linear = rule_if(None)
    rule = Subscript(inputs, outputs, linear, ends, is_vector=is_vector, slices=slices)
    index = constant_index(lengths, node, 0) if ndim(node.inputs[0]) == 1 else None
    return rule if index is None else Element(index, rule)


def inc_subtensor(lengths: Lengths, node: Any) -> PlacementRule:
    ends, value = range(2, len(node.inputs)), node.inputs[1]

    def rule_if(as_it_is: Optional[int]) -> Any:
        before, taken = _basic_index(lengths, node, 2, as_it_is)
        return [before, labels(value, taken[len(taken) - ndim(value) :]), *[[]] * len(ends)], [before], [[0, 1]]

    slices = _slices(lengths, node, 2, lambda axis: Axes(*rule_if(axis)))
    inputs, outputs, linear = rule_if(None)
    rule = Subscript(inputs, outputs, linear, ends, sets=node.op.set_instead_of_inc, slices=slices)
    return _changed(lengths, node, constant_index(lengths, node, 1) if ndim(node.inputs[0]) == 1 else None, rule)


def _changed(lengths: Lengths, node: Any, index: Any, rule: PlacementRule) -> PlacementRule:
    """Return the rule for changing elements of a vector, which may be a shape; ``rule`` unless ``index`` is known."""
    if index is None or node.inputs[0].dtype not in lengths.classes.discrete_dtypes:
        return rule
    return Changed(index, lambda: [lengths.values(one) for one in node.inputs[:2]], node.op.set_instead_of_inc, rule)


def truncates(classes: Classes, node: Any) -> bool:
    """Return whether floats are added to integers; each float is truncated, so results are not partials of a sum."""
    array, value = (one.dtype in classes.discrete_dtypes for one in node.inputs[:2])
    return array and not value


def _length_of(lengths: Lengths, node: Any, position: int, axis: int) -> Product:
    return lengths.axis_length(node.inputs[position], axis)


def rows_at(lengths: Lengths, node: Any) -> PlacementRule:
    """Return the rule for indexing the first axis by a vector."""
    names = list(range(1, ndim(node.inputs[0])))
    inputs: List[List[Any]] = [[MIXED, *names], ["at"]]
    rule = Subscript(inputs, [["at", *names]], [[0]], arrays={0: 1}, length=partial(_length_of, lengths, node))
    return _chosen(lengths, node, node.inputs[1], rule)


def _chosen(lengths: Lengths, node: Any, positions: Any, rule: PlacementRule) -> PlacementRule:
    """Return the rule for selecting elements of a vector, which may be a shape; ``rule`` if positions are computed."""
    index = lengths.positions(positions) if ndim(node.inputs[0]) == 1 else None
    return rule if index is None else Element(index, rule)


def inc_rows_at(lengths: Lengths, node: Any) -> PlacementRule:
    names = list(range(1, ndim(node.inputs[0])))
    value = ["at", *names][1 + len(names) - ndim(node.inputs[1]) :]
    rule = Subscript(
        [[MIXED, *names], labels(node.inputs[1], value), ["at"]],
        [[MIXED, *names]],
        [[0, 1]],
        arrays={0: 2},
        sets=node.op.set_instead_of_inc or truncates(lengths.classes, node),
        length=partial(_length_of, lengths, node),
    )
    return _changed(lengths, node, lengths.positions(node.inputs[2]) if not names else None, rule)


def _advanced(lengths: Lengths, node: Any, first: int) -> Any:
    """Return an advanced index's labels, position arrays by axis, and slice ends; None if it is not supported."""
    entries = lengths.classes.advanced_entries(node, first)
    if entries is None:
        return None
    before: List[Any] = list(range(ndim(node.inputs[0])))
    of_inputs: List[Any] = [[] for _ in node.inputs[first:]]
    arrays: Dict[int, int] = {}
    positions = [entry for entry in entries if not isinstance(entry, slice)]
    if not all(is_integers(lengths, node.inputs[i]) for i in positions):
        return None
    width = max([ndim(node.inputs[i]) for i in positions], default=0)
    place: Optional[int] = None
    after: List[Any] = []
    for axis, entry in enumerate(entries):
        if isinstance(entry, slice):
            if not entry == slice(None):
                before[axis] = MIXED
            after.append(before[axis])
            continue
        if place is not None and place != axis:
            return None  # arrays that are not adjacent
        place = axis + 1
        arrays[axis] = entry
        array = node.inputs[entry]
        of_inputs[entry - first] = [
            ONE if lengths.axis_length(array, k) == Product(1) else ("at", width - ndim(array) + k)
            for k in range(ndim(array))
        ]
        if len(arrays) == 1:
            after += [("at", k) for k in range(width)]
        before[axis] = MIXED
    ends = [i for i in range(first, len(node.inputs)) if i not in arrays.values()]
    return before, after + list(range(len(entries), ndim(node.inputs[0]))), of_inputs, arrays, ends


def is_integers(lengths: Lengths, entry: Any) -> bool:
    classes = lengths.classes
    is_array = isinstance(entry.type, classes.TensorType)
    return is_array and entry.dtype in classes.discrete_dtypes and entry.dtype != "bool"


def advanced_subtensor(lengths: Lengths, node: Any) -> Optional[PlacementRule]:
    found = _advanced(lengths, node, 1)
    if found is None:
        return None
    before, after, of_inputs, arrays, ends = found
    length = partial(_length_of, lengths, node)
    rule = Subscript([before, *of_inputs], [after], [[0]], ends, arrays=arrays, length=length)
    return _chosen(lengths, node, node.inputs[1], rule) if len(node.inputs) == 2 else rule


def advanced_inc_subtensor(lengths: Lengths, node: Any) -> Optional[PlacementRule]:
    found = _advanced(lengths, node, 2)
    if found is None:
        return None
    before, after, of_inputs, arrays, ends = found
    value = labels(node.inputs[1], after[len(after) - ndim(node.inputs[1]) :])
    # An update that counts duplicate positions only once is not a sum of the ranks' updates.
    sets = bool(node.op.set_instead_of_inc or getattr(node.op, "ignore_duplicates", False))
    sets = sets or truncates(lengths.classes, node)
    length = partial(_length_of, lengths, node)
    rule = Subscript([before, value, *of_inputs], [before], [[0, 1]], ends, arrays=arrays, sets=sets, length=length)
    index = lengths.positions(node.inputs[2]) if len(node.inputs) == 3 and ndim(node.inputs[0]) == 1 else None
    return _changed(lengths, node, index, rule)


def masked(node: Any, first: int) -> Optional[PlacementRule]:
    """Return the rule for selecting or setting elements with a mask, the input at ``first``."""
    array, mask = node.inputs[0], node.inputs[-1]
    if len(node.inputs) != first + 1 or getattr(mask, "dtype", "") != "bool" or ndim(mask) == 0:
        return None
    of_value = broadcastable(node.inputs[1]) if first == 2 else None
    return Masked(ndim(array), ndim(mask), mask, of_value, getattr(node.op, "set_instead_of_inc", False))
