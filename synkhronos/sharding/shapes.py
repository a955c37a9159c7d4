"""Operations that are given a shape, or give one: a length that follows from the rank's rows makes an axis of rows."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Union

from .axes import ONE, Axes, is_zero
from .placements import REPLICATE, ZERO, Index, Length, Order, Placement, Replicate, Shard, Size, Unknown
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
        rows = Length(1, one.order == Order.ROWS)
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
    values : sequence of sequence of bool
        For each value, along which of its axes it is of length 1; they are aligned with the last axes of the shape.
    ndim : int
    shape : sequence of int
        Positions of the inputs that are the shape: one vector, or a number for each axis. The others are the values.
    """

    def __init__(self, values: Sequence[Sequence[bool]], ndim: int, shape: Sequence[int]) -> None:
        self.ndim, self.shape = ndim, list(shape)
        self.labels: List[List[Any]] = []
        for pattern in values:
            axes = range(ndim - len(pattern), ndim)
            self.labels.append([ONE if one else axis for axis, one in zip(axes, pattern)])

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        positions = [i for i in range(len(inputs)) if i not in self.shape]
        values, found = [inputs[i] for i in positions], rows_of([inputs[i] for i in self.shape])
        if isinstance(found, Unknown):
            return Placed([found])
        if found is None:
            placed = self._without_rows(values, exact)
        else:  # as if the values were combined with something that has rows along that axis
            rule = Axes([*self.labels, [found.axis]], [range(self.ndim)])
            placed = rule.place([*values, Shard(0, order=Order.ANY)], exact)
            if all(map(is_zero, values)) and isinstance(placed.outputs[0], Shard):
                placed = placed._replace(outputs=[placed.outputs[0]._replace(zero=True)])
        return Placed(placed.outputs, frozenset(positions[i] for i in placed.whole))

    def _without_rows(self, values: Sequence[Placement], exact: bool) -> Placed:
        if not values:
            return Placed([ZERO])  # whatever is in it is overwritten
        return Axes(self.labels, [range(self.ndim)], [[i] for i in range(len(values))]).place(values, exact)


class Drawn(Filled):
    """Random numbers of a given shape; the state of the stream is the first input and the first output."""

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        lengths = [length for i in self.shape for length in getattr(inputs[i], "lengths", ())]
        if len(lengths) == 1 and lengths[0].power != 0:  # whatever their number: one is as good as another
            return Placed([REPLICATE, Shard(0, order=Order.ANY)])
        placed = super().place(inputs, exact)
        return Placed([REPLICATE, *placed.outputs], placed.whole)

    def _without_rows(self, values: Sequence[Placement], exact: bool) -> Placed:
        placed = Axes(self.labels, [range(self.ndim)]).place(values, exact)
        if isinstance(placed.outputs[0], Shard):  # the parameters have rows
            return Placed([placed.outputs[0]._replace(order=Order.ANY)], placed.whole)
        why = "draws random numbers of a shape without rows, which differ from rank to rank"
        return Placed([Unknown(why)], placed.whole)


class Rows(NamedTuple):
    """Which axis of a shape is that of rows, and whether its length is their number."""

    axis: int
    is_rows: bool


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
    if length.power != 1:
        return Unknown("has a length that depends on how many rows the rank has, but not in proportion")
    return Rows(axes[0], length.is_rows)


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
        if found.is_rows:
            return Placed([Shard(0, index=Index.ROWS)])
        return Placed([Shard(0, order=Order.MERGED, index=Index.COMPUTED)])


def is_fixed(placement: Placement) -> bool:
    """Return whether all ranks have the same value."""
    return isinstance(placement, Replicate) and placement.power == 0


class Reshaped(Rule):
    """The same elements in another shape.

    Parameters
    ----------
    ndim, new_ndim : int
    free : int, optional
        The axis of the new shape whose length is given as -1.
    """

    def __init__(self, ndim: int, new_ndim: int, free: Optional[int] = None) -> None:
        self.ndim, self.new_ndim, self.free = ndim, new_ndim, free

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        one, shape = inputs[0], inputs[1:]
        found = rows_of(shape)
        if isinstance(found, Unknown):
            return Placed([found])
        if isinstance(one, Size):
            return Placed([one] if self.new_ndim <= 1 else [Unknown("makes an array of lengths")])
        if not isinstance(one, Shard):
            if found is None:
                return Placed([one])
            return Placed([Unknown("gives a value that has all rows on every rank the shape of the rank's own")])
        if found is None and self.free is not None:
            found = Rows(self.free, False)
        if found is None:
            why = "gives rows a shape in which no length follows from their number: use x.shape[0], or -1"
            return Placed([Unknown(why)])
        return Placed([self._moved(one, found)])

    def _moved(self, one: Shard, rows: Rows) -> Placement:
        """Return the placement if the rows come to lie along another axis, or along one of another length."""
        if one.order == Order.ANY:
            return one._replace(axis=rows.axis)
        before, same = rows.axis < one.axis, rows.axis == one.axis
        order = None
        if one.order == Order.STRIDED:  # merged with axes before it
            if same and not rows.is_rows and self.new_ndim <= self.ndim:
                order = Order.STRIDED
            elif not before and not same:  # and now separated from them
                order = Order.ROWS if rows.is_rows else Order.MERGED
        elif same:
            order = Order.ROWS if rows.is_rows else Order.MERGED
        elif before and not rows.is_rows:
            order = Order.STRIDED
        if order is None:
            return Unknown("puts elements of different rows together")
        return one._replace(axis=rows.axis, order=order)
