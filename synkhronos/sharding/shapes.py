"""Operations that are given a shape, or give one: a length that follows from the rank's rows makes an axis of rows."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Union

from .arithmetic import Kind, computed
from .axes import MIXED, ONE, Axes, is_zero
from .layout import MERGED, ONE_ELEMENT, ROWS, Layout, Product, over, product
from .placements import REPLICATE, ZERO, Index, Length, Placement, Replicate, Shard, Size, Stream, Unknown
from .rule import Placed, Rule


class ShapeOf(Rule):
    """The shape of an array, a vector; or its length along one axis.

    Parameters
    ----------
    ndim : int
    axis : int, optional
    length : callable
        From an axis to its length.
    """

    def __init__(
        self, ndim: int, axis: Optional[int] = None, length: Callable[[int], Optional[Product]] = lambda axis: None
    ) -> None:
        self.ndim, self.axis, self.length = ndim, axis, length

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        (one,) = inputs
        if not isinstance(one, Shard):
            return Placed([REPLICATE])
        axes = range(self.ndim) if self.axis is None else [self.axis]
        rows = Length(None)
        if not one.loose:
            is_even = one.layout.is_even
            rows = Length(1 if is_even else None, one.layout, one.layout.times if is_even else None)
        lengths = [rows if axis == one.axis else Length(0, None, self.length(axis)) for axis in axes]
        return Placed([Size(tuple(lengths))])


#: What is known of the elements of a vector; None if it is not known how many there are.
Values = Optional[Sequence[Optional[Product]]]


class Together(Rule):
    """Numbers, or vectors of them, joined to one vector: a shape, if some of them are lengths.

    Parameters
    ----------
    values : callable
        Returns, for each input, what is known of its elements; None if it is not known how many there are.
    otherwise : Rule
        For inputs that are no lengths.
    """

    def __init__(self, values: Callable[[], Sequence[Values]], otherwise: Rule) -> None:
        self.values, self.otherwise = values, otherwise

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        if not any(isinstance(one, Size) for one in inputs) or not all(
            isinstance(one, (Size, Replicate)) for one in inputs
        ):
            return self.otherwise.place(inputs, exact)
        lengths: List[Length] = []
        for one, values in zip(inputs, self.values()):
            found = _lengths(one, values)
            if found is None:
                return Placed([Unknown("joins lengths to a vector of unknown length")])
            lengths += found
        return Placed([Size(tuple(lengths))])


def _lengths(one: Any, values: Values) -> Optional[List[Length]]:
    """Return the elements of a vector of lengths, or of numbers that all ranks have."""
    if isinstance(one, Size):
        return list(one.lengths)
    return None if values is None else [Length(one.power, None, None if one.power else value) for value in values]


class Element(Rule):
    """Some elements of a vector that may be a shape: one at a constant position, those of a slice, or of a list."""

    def __init__(self, index: Any, otherwise: Rule) -> None:
        self.index, self.otherwise = index, otherwise

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        one = inputs[0]
        if not isinstance(one, Size):
            return self.otherwise.place(inputs, exact)
        if isinstance(self.index, list):
            return Placed([Size(tuple(one.lengths[k] for k in self.index))])
        found = one.lengths[self.index]
        return Placed([Size((found,) if isinstance(found, Length) else tuple(found))])


class Changed(Rule):
    """A vector that may be a shape, some elements of which are set, or added to.

    Parameters
    ----------
    index : int, slice or list of int
    values : callable
        Returns what is known of the elements of the vector, and of what they are set to.
    sets : bool
    otherwise : Rule
        For inputs that are no lengths.
    """

    def __init__(self, index: Any, values: Callable[[], Sequence[Values]], sets: bool, otherwise: Rule) -> None:
        self.index, self.values, self.sets, self.otherwise = index, values, sets, otherwise

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        both = inputs[:2]
        if any(isinstance(one, Size) for one in both) and all(isinstance(one, (Size, Replicate)) for one in both):
            before, new = (_lengths(one, values) for one, values in zip(both, self.values()))
            if before is not None and new is not None:
                index = list(range(len(before)))
                chosen = self.index if isinstance(self.index, list) else index[self.index]
                for i, k in enumerate(chosen if isinstance(chosen, list) else [chosen]):
                    after = new[i % len(new)]
                    before[k] = after if self.sets else _sum(before[k], after)
                return Placed([Size(tuple(before))])
        return self.otherwise.place(inputs, exact)


def _sum(one: Length, other: Length) -> Length:
    (power, *others) = {length.power for length in (one, other) if length.times != Product(0)} or {0}
    return computed(Kind.SUM, [one, other], None if others else power, False)[0]


class Filled(Rule):
    """An array of a given shape, filled with a value, or with anything.

    Parameters
    ----------
    values : sequence of sequence of (bool or None)
        For each value, along which of its axes it is of length 1; they are aligned with the last axes of the shape.
        None for axes that are not.
    ndim : int
    shape : sequence of int
        Positions of the inputs that are the shape: one vector, or a number for each axis. The others are the values.
    """

    def __init__(self, values: Sequence[Sequence[Optional[bool]]], ndim: int, shape: Sequence[int]) -> None:
        self.ndim, self.shape = ndim, list(shape)
        self.labels: List[List[Any]] = []
        for pattern in values:
            axes = range(ndim - len(pattern), ndim)
            self.labels.append([MIXED if one is None else ONE if one else axis for axis, one in zip(axes, pattern)])

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        positions = [i for i in range(len(inputs)) if i not in self.shape]
        values, found = [inputs[i] for i in positions], rows_of([inputs[i] for i in self.shape])
        if isinstance(found, Unknown):
            return Placed([found])
        if found is None:
            placed = self._without_rows(values, exact)
        else:  # as if the values were combined with something that has rows along that axis
            rule = Axes([*self.labels, range(self.ndim)], [range(self.ndim)], moves=True, shapes_only=[len(values)])
            placed = rule.place([*values, Shard(found.axis, layout=found.layout, uniform=True)], exact)
            if all(map(is_zero, values)) and isinstance(placed.outputs[0], Shard):
                placed = placed._replace(outputs=[placed.outputs[0]._replace(zero=True)])
        return placed._replace(whole=frozenset(positions[i] for i in placed.whole))

    def _without_rows(self, values: Sequence[Placement], exact: bool) -> Placed:
        if not values:
            return Placed([ZERO])  # whatever is in it is overwritten
        if any(isinstance(one, Shard) for one in values):
            return Placed([Unknown("gives rows a shape in which no length follows from their number")])
        return Axes(self.labels, [range(self.ndim)], [[i] for i in range(len(values))]).place(values, exact)


WITHOUT_ROWS = Unknown("draws random numbers of a shape without rows, which differ from rank to rank")


class Drawn(Filled):
    """Random numbers of a given shape; the state of the stream is the first input and the first output.

    Parameters
    ----------
    values, ndim, shape
        As for `Filled`.
    is_single : bool
        Whether each number is drawn by itself, and not several together (a permutation).
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
        """Return the rule with labels of the values' axes in place of patterns, for values with axes of their own.

        Without a shape, the numbers have that of the values together.
        """
        rule = cls([()] * len(values), ndim, shape, is_single)
        rule.labels = [list(labels) for labels in values]
        return rule

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        stream = inputs[0] if isinstance(inputs[0], Stream) else Stream(None)
        placed = self._drawn([REPLICATE, *inputs[1:]], exact)
        drawn = placed.outputs[0]
        if drawn is WITHOUT_ROWS:
            drawn = REPLICATE if stream.common else Unknown(WITHOUT_ROWS.why, stream.key)
        elif isinstance(drawn, Shard) and stream.common:
            drawn = Unknown(
                "draws numbers for rows, and others that all ranks have in common, from one stream: use two"
            )
        return placed._replace(outputs=[inputs[0], drawn])

    def _drawn(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        """Return the placement of the numbers."""
        lengths = [length for i in self.shape for length in getattr(inputs[i], "lengths", ())]
        if len(lengths) == 1 and lengths[0] == Length(None) and self.ndim == 1 and not any(map(any_axes, self.labels)):
            # More or fewer than rows: one is as good as another.
            return Placed([Shard(0, layout=MERGED, uniform=True, loose=True)])
        placed = super().place(inputs, exact)
        drawn = placed.outputs[0]
        if isinstance(drawn, Shard) and not self.is_single:
            drawn = drawn._replace(uniform=False)
        return placed._replace(outputs=[drawn._replace(zero=False) if isinstance(drawn, Shard) else drawn])

    def _without_rows(self, values: Sequence[Placement], exact: bool) -> Placed:
        if not self.shape and any(isinstance(one, Shard) for one in values):
            return Axes(self.labels, [range(self.ndim)]).place(values, exact)
        common = all(isinstance(one, Replicate) and one.power == 0 for one in values)
        return Placed([WITHOUT_ROWS if common else Unknown("draws from a distribution that differs between ranks")])


def any_axes(labels: Sequence[Any]) -> bool:
    return any(label != ONE for label in labels)


QUOTIENTS = (
    "; if it is a quotient: divide by //, and by a length, such as x.shape[1], or with exact=True, which checks that "
    "there is no remainder"
)


class Rows(NamedTuple):
    """Which axis of a shape is that of rows, and how they lie in it."""

    axis: int
    layout: Layout


def rows_of(shape: Sequence[Placement]) -> Union[None, Rows, Unknown]:
    """Return where a shape that consists of these placements has the rank's rows; None if nowhere."""
    lengths: List[Length] = []
    for one in shape:
        if isinstance(one, Size):
            lengths += one.lengths
        elif is_fixed(one):
            lengths.append(Length())
        else:
            return Unknown("is given a shape that depends on the values of rows")
    axes = [axis for axis, length in enumerate(lengths) if length.power != 0]
    if len(axes) > 1:
        return Unknown("has the number of rows along two axes")
    if not axes:
        return None
    length = lengths[axes[0]]
    if length.power != 1 and not length.is_counted:
        # Such as the states of a loop, of which there is one more than it has steps.
        return Unknown(
            "has a length that depends on how many rows the rank has, but not in proportion, as in a loop over the rows"
            " (if they lie along another axis than the first: synkhronos.sharded)" + QUOTIENTS
        )
    return Rows(axes[0], length.of_axis)


class Positions(Rule):
    """``arange(start, stop, step)``: as many positions as the rank has rows, if that is ``stop``.

    Parameters
    ----------
    step : Product, optional
        If it counts from 0: in which steps.
    """

    def __init__(self, step: Optional[Product]) -> None:
        self.step = step

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        found = rows_of(inputs)
        if found is None:
            return Placed([REPLICATE])
        if not isinstance(found, Unknown) and found.axis == 1:
            if self.step == ONE_ELEMENT:
                return Placed([Shard(0, layout=found.layout, positions=Index.ROWS, of=found.layout)])
            count = over(found.layout.times, self.step)
            if count is not None and self.step is not None:  # as many times the step
                layout = ROWS if count == ONE_ELEMENT else Layout(None, None, count)
                return Placed([Shard(0, layout=layout, positions=Index.COMPUTED, of=layout, size=self.step)])
        return Placed([Unknown("counts up to a number that depends on how many rows the rank has" + QUOTIENTS)])


def is_fixed(placement: Placement) -> bool:
    """Return whether all ranks have the same value."""
    return isinstance(placement, Replicate) and placement.power == 0


class Reshaped(Rule):
    """The same elements in another shape.

    ::

        before    (t, rows, f)    the elements are t * rows * f: what is before the rows, they, what is after them
        after     (t * rows, f)   as much after: t is before the rows in their axis
                  (t, rows * f)   as much before
                  (rows, t * f)   neither: not known; only if t is 1

    Parameters
    ----------
    before, after : sequence of (Product or None)
        The lengths of the axes; None if they are not known, or given as -1.
    free : int, optional
        The axis of the new shape whose length is given as -1.
    same : callable, optional
        Returns, of lengths that are equal because arrays are combined element by element, one; it takes its time.
    """

    def __init__(
        self,
        before: Sequence[Optional[Product]],
        after: Sequence[Optional[Product]],
        free: Optional[int] = None,
        same: Optional[Callable[[Product], Product]] = None,
    ) -> None:
        self.before, self.after, self.free, self.same = list(before), list(after), free, same

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        one, shape = inputs[0], inputs[1:]
        found = rows_of(shape)
        if isinstance(found, Unknown):
            return Placed([found])
        if isinstance(one, Size):
            return Placed([one] if len(self.after) <= 1 else [Unknown("makes an array of lengths")])
        if not isinstance(one, Shard):
            if found is None:
                return Placed([one])
            return Placed([Unknown("gives a value that has all rows on every rank the shape of the rank's own")])
        if found is None and self.free is not None:
            found = Rows(self.free, MERGED)
        if found is None:
            why = "gives rows a shape in which no length follows from their number: use x.shape[0], or -1"
            return Placed([Unknown(why)])
        axes = _Axes(self.before, self._after(shape))
        moved = axes.moved(one, found)
        if moved is None and self.same is not None:
            moved = axes.map(self.same).moved(one, found)
        why = "may put elements of different rows together: give lengths as x.shape[1] and so on, of what is reshaped"
        return Placed([moved or Unknown(why)])

    def _after(self, shape: Sequence[Placement]) -> List[Optional[Product]]:
        """Return the new lengths, also those that were computed from lengths."""
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

    def moved(self, one: Shard, rows: Rows) -> Optional[Shard]:
        """Return the placement with the rows along another axis, or along one of another length; None if none is."""
        if one.layout.is_unordered and not one.uniform:
            return self._ordered(one, rows)
        layout = self._layout(one, rows)
        if (layout is None and not one.uniform) or not one.layout.is_even and (layout or rows.layout).is_even:
            return None
        return one._replace(axis=rows.axis, layout=layout or rows.layout)

    def _layout(self, one: Shard, rows: Rows) -> Optional[Layout]:
        axis, new = one.axis, rows.axis
        outer = product([*self.before[:axis], one.layout.outer])
        inner = product([one.layout.inner, *self.before[axis + 1 :]])
        before, after = product(self.after[:new]), product(self.after[new + 1 :])
        # before * (new outer * rows * new inner) * after is as much as outer * rows * inner: one equality is enough.
        as_before = _are_equal(outer, product([before, rows.layout.outer]))
        if rows.layout.is_known and (as_before or _are_equal(inner, product([rows.layout.inner, after]))):
            return rows.layout
        size = over(inner, after)  # of a row in its new axis
        if _are_equal(outer, before):
            return Layout(ONE_ELEMENT, size)
        times = over(outer, before)
        # Each new row has to be of one row: what is after the new axis, part of what is after the rows.
        if times is None or size is not None or over(product(self.before[axis + 1 :]), after) is not None:
            return None if times is None else Layout(times, size)
        # Or as many new rows as there were, if the axis was theirs alone.
        is_theirs = one.layout == ROWS and _are_equal(product(self.before[: axis + 1]), product(self.after[: new + 1]))
        return Layout(times, ONE_ELEMENT) if is_theirs else None

    def _ordered(self, one: Shard, rows: Rows) -> Optional[Shard]:
        """Return the placement of an axis of a computed length that is left as it is, or separated into several."""
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
            whole = Layout(outer.times(layout.outer), layout.inner.times(inner))
        elif outer == inner == ONE_ELEMENT:
            layout = whole = one.layout
        else:
            return None
        return one._replace(axis=new, layout=layout, of=whole if one.positions else one.of)


def _are_equal(one: Optional[Product], other: Optional[Product]) -> bool:
    return one is not None and one == other
