"""Placement rules for getting, setting and incrementing elements at an index."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

from .axes import Axes
from .layout import MERGED, ONE_ELEMENT, Product, RowLayout, comparable, over, product
from .pieces import between
from .placements import REPLICATE, Index, Length, Placement, Shard, Size, Unknown
from .rule import RuleResult, WithinRows


class Slice(NamedTuple):
    """A slice with ends that are inputs; ``start`` and ``stop`` are their positions, or None for the axis's own end."""

    start: Optional[int]
    stop: Optional[int]
    rule: Axes  # rule for the index if it did not slice this axis


class Subscript(Axes):
    """Placement rule for an index into the first input.

    Parameters
    ----------
    inputs, outputs, linear
        See `Axes`; axes along which the index selects elements have the label `MIXED`.
    ends : sequence of int
        Inputs that are scalars in the index: positions of elements, and ends of slices.
    arrays : mapping from int to int
        Maps an axis of the first input to the input that is an array of positions along this axis.
    slices : mapping from int to Slice
        Maps an axis of the first input to the slice along this axis.
    sets : bool
        Whether elements are set rather than incremented, so that results of different ranks cannot be combined.
    is_vector : bool
        Whether the index is a slice of a vector, up to a position or from a position.
    length : callable
        Maps the position of an input, and an axis, to the axis's length; returns None if it is unknown.
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
        length: Callable[[int, int], Optional[Product]] = lambda position, axis: None,
    ) -> None:
        moves = len(inputs) == 1 + len(ends)
        super().__init__(inputs, outputs, linear, reduce=[None if sets else "sum"], moves=moves)
        self.ends, self.arrays, self.is_vector = set(ends), dict(arrays or {}), is_vector
        self.slices, self.changes, self.length = dict(slices or {}), [0, 1] in self.linear, length

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
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
                    return RuleResult([_taken(first, end)])
                if any(one.power != 0 for one in end.lengths):
                    return RuleResult(
                        [Unknown("selects elements at positions that depend on how many rows the rank has")]
                    )
                inputs[i] = REPLICATE
        for axis, i in self.arrays.items():
            array = inputs[i]
            if not isinstance(array, Shard) or array.positions == Index.NO:
                continue
            if not isinstance(first, Shard) or first.axis != axis:
                return RuleResult(
                    [Unknown("uses positions of rows, which every rank counts from 0, to index an axis without rows")]
                )
            found = _elements(array, first, exact) or self._of_all(i, array, first, exact)
            if found is None:
                return RuleResult([Unknown(OF_ANOTHER_RANK)])
            taken, layout, equal = found
            if array.positions == Index.COMPUTED:
                equal = [*equal, WithinRows(i, axis)]  # negative positions would count from the end of the rank's rows
            inputs[i] = array._replace(positions=Index.NO, layout=taken)
            rule = self._at(axis, self.inputs[i][array.axis])
            placed = self._along(rule, first._replace(layout=layout), taken, inputs, exact)
            return placed._replace(equal=[*equal, *placed.equal])
        return super().place(inputs, exact)

    def _pieces(self, first: Placement, inputs: Sequence[Placement]) -> Optional[Tuple[Slice, RowLayout]]:
        """Return the slice along the axis of rows and its result's layout; None if either is unknown."""
        sliced = self.slices.get(first.axis) if isinstance(first, Shard) else None
        if sliced is None or not isinstance(first, Shard) or first.positions or first.loose:
            return None
        if any(isinstance(inputs[i], Size) and not _is_fixed(inputs[i]) for i in self.ends - set(sliced[:2])):
            return None  # an index along an axis without rows depends on the number of rows
        layout = between(first.layout, *[None if i is None else _only(inputs[i]) for i in sliced[:2]])
        return None if layout is None else (sliced, layout)

    def _of_all(self, i: int, array: Shard, first: Shard, exact: bool) -> Any:
        """Return the result of `_elements` if there is certainly one position per element of the axis; else None."""
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

    def _along(
        self, rule: Axes, first: Shard, layout: RowLayout, inputs: Sequence[Placement], exact: bool
    ) -> RuleResult:
        """Return the result of ``rule`` as if the selected elements were the whole axis of rows."""
        placed = rule.place([first._replace(layout=layout, uniform=False), *inputs[1:]], exact)
        (after,) = placed.outputs
        if self.changes and isinstance(after, Shard) and first.layout.is_known:
            after = after._replace(layout=first.layout)
        return placed._replace(outputs=[after])

    def _at(self, axis: int, label: Any) -> Axes:
        """Return the rule for an index array that selects the rank's own rows along ``axis``, labeled ``label``."""
        labels = [list(of_input) for of_input in self.inputs]
        outputs = [list(of_output) for of_output in self.outputs]
        labels[0][axis] = label
        if self.changes:
            outputs[0][axis] = label
        return Axes(labels, outputs, self.linear, reduce=self.reduce, moves=self.moves)


OF_ANOTHER_RANK = (
    "selects rows at computed positions, which may belong to another rank (compute positions from lengths of the "
    "indexed array; with exact=True, also from lengths of other arrays, which every call then checks)"
)


def _elements(array: Shard, first: Shard, exact: bool) -> Any:
    """Return the layouts of the selected elements and of the indexed axis, and pairs of lengths that must be equal.

    The result is None if the elements may belong to another rank.
    """
    axis, of = first.layout, array.of
    if of.is_unordered:
        return _in_order(array, axis, exact)
    if of.outer is None or of.inner is None:
        return None
    of = RowLayout(of.outer, of.inner.times(array.size))
    # Positions count from 0, through all pieces of the array or only the first ones. In a correct program, an offset
    # stays within a row of several elements. In a row of one element, it would lead to another row.
    if array.positions == Index.COMPUTED and of.inner == ONE_ELEMENT:
        return None
    if axis.is_unordered:
        return (array.layout, of, ()) if axis.per_row == of.times else None
    if of.inner == axis.inner:
        return array.layout, axis, ()
    equal = of.if_equal(axis) if exact else None
    return None if equal is None else (array.layout, axis, [equal])


def _in_order(array: Shard, axis: RowLayout, exact: bool) -> Any:
    """Return the result of `_elements` for all positions in unknown order, or for the first element of each row."""
    count, size = array.of.per_row, array.size
    if count is None:
        return None
    if axis.is_unordered:  # with an offset, elements would no longer be interchangeable
        return (array.layout, axis, ()) if array.positions == Index.ROWS and axis.per_row == count else None
    inner, is_offset = over(axis.inner, size), array.positions == Index.COMPUTED and axis.inner == ONE_ELEMENT
    if inner is None or not axis.is_even or is_offset:
        return None
    outer = count.over(inner)
    if outer is not None:
        return RowLayout(outer, inner), axis, ()
    equal = comparable(count, product([axis.outer, inner])) if exact else None
    return None if equal is None else (RowLayout(axis.outer, inner), axis, [equal])


def _is_fixed(size: Any) -> bool:
    return all(length.power == 0 for length in size.lengths)


def _only(end: Placement) -> Length:
    return end.lengths[0] if isinstance(end, Size) else Length(None)


def _taken(first: Shard, end: Size) -> Shard:
    """Return the placement of a slice of loose random numbers, which belong to rows if ``end`` depends on rows."""
    (length,) = end.lengths
    if length.power == 1:
        return first._replace(layout=length.layout or MERGED, loose=False)
    return first
