"""Taking, setting and adding to elements at an index."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Sequence

from .axes import MIXED, Axes
from .placements import REPLICATE, Index, Order, Placement, Shard, Size, Unknown
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
    """

    def __init__(
        self,
        inputs: Sequence[Sequence[Any]],
        outputs: Sequence[Sequence[Any]],
        linear: Sequence[Sequence[int]],
        ends: Sequence[int] = (),
        arrays: Optional[Mapping[int, int]] = None,
        sets: bool = False,
    ) -> None:
        moves = len(inputs) == 1 + len(ends)
        super().__init__(inputs, outputs, linear, reduce=[None if sets else "sum"], moves=moves)
        self.ends, self.arrays = set(ends), dict(arrays or {})

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        inputs, first = list(inputs), inputs[0]
        for i in self.ends:
            if isinstance(inputs[i], Size):
                if isinstance(first, Shard) and first.order == Order.ANY and first.axis == 0:
                    return Placed([first])  # some of many random numbers are as good as others
                if any(one.power != 0 for one in inputs[i].lengths):
                    return Placed([Unknown("takes elements up to a number that depends on how many rows the rank has")])
                inputs[i] = REPLICATE
        rule: Axes = self
        for axis, i in self.arrays.items():
            array = inputs[i]
            if not isinstance(array, Shard) or array.index == Index.NO:
                continue
            inputs[i] = array._replace(index=Index.NO)
            if not isinstance(first, Shard) or first.axis != axis:
                return Placed([Unknown("takes positions of rows, which every rank counts from 0, of another axis")])
            if array.index == Index.COMPUTED and first.order not in (Order.MERGED, Order.ANY):
                return Placed([Unknown("takes rows at computed positions, which may be those of another rank")])
            rule = self._along(axis, self.inputs[i][array.axis])
            inputs[0] = first._replace(order=array.order)
        return Axes.place(rule, inputs, exact)

    def _along(self, axis: int, label: Any) -> Axes:
        """Return the rule if the rows along an axis are taken at their own positions."""
        labels = [list(of_input) for of_input in self.inputs]
        outputs = [list(of_output) for of_output in self.outputs]
        labels[0][axis] = label
        if len(outputs[0]) == len(labels[0]) and outputs[0][axis] == MIXED:  # elements are set
            outputs[0][axis] = label
        return Axes(labels, outputs, self.linear, reduce=self.reduce, moves=self.moves)
