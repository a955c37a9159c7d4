"""Placement rules for operations on shapes; a length that depends on the rank's rows marks the axis of rows."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Union

from .arithmetic import Kind, computed
from .axes import MIXED, ONE, Axes, is_zero
from .layout import MERGED, ONE_ELEMENT, ROWS, Product, RowLayout, over, product
from .placements import REPLICATE, ZERO, Index, Length, Placement, Replicate, Shard, Size, Stream, Unknown
from .rule import NoRemainder, PlacementRule, RuleResult


class ShapeOf(PlacementRule):
    """Placement rule for an array's shape, or for its length along one axis; ``length`` returns an axis's length."""

    def __init__(
        self, ndim: int, axis: Optional[int] = None, length: Callable[[int], Optional[Product]] = lambda axis: None
    ) -> None:
        self.ndim, self.axis, self.length = ndim, axis, length

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        (one,) = inputs
        if not isinstance(one, Shard):
            return RuleResult([REPLICATE])
        axes = range(self.ndim) if self.axis is None else [self.axis]
        rows = Length(None)
        if not one.loose:
            is_even = one.layout.is_even
            rows = Length(1 if is_even else None, one.layout, one.layout.times if is_even else None)
        lengths = [rows if axis == one.axis else Length(0, None, self.length(axis)) for axis in axes]
        return RuleResult([Size(tuple(lengths))])


#: A vector's elements, None for each unknown element; None instead of a sequence if their number is unknown.
Values = Optional[Sequence[Optional[Product]]]


class JoinedShape(PlacementRule):
    """Placement rule for joining numbers or vectors into a vector, which is a shape if some of them are lengths.

    ``values`` returns the known elements of each input; ``otherwise`` is the rule for inputs without lengths.
    """

    def __init__(self, values: Callable[[], Sequence[Values]], otherwise: PlacementRule) -> None:
        self.values, self.otherwise = values, otherwise

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        if not any(isinstance(one, Size) for one in inputs) or not all(
            isinstance(one, (Size, Replicate)) for one in inputs
        ):
            return self.otherwise.place(inputs, exact)
        lengths: List[Length] = []
        for one, values in zip(inputs, self.values()):
            found = _lengths(one, values)
            if found is None:
                return RuleResult([Unknown("joins lengths and a vector of unknown length")])
            lengths += found
        return RuleResult([Size(tuple(lengths))])


def _lengths(one: Any, values: Values) -> Optional[List[Length]]:
    """Return the elements of a vector of lengths, or of numbers that are equal on all ranks."""
    if isinstance(one, Size):
        return list(one.lengths)
    return None if values is None else [Length(one.power, None, None if one.power else value) for value in values]


class Element(PlacementRule):
    """Placement rule for elements of a vector that may be a shape, selected by a constant position, slice or list."""

    def __init__(self, index: Any, otherwise: PlacementRule) -> None:
        self.index, self.otherwise = index, otherwise

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        one = inputs[0]
        if not isinstance(one, Size):
            return self.otherwise.place(inputs, exact)
        if isinstance(self.index, list):
            return RuleResult([Size(tuple(one.lengths[k] for k in self.index))])
        found = one.lengths[self.index]
        return RuleResult([Size((found,) if isinstance(found, Length) else tuple(found))])


class Changed(PlacementRule):
    """Placement rule for changing elements of a vector that may be a shape; see `Element` and `JoinedShape`."""

    def __init__(
        self, index: Any, values: Callable[[], Sequence[Values]], sets: bool, otherwise: PlacementRule
    ) -> None:
        self.index, self.values, self.sets, self.otherwise = index, values, sets, otherwise

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        both = inputs[:2]
        if any(isinstance(one, Size) for one in both) and all(isinstance(one, (Size, Replicate)) for one in both):
            before, new = (_lengths(one, values) for one, values in zip(both, self.values()))
            if before is not None and new is not None:
                index = list(range(len(before)))
                chosen = self.index if isinstance(self.index, list) else index[self.index]
                for i, k in enumerate(chosen if isinstance(chosen, list) else [chosen]):
                    after = new[i % len(new)]
                    before[k] = after if self.sets else _sum(before[k], after)
                return RuleResult([Size(tuple(before))])
        return self.otherwise.place(inputs, exact)


def _sum(one: Length, other: Length) -> Length:
    (power, *others) = {length.power for length in (one, other) if length.times != Product(0)} or {0}
    return computed(Kind.SUM, [one, other], None if others else power, False)[0]


class Filled(PlacementRule):
    """Placement rule for an array of a given shape, filled with a value or uninitialized.

    ``shape`` lists the inputs that form the shape: one vector, or a number per axis. All other inputs are values.
    ``values`` marks their axes of length 1, aligned with the last axes of the shape (None for unaligned axes).
    """

    def __init__(self, values: Sequence[Sequence[Optional[bool]]], ndim: int, shape: Sequence[int]) -> None:
        self.ndim, self.shape = ndim, list(shape)
        self.labels: List[List[Any]] = []
        for pattern in values:
            axes = range(ndim - len(pattern), ndim)
            self.labels.append([MIXED if one is None else ONE if one else axis for axis, one in zip(axes, pattern)])

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        positions = [i for i in range(len(inputs)) if i not in self.shape]
        values, found = [inputs[i] for i in positions], rows_of([inputs[i] for i in self.shape])
        if isinstance(found, Unknown):
            return RuleResult([found])
        if found is None:
            placed = self._without_rows(values, exact)
        else:  # as if the values were combined with an array that has rows along that axis
            rule = Axes([*self.labels, range(self.ndim)], [range(self.ndim)], moves=True, shapes_only=[len(values)])
            placed = rule.place([*values, Shard(found.axis, layout=found.layout, uniform=True)], exact)
            if all(map(is_zero, values)) and isinstance(placed.outputs[0], Shard):
                placed = placed._replace(outputs=[placed.outputs[0]._replace(zero=True)])
        return placed._replace(whole=frozenset(positions[i] for i in placed.whole))

    def _without_rows(self, values: Sequence[Placement], exact: bool) -> RuleResult:
        if not values:
            return RuleResult([ZERO])  # its contents will be overwritten
        if any(isinstance(one, Shard) for one in values):
            return RuleResult([Unknown("broadcasts rows to a shape with no length computed from the number of rows")])
        return Axes(self.labels, [range(self.ndim)], [[i] for i in range(len(values))]).place(values, exact)


WITHOUT_ROWS = Unknown("draws random numbers in a shape without rows, so they differ from rank to rank")


class Drawn(Filled):
    """Placement rule for random numbers of a given shape; the stream's state is the first input and output.

    ``is_single`` means that each number is drawn independently, unlike the elements of a permutation.
    """

    def __init__(
        self, values: Sequence[Sequence[Optional[bool]]], ndim: int, shape: Sequence[int], is_single: bool = True
    ) -> None:
        super().__init__(values, ndim, shape)
        self.is_single = is_single

    @classmethod
    def of_labels(
        cls, values: Sequence[Sequence[Any]], ndim: int, shape: Sequence[int], is_single: bool = True
    ) -> Drawn:
        """Return a rule built from labels instead of patterns; values may have axes that the result lacks.

        Without a shape, the numbers have the broadcast shape of the values.
        """
        rule = cls([()] * len(values), ndim, shape, is_single)
        rule.labels = [list(labels) for labels in values]
        return rule

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        stream = inputs[0] if isinstance(inputs[0], Stream) else Stream(None)
        placed = self._drawn([REPLICATE, *inputs[1:]], exact)
        drawn = placed.outputs[0]
        if drawn is WITHOUT_ROWS:
            drawn = REPLICATE if stream.common else Unknown(WITHOUT_ROWS.why, stream.key)
        elif isinstance(drawn, Shard) and stream.common:
            drawn = Unknown(
                "draws numbers for rows and numbers that all ranks share, both from one stream: use two streams"
            )
        return placed._replace(outputs=[inputs[0], drawn])

    def _drawn(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        lengths = [length for i in self.shape for length in getattr(inputs[i], "lengths", ())]
        if len(lengths) == 1 and lengths[0] == Length(None) and self.ndim == 1 and not any(map(any_axes, self.labels)):
            # There may be more or fewer numbers than rows. The numbers are interchangeable; some are selected later.
            return RuleResult([Shard(0, layout=MERGED, uniform=True, loose=True)])
        placed = super().place(inputs, exact)
        drawn = placed.outputs[0]
        if isinstance(drawn, Shard) and not self.is_single:
            drawn = drawn._replace(uniform=False)
        return placed._replace(outputs=[drawn._replace(zero=False) if isinstance(drawn, Shard) else drawn])

    def _without_rows(self, values: Sequence[Placement], exact: bool) -> RuleResult:
        if not self.shape and any(isinstance(one, Shard) for one in values):
            return Axes(self.labels, [range(self.ndim)]).place(values, exact)
        common = all(isinstance(one, Replicate) and one.power == 0 for one in values)
        return RuleResult([WITHOUT_ROWS if common else Unknown("draws from a distribution that differs between ranks")])


def any_axes(labels: Sequence[Any]) -> bool:
    return any(label != ONE for label in labels)


QUOTIENTS = (
    "; write a quotient with //, with a length such as x.shape[1] as its divisor, or use exact=True, which checks that "
    "there is no remainder"
)


class RowAxis(NamedTuple):
    """The axis of rows in a shape, and the layout of the rows."""

    axis: int
    layout: RowLayout


def rows_of(shape: Sequence[Placement]) -> Union[None, RowAxis, Unknown]:
    """Return the axis of rows in a shape with these placements; None if it has no rows, `Unknown` if not supported."""
    lengths: List[Length] = []
    for one in shape:
        if isinstance(one, Size):
            lengths += one.lengths
        elif is_fixed(one):
            lengths.append(Length())
        else:
            return Unknown("has a shape that depends on the values of rows")
    axes = [axis for axis, length in enumerate(lengths) if length.power != 0]
    if len(axes) > 1:
        return Unknown("has two axes whose lengths depend on the number of rows")
    if not axes:
        return None
    length = lengths[axes[0]]
    if length.power != 1 and not length.is_counted:
        # For example, a loop has one more state than steps.
        return Unknown(
            "has a length that depends on how many rows the rank has, but not in proportion, as in a loop over the rows"
            " (use synkhronos.sharded if the rows are not along the first axis)" + QUOTIENTS
        )
    return RowAxis(axes[0], length.of_axis)


class Positions(PlacementRule):
    """Placement rule for ``arange(start, stop, step)``: one position per row, if ``stop`` is the number of rows.

    ``step`` is None unless the range counts from 0 in known steps.
    """

    def __init__(self, step: Optional[Product]) -> None:
        self.step = step

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        found = rows_of(inputs)
        if found is None:
            return RuleResult([REPLICATE])
        if not isinstance(found, Unknown) and found.axis == 1:
            if self.step == ONE_ELEMENT:
                return RuleResult([Shard(0, layout=found.layout, positions=Index.ROWS, of=found.layout)])
            count = over(found.layout.times, self.step)
            if count is not None and self.step is not None:  # count is the number of positions per row
                layout = ROWS if count == ONE_ELEMENT else RowLayout(None, None, count)
                return RuleResult([Shard(0, layout=layout, positions=Index.COMPUTED, of=layout, size=self.step)])
        return RuleResult([Unknown("counts up to a number that depends on how many rows the rank has" + QUOTIENTS)])


def is_fixed(placement: Placement) -> bool:
    """Return whether all ranks have the same value."""
    return isinstance(placement, Replicate) and placement.power == 0


class Reshaped(PlacementRule):
    """Placement rule for a reshape.

    ::

        before    (t, rows, f)    t precedes the rows, and f follows them
        after     (t * rows, f)   f still follows the rows, and t precedes them in their axis
                  (t, rows * f)   t still precedes the rows
                  (rows, t * f)   neither holds, so the placement is unknown unless t is 1

    ``before`` and ``after`` are the axes' lengths, None if unknown or -1; ``free`` is the axis given as -1. ``same``,
    which is slow, maps lengths to the same length if other operations require them to be equal.
    """

    def __init__(
        self,
        before: Sequence[Optional[Product]],
        after: Sequence[Optional[Product]],
        free: Optional[int] = None,
        same: Optional[Callable[[Product], Product]] = None,
    ) -> None:
        self.before, self.after, self.free, self.same = list(before), list(after), free, same

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        one, shape = inputs[0], inputs[1:]
        found = rows_of(shape)
        if isinstance(found, Unknown):
            return RuleResult([found])
        if isinstance(one, Size):
            return RuleResult([one] if len(self.after) <= 1 else [Unknown("makes an array of lengths")])
        if not isinstance(one, Shard):
            if found is None:
                return RuleResult([one])
            return RuleResult([Unknown("reshapes a replicated value to a shape with the rank's own number of rows")])
        if found is None and self.free is not None:
            found = RowAxis(self.free, MERGED)
        if found is None:
            why = "reshapes rows to a shape with no length computed from the number of rows: use x.shape[0], or -1"
            return RuleResult([Unknown(why)])
        axes = _Axes(self.before, self._after(shape))
        moved = axes.moved(one, found)
        if moved is None and self.same is not None:
            moved = axes.map(self.same).moved(one, found)
        why = "may mix elements of different rows: write lengths as x.shape[1] etc., where x is the array to reshape"
        # If only the shape is needed, the reshape is not computed, so it cannot detect a remainder.
        is_checked = moved is not None and found.axis == self.free and moved.layout.inner is None
        return RuleResult([moved or Unknown(why)], equal=[NoRemainder()] if is_checked else [])

    def _after(self, shape: Sequence[Placement]) -> List[Optional[Product]]:
        lengths = [length for one in shape for length in getattr(one, "lengths", ())]
        if len(lengths) != len(self.after):
            return self.after
        return [
            length.times if known is None and length.power == 0 and axis != self.free else known
            for axis, (known, length) in enumerate(zip(self.after, lengths))
        ]


class _Axes(NamedTuple):
    """The lengths of the axes before and after a reshape."""

    before: Sequence[Optional[Product]]
    after: Sequence[Optional[Product]]

    def map(self, same: Callable[[Product], Product]) -> _Axes:
        return _Axes(*[[one if one is None else same(one) for one in lengths] for lengths in self])

    def moved(self, one: Shard, rows: RowAxis) -> Optional[Shard]:
        """Return the placement after a reshape that moves rows to a new axis; None if no placement describes it."""
        if one.layout.is_unordered and not one.uniform:
            return self._ordered(one, rows)
        layout = self._layout(one, rows)
        if (layout is None and not one.uniform) or not one.layout.is_even and (layout or rows.layout).is_even:
            return None
        return one._replace(axis=rows.axis, layout=layout or rows.layout)

    def _layout(self, one: Shard, rows: RowAxis) -> Optional[RowLayout]:
        axis, new = one.axis, rows.axis
        outer = product([*self.before[:axis], one.layout.outer])
        inner = product([one.layout.inner, *self.before[axis + 1 :]])
        before, after = product(self.after[:new]), product(self.after[new + 1 :])
        # Checking one factor is enough: before * (new outer * rows * new inner) * after equals outer * rows * inner.
        as_before = _are_equal(outer, product([before, rows.layout.outer]))
        if rows.layout.is_known and (as_before or _are_equal(inner, product([rows.layout.inner, after]))):
            return rows.layout
        size = over(inner, after)  # number of elements of a row in its new axis
        if _are_equal(outer, before):
            return RowLayout(ONE_ELEMENT, size)
        times = over(outer, before)
        # Each new row must be within one old row, so axes after the new axis must be part of the axes after the rows.
        if times is None or size is not None or over(product(self.before[axis + 1 :]), after) is not None:
            return None if times is None else RowLayout(times, size)
        # Alternatively, rows stay whole, because the axes up to the rows have the same total length before and after.
        is_theirs = one.layout == ROWS and _are_equal(product(self.before[: axis + 1]), product(self.after[: new + 1]))
        return RowLayout(times, ONE_ELEMENT) if is_theirs else None

    def _ordered(self, one: Shard, rows: RowAxis) -> Optional[Shard]:
        """Return the placement of an axis of computed length that is unchanged or split into several axes."""
        axis, new = one.axis, rows.axis
        start, end = product(self.before[:axis]), product(self.before[axis + 1 :])
        starts = [k for k in range(new + 1) if _are_equal(start, product(self.after[:k]))]
        ends = [k for k in range(new + 1, len(self.after) + 1) if _are_equal(end, product(self.after[k:]))]
        if not starts or not ends:
            return None
        outer, inner = product(self.after[starts[0] : new]), product(self.after[new + 1 : ends[-1]])
        if outer is None or inner is None:
            return None
        layout = rows.layout
        if over(one.layout.per_row, outer.times(inner)) == ONE_ELEMENT:
            layout = ROWS
        if layout.outer is not None and layout.inner is not None:
            whole = RowLayout(outer.times(layout.outer), layout.inner.times(inner))
        elif outer == inner == ONE_ELEMENT:
            layout = whole = one.layout
        else:
            return None
        return one._replace(axis=new, layout=layout, of=whole if one.positions else one.of)


def _are_equal(one: Optional[Product], other: Optional[Product]) -> bool:
    return one is not None and one == other
