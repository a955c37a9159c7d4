"""Search for literal numbers of rows in a program, from an axis's length to the constants that define the length.

::

    zeros((100, 5))    Alloc(0, 100, 5)         axis 0: the 100 at position 1 of that node
    arange(100 * 28)   ARange(0, 2800, 1)       axis 0: the 2800 at position 1, 28 for each row
    x.reshape((100, -1))   [100, -1]            axis 0: element 0 of that vector

Equal small numbers share a constant, so each use of a number has its own mark. A vector's mark covers all its uses.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, FrozenSet, List, Optional, Sequence, Union

import numpy as np

from .classes import Kinds
from .indices import constant_index
from .lengths import Lengths, broadcastable, ndim


class RowOrder(enum.IntEnum):
    """Order of elements along an axis whose length is a multiple of the number of rows."""

    #: Several elements of each row, row after row.
    FIRST = 0
    #: All rows, several times (time first).
    LAST = 1
    #: Determined by the values placed along the axis.
    OPEN = 2


@dataclass(frozen=True)
class NumberMark:
    """Marks a node's input as a number of rows; ``order`` applies to multiples of this number in an ``arange``."""

    node: Any
    position: int
    order: RowOrder = RowOrder.FIRST


@dataclass(frozen=True)
class ElementMark:
    """Marks an element of a constant vector as a number of rows."""

    vector: Any
    place: int
    order: RowOrder = RowOrder.FIRST


@dataclass(frozen=True)
class ShareMark:
    """Marks an input to replace with the rank's share of it along an axis, instead of replacing a number in it."""

    node: Any
    position: int
    axis: int


@dataclass(frozen=True)
class LengthsMark:
    """Marks a reshape that moves rows from ``axis`` to ``place``; every call checks that later axes are preserved."""

    node: Any
    axis: int
    place: int


Mark = Union[NumberMark, ElementMark, ShareMark, LengthsMark]
Marks = FrozenSet[Mark]

NONE: Marks = frozenset()


def in_all_orders(mark: Mark) -> List[Mark]:
    if isinstance(mark, (NumberMark, ElementMark)):
        return [replace(mark, order=order) for order in RowOrder]
    return [mark]


def marked(mark: Mark, marks: Marks) -> Optional[Mark]:
    """Return the mark in ``marks`` that equals ``mark`` except for the order; None if there is none."""
    return next((one for one in in_all_orders(mark) if one in marks), None)


