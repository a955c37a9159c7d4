"""Taking, setting and adding to elements at an index."""

from __future__ import annotations

from typing import Any, Callable, Collection, Mapping, NamedTuple, Optional, Sequence, Tuple

from .axes import Axes
from .layout import MERGED, ONE_ELEMENT, Layout, Product, comparable, over, product
from .pieces import between
from .placements import REPLICATE, Index, Length, Placement, Shard, Size, Unknown
from .rule import NotNegative, Placed


class Slice(NamedTuple):
    """A slice whose ends are not constant.

    Attributes
    ----------
    start, stop : int or None
        The inputs that are its ends; None for the first, and the last, element.
    rule : Axes
        Of the same index, but with the axis taken as it is.
    """

    start: Optional[int]
    stop: Optional[int]
    rule: Axes


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
    slices : mapping from int to Slice
        By axes of the first input.
    signed : collection of int
        The inputs that are arrays of positions of which some may be negative.
    sets : bool
        Whether elements are set: those of all ranks cannot be put together then.
    is_vector : bool
        Whether the first elements of a vector are taken, or what comes after them.
    length : callable
        From the position of an input, and one of its axes, to the length.
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
        slices: Optional[Mapping[int, Slice]] = None,
        signed: Collection[int] = (),
        length: Callable[[int, int], Optional[Product]] = lambda position, axis: None,
    ) -> None:
        self.signed = frozenset(signed)
        moves = len(inputs) == 1 + len(ends)
        super().__init__(inputs, outputs, linear, reduce=[None if sets else "sum"], moves=moves)
        self.ends, self.arrays, self.is_vector = set(ends), dict(arrays or {}), is_vector
        self.slices, self.changes, self.length = dict(slices or {}), [0, 1] in self.linear, length

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        inputs, first = list(inputs), inputs[0]
        pieces = self._pieces(first, inputs)
        if isinstance(first, Shard) and pieces is not None:
            sliced, layout = pieces
            inputs = [REPLICATE if i in sliced[:2] else one for i, one in enumerate(inputs)]
            return self._along(sliced.rule, first, layout, inputs, exact)
        for i in self.ends:
            end = inputs[i]
            if isinstance(end, Size):
                if isinstance(first, Shard) and first.loose and self.is_vector:
                    return Placed([_taken(first, end)])
                if any(one.power != 0 for one in end.lengths):
                    return Placed([Unknown("takes elements up to a number that depends on how many rows the rank has")])
                inputs[i] = REPLICATE
        for axis, i in self.arrays.items():
            array = inputs[i]
            if not isinstance(array, Shard) or array.positions == Index.NO:
                continue
            if not isinstance(first, Shard) or first.axis != axis:
                return Placed([Unknown("takes positions of rows, which every rank counts from 0, of another axis")])
            found = _elements(array, first, exact) or self._of_all(i, array, first, exact)
            if found is None:
                return Placed([Unknown(OF_ANOTHER_RANK)])
            taken, layout, equal = found
            if array.positions == Index.COMPUTED and i in self.signed:
                equal = [*equal, NotNegative(i)]  # a rank would count it from the end of its own rows
            inputs[i] = array._replace(positions=Index.NO, layout=taken)
            rule = self._at(axis, self.inputs[i][array.axis])
            placed = self._along(rule, first._replace(layout=layout), taken, inputs, exact)
            return placed._replace(equal=[*equal, *placed.equal])
        return super().place(inputs, exact)

    def _pieces(self, first: Placement, inputs: Sequence[Placement]) -> Optional[Tuple[Slice, Layout]]:
        """Return the slice along the rows, and the layout of what it takes; None if it does not take pieces."""
        sliced = self.slices.get(first.axis) if isinstance(first, Shard) else None
        if sliced is None or not isinstance(first, Shard) or first.positions or first.loose:
            return None
        if any(isinstance(inputs[i], Size) and not _is_fixed(inputs[i]) for i in self.ends - set(sliced[:2])):
            return None  # ends along other axes
        layout = between(first.layout, *[None if i is None else _only(inputs[i]) for i in sliced[:2]])
        return None if layout is None else (sliced, layout)

    def _of_all(self, i: int, array: Shard, first: Shard, exact: bool) -> Any:
        """Return the same as `_elements` of positions that are those of a whole axis, if there are as many of them."""
        axis, of = first.layout, array.of
        is_offset = array.positions == Index.COMPUTED and array.size == ONE_ELEMENT
        if array.layout != of or is_offset or not (of.in_order or of.is_unordered) or axis != MERGED:
            return None
        count, length = self.length(i, array.axis), self.length(0, first.axis)
        if count is None or length is None or not of.is_even:
            return None
        count = count.times(array.size)
        equal = None if count == length or not exact else comparable(count, length)
        if equal is None and count != length:
            return None
        blocks = axis if array.size == ONE_ELEMENT else MERGED if of.is_unordered else of
        return blocks, axis, [] if equal is None else [equal]

    def _along(self, rule: Axes, first: Shard, layout: Layout, inputs: Sequence[Placement], exact: bool) -> Placed:
        """Place as if what is taken were all that the first input has, along the axis of its rows."""
        placed = rule.place([first._replace(layout=layout, uniform=False), *inputs[1:]], exact)
        (after,) = placed.outputs
        if self.changes and isinstance(after, Shard) and first.layout.is_known:
            after = after._replace(layout=first.layout)
        return placed._replace(outputs=[after])

    def _at(self, axis: int, label: Any) -> Axes:
        """Return the rule if the rows along an axis are taken at their own positions."""
        labels = [list(of_input) for of_input in self.inputs]
        outputs = [list(of_output) for of_output in self.outputs]
        labels[0][axis] = label
        if self.changes:
            outputs[0][axis] = label
        return Axes(labels, outputs, self.linear, reduce=self.reduce, moves=self.moves)


