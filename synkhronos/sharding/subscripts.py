"""Taking, setting and adding to elements at an index."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from .axes import MIXED, Axes
from .layout import MERGED, ROWS
from .placements import REPLICATE, Index, Placement, Shard, Size, Unknown
from .rule import Placed


class Subscript(Axes):
    """An index into the first input.

    Parameters
    ----------
    inputs, outputs, linear, moves
        As for `Axes`; the axes that the index does not take as they are have the label `MIXED`.
    ends : sequence of int
        The inputs that are numbers in the index: elements, and ends of slices.
    arrays : mapping from int to int
        By axes of the first input, the inputs that are arrays of positions along them.
    sets : bool
        Whether elements are set: those of all ranks cannot be put together then.
    is_vector : bool
        Whether the first elements of a vector are taken, or what comes after them.
    """

    def __init__(
        self,
        inputs: Sequence[Sequence[Any]],
        outputs: Sequence[Sequence[Any]],
        linear: Sequence[Sequence[int]],
        ends: Sequence[int] = (),
        arrays: Optional[Mapping[int, int]] = None,
        sets: bool = False,
        is_vector: bool = False,
    ) -> None:
        moves = len(inputs) == 1 + len(ends)
        super().__init__(inputs, outputs, linear, reduce=[None if sets else "sum"], moves=moves)
        self.ends, self.arrays, self.is_vector = set(ends), dict(arrays or {}), is_vector

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        inputs, first = list(inputs), inputs[0]
        for i in self.ends:
            end = inputs[i]
            if isinstance(end, Size):
                if isinstance(first, Shard) and first.loose and self.is_vector:
                    return Placed([_taken(first, end)])
                if any(one.power != 0 for one in end.lengths):
                    return Placed([Unknown("takes elements up to a number that depends on how many rows the rank has")])
                inputs[i] = REPLICATE
        rule: Axes = self
        for axis, i in self.arrays.items():
            array = inputs[i]
            if not isinstance(array, Shard) or array.positions == Index.NO:
                continue
            inputs[i] = array._replace(positions=Index.NO)
            if not isinstance(first, Shard) or first.axis != axis:
                return Placed([Unknown("takes positions of rows, which every rank counts from 0, of another axis")])
            if not _is_of(array, first):
                return Placed([Unknown("takes rows at computed positions, which may be those of another rank")])
            rule = self._along(axis, self.inputs[i][array.axis])
            inputs[0] = first._replace(layout=array.layout, uniform=False)
        return Axes.place(rule, inputs, exact)

    def _along(self, axis: int, label: Any) -> Axes:
        """Return the rule if the rows along an axis are taken at their own positions."""
        labels = [list(of_input) for of_input in self.inputs]
        outputs = [list(of_output) for of_output in self.outputs]
        labels[0][axis] = label
        if len(outputs[0]) == len(labels[0]) and outputs[0][axis] == MIXED:  # elements are set
            outputs[0][axis] = label
        return Axes(labels, outputs, self.linear, reduce=self.reduce, moves=self.moves)


def _is_of(array: Shard, first: Shard) -> bool:
    """Return whether positions are those of elements that the rank has."""
    if None in array.of or array.of != first.layout:
        return False
    # With an offset, they are positions in a row, or else it would be a bad program: rows have several elements.
    return array.positions == Index.ROWS or array.of.in_order and array.of != ROWS


def _taken(first: Shard, end: Size) -> Shard:
    """Return some of the random numbers, perhaps as many as there are rows."""
    (length,) = end.lengths
    if length.power == 1:
        return first._replace(layout=length.layout or MERGED, loose=False)
    return first
