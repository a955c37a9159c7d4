"""Placement rules for elements that a mask chooses from rows; their number may differ between rows.

::

    mask          1 0 1 | 0 0 1 | 1 1 1      rows on ranks 0, 1 and 2
    x[mask]       x0 x2 | x5    | x6 x7 x8   in order, as for rows with several elements

A symbol of the mask represents the number of chosen elements, so only selections with the same mask can be combined.
The total number over all ranks requires a collective.
"""

from __future__ import annotations

from typing import Any, List, Sequence

from .axes import MIXED, Axes
from .layout import Chosen, Product, RowLayout
from .placements import Index, Placement, Shard, Unknown
from .rule import PlacementRule, RuleResult

OUT_OF_ORDER = "chooses elements of rows that are not in order along axis 0, so a rank's elements are not contiguous"


class Where(Axes):
    """Placement rule for the positions of nonzero elements as a matrix: a row per axis, and a column per element."""

    def __init__(self, ndim: int, mask: Any) -> None:
        self.mask = mask
        super().__init__([[0, *[MIXED] * (ndim - 1)]], [[MIXED, 0]], reduce=[None])

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        (one,) = inputs
        if isinstance(one, Shard) and (one.axis or not one.layout.in_order):
            return RuleResult([Unknown(OUT_OF_ORDER)])
        placed = super().place(inputs, exact)
        (found,) = placed.outputs
        if isinstance(found, Shard):
            after = _of_mask(found, self.mask)._replace(positions=Index.ROWS, of=found.layout)
            placed = placed._replace(outputs=[after])
        return placed


class Coordinate(PlacementRule):
    """Placement rule for nonzero elements' indices along an axis; indices along axis 0 are positions of rows."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        one = inputs[0]
        if isinstance(one, Shard):
            one = one._replace(axis=0) if self.axis == 0 else one._replace(axis=0, positions=Index.NO, of=RowLayout())
        return RuleResult([one])


class Coordinates(PlacementRule):
    """Placement rule for the positions of nonzero elements as several vectors: a vector of indices per axis."""

    def __init__(self, ndim: int, mask: Any) -> None:
        self.where, self.axes = Where(ndim, mask), [Coordinate(axis) for axis in range(ndim)]

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        placed = self.where.place(inputs, exact)
        found = [axis.place(placed.outputs, exact).outputs[0] for axis in self.axes]
        return placed._replace(outputs=found)


class Masked(Axes):
    """Placement rule for elements chosen by a mask on the first axes, or for the array with these elements changed.

    The mask is the last input, with ``of_mask`` dimensions. ``of_value`` marks the new value's axes of length 1.
    """

    def __init__(self, ndim: int, of_mask: int, mask: Any, of_value: Any = None, sets: bool = False) -> None:
        self.mask, self.changes = mask, of_value is not None
        array: List[Any] = [0, *[MIXED] * (of_mask - 1), *range(of_mask, ndim)]
        taken = [0, *range(of_mask, ndim)]
        labels: List[Any] = [array, [0, *[MIXED] * (of_mask - 1)]]
        if self.changes:
            names = taken[len(taken) - len(of_value) :]
            labels.insert(1, ["." if one else name for one, name in zip(of_value, names)])
        outputs, linear = ([array], [[0, 1]]) if self.changes else ([taken], [[0]])
        super().__init__(labels, outputs, linear, reduce=[None if sets else "sum"])

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        array, mask = inputs[0], inputs[-1]
        if not any(isinstance(one, Shard) for one in (array, mask)):
            if any(isinstance(one, Shard) for one in inputs):
                return RuleResult([Unknown("assigns values of a rank's own rows to elements of a replicated value")])
            return super().place(inputs, exact)
        for one in (array, mask):
            if isinstance(one, Shard) and (one.axis or one.positions or not one.layout.in_order):
                return RuleResult([Unknown(OUT_OF_ORDER)])
        inputs = list(inputs)
        if self.changes and isinstance(inputs[1], Shard) and isinstance(array, Shard):
            if inputs[1].layout != _of_mask(array, self.mask).layout:
                return RuleResult([Unknown("assigns values of different rows to the elements that a mask chooses")])
            inputs[1] = inputs[1]._replace(layout=array.layout)
        inputs = [one._replace(uniform=False) if isinstance(one, Shard) else one for one in inputs]
        placed = super().place(inputs, exact)
        (found,) = placed.outputs
        if isinstance(found, Shard) and not self.changes:
            placed = placed._replace(outputs=[_of_mask(found, self.mask)])
        return placed


def _of_mask(rows: Shard, mask: Any) -> Shard:
    return rows._replace(layout=rows.layout._replace(inner=Product.of(Chosen(mask))), uniform=False, loose=False)