OF_ANOTHER_RANK = (
    "takes rows at computed positions, which may be those of another rank (count them by lengths of the array itself; "
    "with exact=True other lengths are compared with these in every call)"
)


def _elements(array: Shard, first: Shard, exact: bool) -> Any:
    """Return what positions take, if those are elements that the rank has: None if that is not known.

    Returns
    -------
    Layout
        Of what is taken: of the array of positions.
    Layout
        Of the axis from which it is taken.
    sequence of (Product, Product)
        Lengths that have to be equal.
    """
    axis, of = first.layout, array.of
    if of.is_unordered:
        return _in_order(array, axis, exact)
    if of.outer is None or of.inner is None:
        return None
    of = Layout(of.outer, of.inner.times(array.size))
    # All positions are counted from 0: those of as many pieces as the array has, or of the first of them. With an
    # offset, they are positions in a row, or else it would be a bad program: rows have several elements.
    if array.positions == Index.COMPUTED and of.inner == ONE_ELEMENT:
        return None
    if axis.is_unordered:
        return (array.layout, of, ()) if axis.per_row == of.times else None
    if of.inner == axis.inner:
        return array.layout, axis, ()
    equal = of.if_equal(axis) if exact else None
    return None if equal is None else (array.layout, axis, [equal])


def _in_order(array: Shard, axis: Layout, exact: bool) -> Any:
    """Return the same of positions of all elements, or of the first of each so many, in whatever order they are."""
    count, size = array.of.per_row, array.size
    if count is None:
        return None
    if axis.is_unordered:  # (with an offset, elements would no longer be alike)
        return (array.layout, axis, ()) if array.positions == Index.ROWS and axis.per_row == count else None
    inner, is_offset = over(axis.inner, size), array.positions == Index.COMPUTED and axis.inner == ONE_ELEMENT
    if inner is None or not axis.is_even or is_offset:
        return None
    outer = count.over(inner)
    if outer is not None:
        return Layout(outer, inner), axis, ()
    equal = comparable(count, product([axis.outer, inner])) if exact else None
    return None if equal is None else (Layout(axis.outer, inner), axis, [equal])


def _is_fixed(size: Any) -> bool:
    return all(length.power == 0 for length in size.lengths)


def _only(end: Placement) -> Length:
    """Return the end of a slice as a length."""
    return end.lengths[0] if isinstance(end, Size) else Length(None)


def _taken(first: Shard, end: Size) -> Shard:
    """Return some of the random numbers, perhaps as many as there are rows."""
    (length,) = end.lengths
    if length.power == 1:
        return first._replace(layout=length.layout or MERGED, loose=False)
    return first
