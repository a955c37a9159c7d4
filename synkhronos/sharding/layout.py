"""Layouts of rows in an axis: how many times it repeats all rows, and how many adjacent elements each row has.

::

    axis of length    outer * rows * inner

    (rows,)           the axis of rows                                  outer 1, inner 1
    (rows * c,)       merged from (rows, c): c elements per row         outer 1, inner c
    (t * rows,)       merged from (t, rows): t times all rows           outer t, inner 1
    (rows * c,)       a computed length: c elements per row             both unknown, as is the order

Axes of equal length can be combined element by element only if their layouts agree. Lengths are unknown when the graph
is built, so they are products of symbols. Equal symbols denote equal lengths.
"""

from __future__ import annotations

from typing import Any, FrozenSet, Iterable, NamedTuple, Optional, Tuple


class Product(NamedTuple):
    """A length: a number times powers of symbols (any hashable objects of the engine)."""

    number: int = 1
    factors: FrozenSet[Tuple[Any, int]] = frozenset()

    @staticmethod
    def of(symbol: Any) -> Product:
        return Product(1, frozenset([(symbol, 1)]))

    def times(self, other: Product) -> Product:
        if self.number == 0 or other.number == 0:
            return Product(0)
        powers = dict(self.factors)
        for symbol, power in other.factors:
            powers[symbol] = powers.get(symbol, 0) + power
        return Product(self.number * other.number, frozenset(powers.items()))

    def over(self, other: Product) -> Optional[Product]:
        """Return the quotient if it is certainly a whole number, else None."""
        powers = dict(self.factors)
        for symbol, power in other.factors:
            left = powers.get(symbol, 0) - power
            if left < 0:
                return None
            powers[symbol] = left
        if other.number <= 0 or self.number % other.number:
            return None
        left_over = frozenset((symbol, power) for symbol, power in powers.items() if power)
        return Product(self.number // other.number, left_over)


ONE_ELEMENT = Product()


def over(one: Optional[Product], other: Optional[Product]) -> Optional[Product]:
    """Return the quotient of two lengths; None if a length is unknown or the quotient might not be whole."""
    return None if one is None or other is None else one.over(other)


def product(lengths: Iterable[Optional[Product]]) -> Optional[Product]:
    """Return the product of lengths; None if any length is unknown."""
    total = ONE_ELEMENT
    for one in lengths:
        if one is None:
            return None
        total = total.times(one)
    return total


class Chosen(NamedTuple):
    """Symbol for the number of elements that a mask chooses in each row."""

    mask: Any


class Quotient(NamedTuple):
    """Symbol for a quotient of lengths; every call checks that there is no remainder."""

    length: Product
    divisor: Product


class RowLayout(NamedTuple):
    """How many times an axis repeats all rows (``outer``), and how many adjacent elements a row has (``inner``)."""

    outer: Optional[Product] = ONE_ELEMENT
    inner: Optional[Product] = ONE_ELEMENT
    per_row: Optional[Product] = None  # elements per row in total; set only if the length was computed

    @property
    def is_known(self) -> bool:
        return self.outer is not None and self.inner is not None

    @property
    def is_unordered(self) -> bool:
        """Whether the length is computed, so the order is unknown; elements are positions in order, or uniform."""
        return self.per_row is not None

    @property
    def times(self) -> Optional[Product]:
        return product([self.outer, self.inner]) if self.is_known else self.per_row

    @property
    def in_order(self) -> bool:
        """Whether a rank's part of the axis is contiguous in the serial program."""
        return self.outer == ONE_ELEMENT

    @property
    def is_even(self) -> bool:
        return self.inner is None or not any(isinstance(symbol, Chosen) for symbol, _ in self.inner.factors)

    def with_(self, other: RowLayout) -> Optional[RowLayout]:
        """Return the common layout of two axes of equal length; None if their layouts may differ."""
        if self.is_unordered or other.is_unordered:
            more = other if self.is_unordered else self
            return more if more.is_even else None
        same_outer = self.outer is not None and self.outer == other.outer
        same_inner = self.inner is not None and self.inner == other.inner
        # The lengths are equal. If every row has the same number of elements, outer and inner determine each other.
        if not (same_inner or same_outer and self.is_even and other.is_even):
            return None
        # Keep the simpler description: prefer 1 to a symbol, and a symbol to None.
        return RowLayout(_simpler(self.outer, other.outer), _simpler(self.inner, other.inner))

    def if_equal(self, other: RowLayout) -> Optional[Tuple[Product, Product]]:
        """Return two lengths for every call to compare, equal only if the layouts agree; None if there are none.

        The axes have equal lengths, so ``outer`` need not be compared.
        """
        if self.in_order != other.in_order or not (self.is_even and other.is_even):
            return None
        return comparable(self.inner, other.inner)

    def within(self, axis: RowLayout) -> RowLayout:
        """Return this layout of the first elements of ``axis``; if only their number per row is known, complete it."""
        if self.per_row is None or axis.inner is None:
            return self
        pieces = self.per_row.over(axis.inner)
        return self if pieces is None else RowLayout(pieces, axis.inner)


def comparable(one: Optional[Product], other: Optional[Product]) -> Optional[Tuple[Product, Product]]:
    """Return both lengths if every call must check that they are equal; else None.

    Plain numbers and known multiples of each other yield None, because programs do not mean them to be equal.
    """
    if one is None or other is None or not (one.factors or other.factors):
        return None
    return None if one.over(other) or other.over(one) else (one, other)


def _simpler(one: Optional[Product], other: Optional[Product]) -> Optional[Product]:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda product: (len(product.factors), product.number))


#: Layout of an axis with one element per row.
ROWS = RowLayout()
#: Layout of an axis with an unknown number of elements per row.
MERGED = RowLayout(ONE_ELEMENT, None)
