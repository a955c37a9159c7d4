"""Operations that are given a shape, or give one: a length that follows from the rank's rows makes an axis of rows."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Union

from .axes import MIXED, ONE, Axes, is_zero
from .layout import MERGED, ONE_ELEMENT, ROWS, Layout, Product, product
from .placements import REPLICATE, ZERO, Index, Length, Placement, Replicate, Shard, Size, Stream, Unknown
from .rule import Placed, Rule


class ShapeOf(Rule):
    """The shape of an array, a vector; or its length along one axis."""

    def __init__(self, ndim: int, axis: Optional[int] = None) -> None:
        self.ndim, self.axis = ndim, axis

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        (one,) = inputs
        if not isinstance(one, Shard):
            return Placed([REPLICATE])
        axes = range(self.ndim) if self.axis is None else [self.axis]
        if one.loose:
            return Placed([Size(tuple(Length(None if axis == one.axis else 0) for axis in axes))])
        rows = Length(1 if one.layout.is_even else None, one.layout)
        return Placed([Size(tuple(rows if axis == one.axis else Length() for axis in axes))])


class Together(Rule):
    """Numbers, or vectors of them, joined to one vector: a shape, if some of them are lengths.

    Parameters
    ----------
    lengths : sequence of (int or None)
        How many elements each input has; None if that is not known.
    otherwise : Rule
        For inputs that are no lengths.
    """

    def __init__(self, lengths: Sequence[Optional[int]], otherwise: Rule) -> None:
        self.lengths, self.otherwise = lengths, otherwise

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        if not any(isinstance(one, Size) for one in inputs) or not all(
            isinstance(one, (Size, Replicate)) for one in inputs
        ):
            return self.otherwise.place(inputs, exact)
        lengths: List[Length] = []
        for one, length in zip(inputs, self.lengths):
            if isinstance(one, Size):
                lengths += one.lengths
            elif length is None:
                return Placed([Unknown("joins lengths to a vector of unknown length")])
            elif isinstance(one, Replicate):
                lengths += [Length(one.power)] * length
        return Placed([Size(tuple(lengths))])


class Element(Rule):
    """An element, or a slice with constant ends, of a vector that may be a shape."""

    def __init__(self, index: Any, otherwise: Rule) -> None:
        self.index, self.otherwise = index, otherwise

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        one = inputs[0]
        if not isinstance(one, Size):
            return self.otherwise.place(inputs, exact)
        found = one.lengths[self.index]
        return Placed([Size((found,) if isinstance(found, Length) else tuple(found))])


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
        return Placed(placed.outputs, frozenset(positions[i] for i in placed.whole))

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
        return Placed([inputs[0], drawn], placed.whole)

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
        return Placed([drawn._replace(zero=False) if isinstance(drawn, Shard) else drawn], placed.whole)

    def _without_rows(self, values: Sequence[Placement], exact: bool) -> Placed:
        if not self.shape and any(isinstance(one, Shard) for one in values):
            return Axes(self.labels, [range(self.ndim)]).place(values, exact)
        common = all(isinstance(one, Replicate) and one.power == 0 for one in values)
        return Placed([WITHOUT_ROWS if common else Unknown("draws from a distribution that differs between ranks")])


def any_axes(labels: Sequence[Any]) -> bool:
    return any(label != ONE for label in labels)


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
            " (if they lie along another axis than the first: synkhronos.sharded)"
        )
    return Rows(axes[0], length.layout or MERGED)


class Positions(Rule):
    """``arange(start, stop, step)``: as many positions as the rank has rows, if that is ``stop``.

    Parameters
    ----------
    from_zero : bool
        Whether it counts from 0 in steps of 1.
    """

    def __init__(self, from_zero: bool) -> None:
        self.from_zero = from_zero

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        found = rows_of(inputs)
        if found is None:
            return Placed([REPLICATE])
        if isinstance(found, Unknown) or not (found.axis == 1 and self.from_zero):
            return Placed([Unknown("counts up to a number that depends on how many rows the rank has")])
        return Placed([Shard(0, layout=found.layout, positions=Index.ROWS, of=found.layout)])


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
    """

    def __init__(
        self, before: Sequence[Optional[Product]], after: Sequence[Optional[Product]], free: Optional[int] = None
    ) -> None:
        self.before, self.after, self.free = list(before), list(after), free

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
        return Placed([self._moved(one, found)])

    def _moved(self, one: Shard, rows: Rows) -> Placement:
        """Return the placement with the rows along another axis, or along one of another length."""
        layout = self._layout(one, rows)
        if (layout is None and not one.uniform) or not one.layout.is_even and (layout or rows.layout).is_even:
            return Unknown(
                "may put elements of different rows together: give lengths as x.shape[1] and so on, of what is reshaped"
            )
        return one._replace(axis=rows.axis, layout=layout or rows.layout)

    def _layout(self, one: Shard, rows: Rows) -> Optional[Layout]:
        axis, new = one.axis, rows.axis
        outer = product([*self.before[:axis], one.layout.outer])
        inner = product([one.layout.inner, *self.before[axis + 1 :]])
        before, after = product(self.after[:new]), product(self.after[new + 1 :])
        # before * (new outer * rows * new inner) * after is as much as outer * rows * inner: one equality is enough.
        as_before = _are_equal(outer, product([before, rows.layout.outer]))
        if None not in rows.layout and (as_before or _are_equal(inner, product([rows.layout.inner, after]))):
            return rows.layout
        size = _over(inner, after)  # of a row in its new axis
        if _are_equal(outer, before):
            return Layout(ONE_ELEMENT, size)
        times = _over(outer, before)
        # Each new row has to be of one row: what is after the new axis, part of what is after the rows.
        if times is None or size is not None or _over(product(self.before[axis + 1 :]), after) is not None:
            return None if times is None else Layout(times, size)
        # Or as many new rows as there were, if the axis was theirs alone.
        is_theirs = one.layout == ROWS and _are_equal(product(self.before[: axis + 1]), product(self.after[: new + 1]))
        return Layout(times, ONE_ELEMENT) if is_theirs else None


def _are_equal(one: Optional[Product], other: Optional[Product]) -> bool:
    return one is not None and one == other


def _over(one: Optional[Product], other: Optional[Product]) -> Optional[Product]:
    return None if one is None or other is None else one.over(other)
