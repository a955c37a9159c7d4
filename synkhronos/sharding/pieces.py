"""Axes that are put together of pieces with rows, and divided into them again.

::

    x, y          two pieces        on rank 0: x0 y0, on rank 1: x1 y1
    join(x, y)    2 times all rows  x0 y0 | x1 y1: not in order, but each rank has its rows of both
    [:x.shape[0]], [x.shape[0]:]    x0 | x1, y0 | y1
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from .axes import MIXED, Axes
from .layout import MERGED, Layout, Product
from .placements import Index, Length, Placement, Shard, Size
from .rule import Placed


class Joined(Axes):
    """Arrays joined along an axis.

    Parameters
    ----------
    count, ndim, axis : int
        How many arrays, of how many dimensions, along which axis.
    has_axis : bool
        Whether the axis itself is the first input.
    """

    def __init__(self, count: int, ndim: int, axis: int, has_axis: bool = True) -> None:
        self.axis, self.first = axis, int(has_axis)
        labels = [MIXED if one == axis else one for one in range(ndim)]
        arrays = range(self.first, self.first + count)
        super().__init__([*[[]] * self.first, *[labels] * count], [labels], [arrays])

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        arrays = [one for one in inputs[self.first :] if isinstance(one, Shard) and one.axis == self.axis]
        if len(arrays) == len(inputs) - self.first and len({(one.power, one.loose) for one in arrays}) == 1:
            # The rows of the one and then those of the others, on every rank.
            if all(one.loose for one in arrays):
                return Placed([Shard(self.axis, arrays[0].power, MERGED, uniform=True, loose=True)])
            layout = _together([one.layout for one in arrays])
            if layout is not None and not any(one.positions for one in arrays):
                zero = all(one.zero for one in arrays)
                return Placed([Shard(self.axis, arrays[0].power, layout, zero=zero)])
        return super().place(inputs, exact)


class Divided(Axes):
    """An array divided along an axis; the last input is the lengths of the pieces.

    Parameters
    ----------
    count, ndim, axis : int
        Into how many pieces, of how many dimensions, along which axis.
    has_axis : bool
        Whether the axis itself is the second input.
    """

    def __init__(self, count: int, ndim: int, axis: int, has_axis: bool = True) -> None:
        self.axis = axis
        labels: List[Any] = [MIXED if one == axis else one for one in range(ndim)]
        super().__init__([labels, *[[]] * has_axis, [MIXED]], [labels] * count, [[0]])

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        one, lengths = inputs[0], inputs[-1]
        if isinstance(one, Shard) and one.axis == self.axis and isinstance(lengths, Size) and not one.loose:
            lengths_of_rows = [length for length in lengths.lengths if length.power == 1 or length.is_counted]
            known = [length.of_axis.within(one.layout) for length in lengths_of_rows]
            together = _together(known)
            if len(known) == len(self.outputs) and one.positions == Index.NO and together == one.layout:
                return Placed([one._replace(layout=layout, uniform=False) for layout in known])
        return super().place(inputs, exact)


def between(layout: Layout, start: Optional[Length], stop: Optional[Length]) -> Optional[Layout]:
    """Return the layout of a slice of an axis between two lengths; None if it is not known to be whole pieces.

    Parameters
    ----------
    layout : Layout
        Of the axis.
    start, stop : Length, optional
        The ends of the slice, if given.
    """
    whole = _pieces(layout)
    ends: List[Optional[int]] = []
    for end, default in ((start, 0), (stop, whole)):
        if end is None:
            ends.append(default)
            continue
        of_end = end.of_axis.within(layout) if end.power == 1 or end.is_counted else MERGED
        if of_end.inner is None or of_end.inner != layout.inner:
            return None
        if end is stop and of_end == layout and start is None:
            return layout
        ends.append(_pieces(of_end))
    first, last = ends
    if whole is None or first is None or last is None or not first < min(last, whole):
        return None
    return layout._replace(outer=Product(min(last, whole) - first))


def _together(layouts: Sequence[Layout]) -> Optional[Layout]:
    """Return the layout of an axis that consists of pieces; None if it has none."""
    if not layouts or not layouts[0].is_known or len({one.inner for one in layouts}) != 1:
        return None
    first, numbers = layouts[0], [_pieces(one) for one in layouts]
    if len(set(layouts)) == 1:
        assert first.outer is not None
        return first._replace(outer=first.outer.times(Product(len(layouts))))
    total = [one for one in numbers if one is not None]
    return first._replace(outer=Product(sum(total))) if len(total) == len(numbers) else None


def _pieces(layout: Layout) -> Optional[int]:
    """Return how many times all rows are in an axis, if that is a number."""
    return None if layout.outer is None or layout.outer.factors else layout.outer.number