class WrittenLengths:
    """Search for constants that define multiples of the number of rows; ``marked`` contains the marks already set."""

    def __init__(self, lengths: Lengths, draws: Kinds, rows: int, marked: Marks) -> None:
        self.lengths, self.classes, self.draws = lengths, lengths.classes, draws
        self.rows, self.marked = rows, marked

    def is_rows(self, value: Any) -> bool:
        return value.dtype.kind in "iu" and value.ndim == 0 and int(value) > 0 and int(value) % self.rows == 0

    def number(self, node: Any, position: int) -> Optional[Marks]:
        """Return marks of the constants that define a node's scalar input; None unless it is a multiple of ``rows``."""
        classes, variable = self.classes, node.inputs[position]
        if marked(NumberMark(node, position), self.marked):
            return NONE
        if isinstance(variable, classes.Constant):
            return frozenset([NumberMark(node, position)]) if self.is_rows(np.asarray(variable.data)) else None
        maker = variable.owner
        if maker is None:
            return None
        op = maker.op
        if isinstance(op, classes.Elemwise):
            if isinstance(op.scalar_op, (classes.scalar.Cast, classes.scalar.Identity, classes.scalar.Mul)):
                return self._first(self.number(maker, i) for i in range(len(maker.inputs)))
            return None
        kinds = (classes.TensorFromScalar, classes.ScalarFromTensor, classes.DimShuffle, *classes.rebroadcasts)
        if isinstance(op, kinds):
            return self.number(maker, 0)
        if isinstance(op, classes.CAReduce) and isinstance(op.scalar_op, classes.scalar.Mul):
            return self._first(self.element(maker.inputs[0], i) for i in range(self.count(maker.inputs[0])))
        if isinstance(op, classes.Shape_i):
            return self.axis(maker.inputs[0], op.i)
        if isinstance(op, classes.Subtensor) and ndim(maker.inputs[0]) == 1:
            index = constant_index(self.lengths, maker, 0)
            return self.element(maker.inputs[0], int(index)) if isinstance(index, (int, np.integer)) else None
        return None

    def element(self, vector: Any, index: int) -> Optional[Marks]:
        """Return marks of the constants that define a vector's element; None unless it is a multiple of ``rows``."""
        classes, count = self.classes, self.count(vector)
        if not -count <= index < count:
            return None
        index %= count
        if isinstance(vector, classes.Constant):
            if marked(ElementMark(vector, index), self.marked):
                return NONE
            return frozenset([ElementMark(vector, index)]) if self.is_rows(np.asarray(vector.data[index])) else None
        node = vector.owner
        op = node.op
        if isinstance(op, classes.MakeVector):
            return self.number(node, index)
        if isinstance(op, classes.Join):
            for part in classes.joined(node)[1]:
                if index < self.count(part):
                    return self.element(part, index)
                index -= self.count(part)
        if isinstance(op, classes.Elemwise) and isinstance(op.scalar_op, classes.scalar.Cast):
            return self.element(node.inputs[0], index)
        if isinstance(op, (classes.DimShuffle, classes.SpecifyShape, *classes.rebroadcasts)):
            return self.number(node, 0) if ndim(node.inputs[0]) == 0 else self.element(node.inputs[0], index)
        if isinstance(op, classes.Shape):
            return self.axis(node.inputs[0], index)
        if isinstance(op, classes.Subtensor):
            chosen = constant_index(self.lengths, node, 0)
            if isinstance(chosen, slice):
                return self.element(node.inputs[0], range(self.count(node.inputs[0]))[chosen][index])
        return None

    def axis(self, variable: Any, axis: int) -> Optional[Marks]:
        """Return marks of the constants that define an axis's length; None unless it is a multiple of ``rows``."""
        classes, node = self.classes, variable.owner
        if node is None or axis >= ndim(variable) or broadcastable(variable)[axis]:
            return None
        op, first = node.op, node.inputs[0] if node.inputs else None
        if isinstance(op, classes.Elemwise):
            return self._all(self.axis(one, axis) for one in node.inputs if not broadcastable(one)[axis])
        if isinstance(op, classes.Join) and classes.joined(node)[0] not in (None, axis, axis - ndim(variable)):
            return self._all(self.axis(one, axis) for one in classes.joined(node)[1])
        if isinstance(op, (classes.Alloc, classes.AllocEmpty)):
            before = len(node.inputs) - ndim(variable)
            found = [self.number(node, before + axis)]
            own = axis - ndim(variable) + ndim(first)
            if before and own >= 0 and not broadcastable(first)[own]:
                found.append(self.axis(first, own))
            return self._all(found)
        if isinstance(op, classes.ARange):
            start, _, step = map(self.lengths.constant, node.inputs)
            if start is None or start != 0 or step is None or step != 1:
                return None
            if marked(NumberMark(node, 1), self.marked):
                return NONE
            value = self.value(node.inputs[1])
            return frozenset([NumberMark(node, 1)]) if value > 0 and value % self.rows == 0 else None
        if isinstance(op, classes.Reshape):
            return self.element(node.inputs[1], axis)
        if isinstance(op, self.draws):
            return self.element(node.inputs[1], axis)
        before = self.lengths.before(node, axis, variable)
        return self.axis(*before) if isinstance(before, tuple) and hasattr(before[0], "owner") else None

    def value(self, variable: Any) -> int:
        """Return the value of a variable that is a constant positive number; -1 for any other variable."""
        found = self.lengths.length(variable)
        return -1 if found.factors or found.number <= 0 else found.number

    def is_long(self, variable: Any, axis: int) -> bool:
        """Return whether the length of an axis is known to equal the program's number of rows."""
        found = self.lengths.axis_length(variable, axis)
        return not found.factors and found.number == self.rows

    def count(self, vector: Any) -> int:
        """Return the number of a vector's elements; 0 if unknown."""
        found = self.lengths.elements(vector)
        return 0 if found is None else len(found)

    def _first(self, found: Any) -> Optional[Marks]:
        return next((one for one in found if one is not None), None)

    def _all(self, found: Any) -> Optional[Marks]:
        marks: Marks = NONE
        for one in found:
            if one is None:
                return None
            marks |= one
        return marks


def times_rows(value: Any, rows: int) -> int:
    """Return n if ``value`` is n times ``rows``, and -n if it is the inverse of n times ``rows``; otherwise 0."""
    as_complex = complex(np.asarray(value).reshape(()))
    number = as_complex.real
    if as_complex.imag or not np.isfinite(number) or number <= 0:
        return 0
    times = number / rows if number >= 1 else -1 / number / rows
    whole = round(times)
    return whole if whole and abs(times - whole) < 1e-6 * abs(whole) else 0


def numbers_of(lengths: Lengths, draws: Kinds, node: Any) -> Sequence[int]:
    """Return the positions of a node's inputs that are lengths, shapes, or numbers in a basic index."""
    classes, op, n = lengths.classes, node.op, len(node.inputs)
    kinds: List[Any] = [
        ((classes.Reshape, *draws), range(1, 2)),
        ((classes.Alloc, classes.Subtensor), range(1, n)),
        (classes.AllocEmpty, range(n)),
        (classes.ARange, range(1, 2)),
        (classes.IncSubtensor, range(2, n)),
        (classes.Split, range(n - 1, n)),
    ]
    return next((positions for kind, positions in kinds if isinstance(op, kind)), ())
