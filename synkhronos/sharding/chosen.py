"""Elements of rows that a mask chooses: a number of them that differs from row to row.

::

    mask          1 0 1 | 0 0 1 | 1 1 1      rows on ranks 0, 1 and 2
    x[mask]       x0 x2 | x5    | x6 x7 x8   in order, as any rows that have several elements

How many there are is a symbol: only what the same mask has chosen can be combined. Each rank counts its own, and the
count of all needs a collective.
"""

from __future__ import annotations

from typing import Any, List, Sequence

from .axes import MIXED, Axes
from .layout import Chosen, Layout, Product
from .placements import Index, Placement, Shard, Unknown
from .rule import Placed, Rule

OUT_OF_ORDER = "chooses elements of rows, along another axis than the first, so that those of a rank are not together"


class Where(Axes):
    """The positions of elements that are not 0: for each of them a column, with a number for each axis."""

    def __init__(self, ndim: int, mask: Any) -> None:
        self.mask = mask
        super().__init__([[0, *[MIXED] * (ndim - 1)]], [[MIXED, 0]], reduce=[None])

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        (one,) = inputs
        if isinstance(one, Shard) and (one.axis or not one.layout.in_order):
            return Placed([Unknown(OUT_OF_ORDER)])
        placed = super().place(inputs, exact)
        (found,) = placed.outputs
        if isinstance(found, Shard):
            after = _of_mask(found, self.mask)._replace(positions=Index.ROWS, of=found.layout)
            placed = placed._replace(outputs=[after])
        return placed


class Coordinate(Rule):
    """Of the positions of elements their numbers along one axis: only those along the first count rows."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        one = inputs[0]
        if isinstance(one, Shard):
            one = one._replace(axis=0) if self.axis == 0 else one._replace(axis=0, positions=Index.NO, of=Layout())
        return Placed([one])


class Coordinates(Rule):
    """The positions of elements that are not 0: a vector of numbers for each axis."""

    def __init__(self, ndim: int, mask: Any) -> None:
        self.where, self.axes = Where(ndim, mask), [Coordinate(axis) for axis in range(ndim)]

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        placed = self.where.place(inputs, exact)
        found = [axis.place(placed.outputs, exact).outputs[0] for axis in self.axes]
        return placed._replace(outputs=found)


class Masked(Axes):
    """The elements that a mask of the first axes chooses, or the array with these set or added to.

    Parameters
    ----------
    ndim, of_mask : int
        Dimensions of the array and of the mask, which is the last input.
    mask : symbol
    of_value : sequence of bool, optional
        If elements are set, or added to: along which axes the second input is of length 1.
    sets : bool
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

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        array, mask = inputs[0], inputs[-1]
        if not any(isinstance(one, Shard) for one in (array, mask)):
            if any(isinstance(one, Shard) for one in inputs):
                return Placed([Unknown("sets elements of what every rank has to those of its rows")])
            return super().place(inputs, exact)
        for one in (array, mask):
            if isinstance(one, Shard) and (one.axis or one.positions or not one.layout.in_order):
                return Placed([Unknown(OUT_OF_ORDER)])
        inputs = list(inputs)
        if self.changes and isinstance(inputs[1], Shard) and isinstance(array, Shard):
            if inputs[1].layout != _of_mask(array, self.mask).layout:
                return Placed([Unknown("sets elements that a mask chooses to those of other rows")])
            inputs[1] = inputs[1]._replace(layout=array.layout)
        inputs = [one._replace(uniform=False) if isinstance(one, Shard) else one for one in inputs]
        placed = super().place(inputs, exact)
        (found,) = placed.outputs
        if isinstance(found, Shard) and not self.changes:
            placed = placed._replace(outputs=[_of_mask(found, self.mask)])
        return placed


def _of_mask(rows: Shard, mask: Any) -> Shard:
    return rows._replace(layout=rows.layout._replace(inner=Product.of(Chosen(mask))), uniform=False, loose=False)
