"""Placement rules for joining arrays along the axis of the rows, and for splitting the result again.

::

    x, y          two pieces        on rank 0: x0 y0, on rank 1: x1 y1
    join(x, y)    2 times all rows  x0 y0 | x1 y1: not in order, but each rank has its rows of x and y
    [:x.shape[0]], [x.shape[0]:]    x0 | x1, y0 | y1
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from .axes import MIXED, Axes
from .layout import MERGED, Product, RowLayout
from .placements import Index, Length, Placement, Shard, Size
from .rule import RuleResult


class Joined(Axes):
    """Placement rule for joining ``count`` arrays along an axis; with ``has_axis``, the axis is the first input."""

    def __init__(self, count: int, ndim: int, axis: int, has_axis: bool = True) -> None:
        self.axis, self.first = axis, int(has_axis)
        labels = [MIXED if one == axis else one for one in range(ndim)]
        arrays = range(self.first, self.first + count)
        super().__init__([*[[]] * self.first, *[labels] * count], [labels], [arrays])

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        arrays = [one for one in inputs[self.first :] if isinstance(one, Shard) and one.axis == self.axis]
        if len(arrays) == len(inputs) - self.first and len({(one.power, one.loose) for one in arrays}) == 1:
            # On every rank, the rows of the first array precede the rows of the other arrays.
            if all(one.loose for one in arrays):
                return RuleResult([Shard(self.axis, arrays[0].power, MERGED, uniform=True, loose=True)])
            layout = _together([one.layout for one in arrays])
            if layout is not None and not any(one.positions for one in arrays):
                zero = all(one.zero for one in arrays)
                return RuleResult([Shard(self.axis, arrays[0].power, layout, zero=zero)])
        return super().place(inputs, exact)


class Divided(Axes):
    """Placement rule for a split; the last input contains the lengths, and the second is the axis if ``has_axis``."""

    def __init__(self, count: int, ndim: int, axis: int, has_axis: bool = True) -> None:
        self.axis = axis
        labels: List[Any] = [MIXED if one == axis else one for one in range(ndim)]
        super().__init__([labels, *[[]] * has_axis, [MIXED]], [labels] * count, [[0]])

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        one, lengths = inputs[0], inputs[-1]
        if isinstance(one, Shard) and one.axis == self.axis and isinstance(lengths, Size) and not one.loose:
            lengths_of_rows = [length for length in lengths.lengths if length.power == 1 or length.is_counted]
            known = [length.of_axis.within(one.layout) for length in lengths_of_rows]
            together = _together(known)
            if len(known) == len(self.outputs) and one.positions == Index.NO and together == one.layout:
                return RuleResult([one._replace(layout=layout, uniform=False) for layout in known])
        return super().place(inputs, exact)


def between(layout: RowLayout, start: Optional[Length], stop: Optional[Length]) -> Optional[RowLayout]:
    """Return the layout of a slice of an axis between two lengths; None if the slice might cut a piece."""
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


def _together(layouts: Sequence[RowLayout]) -> Optional[RowLayout]:
    """Return the layout of an axis joined from pieces; None if no layout describes it."""
    if not layouts or not layouts[0].is_known or len({one.inner for one in layouts}) != 1:
        return None
    first, numbers = layouts[0], [_pieces(one) for one in layouts]
    if len(set(layouts)) == 1:
        assert first.outer is not None
        return first._replace(outer=first.outer.times(Product(len(layouts))))
    total = [one for one in numbers if one is not None]
    return first._replace(outer=Product(sum(total))) if len(total) == len(numbers) else None


def _pieces(layout: RowLayout) -> Optional[int]:
    """Return how many times the axis repeats all rows; None if this number is unknown."""
    return None if layout.outer is None or layout.outer.factors else layout.outer.number
