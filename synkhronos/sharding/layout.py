"""How the rows lie in an axis: what of the axis is before them, and what each of them consists of.

::

    axis of length    outer * rows * inner

    (rows,)           as it is                                          outer 1, inner 1
    (rows * c,)       merged from (rows, c): each row c elements        outer 1, inner c
    (t * rows,)       merged from (t, rows): t times all rows           outer t, inner 1
    (rows * c,)       a length that was computed: c elements a row,     neither is known
                      which lie in the one way or the other

Two axes of the same length can only be combined, element by element, if they are laid out alike. The lengths are not
known when the graph is built; they are products of symbols, of which the same are equal.
"""

from __future__ import annotations

from typing import Any, FrozenSet, Iterable, NamedTuple, Optional, Tuple


class Product(NamedTuple):
    """A number times symbols, each to a power: symbols are whatever hashable objects the engine has for lengths."""

    number: int = 1
    factors: FrozenSet[Tuple[Any, int]] = frozenset()

    @staticmethod
    def of(symbol: Any) -> Product:
        """Return the product that is a symbol."""
        return Product(1, frozenset([(symbol, 1)]))

    def times(self, other: Product) -> Product:
        if self.number == 0 or other.number == 0:
            return Product(0)
        powers = dict(self.factors)
        for symbol, power in other.factors:
            powers[symbol] = powers.get(symbol, 0) + power
        return Product(self.number * other.number, frozenset(powers.items()))

    def over(self, other: Product) -> Optional[Product]:
        """Return the quotient if it is certain to be a whole number; None if not."""
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
    """Return the quotient of lengths; None if one of them is not known, or it may be no whole number."""
    return None if one is None or other is None else one.over(other)


def product(lengths: Iterable[Optional[Product]]) -> Optional[Product]:
    """Return the product of lengths; None if one of them is not known."""
    total = ONE_ELEMENT
    for one in lengths:
        if one is None:
            return None
        total = total.times(one)
    return total


class Chosen(NamedTuple):
    """The symbol of how many elements of a row a mask chooses: a number for each row."""

    mask: Any


class Quotient(NamedTuple):
    """The symbol of a length divided by another, of which it has to be a multiple: that is checked in every call."""

    length: Product
    divisor: Product


class Layout(NamedTuple):
    """What is before the rows in an axis, and what each row consists of; None for what is not known.

    Of an axis of a computed length ``per_row`` alone is known: how many elements there are for each row.
    """

    outer: Optional[Product] = ONE_ELEMENT
    inner: Optional[Product] = ONE_ELEMENT
    per_row: Optional[Product] = None

    @property
    def is_known(self) -> bool:
        return self.outer is not None and self.inner is not None

    @property
    def is_unordered(self) -> bool:
        """Return whether the axis has a computed length, so that nothing is known of its order.

        Its elements are positions that have not been moved, or no different from each other.
        """
        return self.per_row is not None

    @property
    def times(self) -> Optional[Product]:
        """How many elements there are for each row."""
        return product([self.outer, self.inner]) if self.is_known else self.per_row

    @property
    def in_order(self) -> bool:
        """Return whether what a rank has of the axis is one piece of it."""
        return self.outer == ONE_ELEMENT

    @property
    def is_even(self) -> bool:
        """Return whether all rows have the same number of elements."""
        return self.inner is None or not any(isinstance(symbol, Chosen) for symbol, _ in self.inner.factors)

    def with_(self, other: Layout) -> Optional[Layout]:
        """Return the layout of an axis, of one length, that has both; None if they may differ."""
        if self.is_unordered or other.is_unordered:
            more = other if self.is_unordered else self
            return more if more.is_even else None
        same_outer = self.outer is not None and self.outer == other.outer
        same_inner = self.inner is not None and self.inner == other.inner
        # Of even rows the one follows from the other, as the lengths are equal.
        if not (same_inner or same_outer and self.is_even and other.is_even):
            return None
        # The one that says more: 1 before a symbol, a symbol before None.
        return Layout(_simpler(self.outer, other.outer), _simpler(self.inner, other.inner))

    def if_equal(self, other: Layout) -> Optional[Tuple[Product, Product]]:
        """Return which lengths have to be equal so that both are the same; None if they cannot be, or are not known.

        Both are of axes of one length, so that of what is before the rows nothing has to be compared.
        """
        if self.in_order != other.in_order or not (self.is_even and other.is_even):
            return None
        return comparable(self.inner, other.inner)

    def within(self, axis: Layout) -> Layout:
        """Return the layout of the first so many elements of an axis, if their number is all that is known."""
        if self.per_row is None or axis.inner is None:
            return self
        pieces = self.per_row.over(axis.inner)
        return self if pieces is None else Layout(pieces, axis.inner)


def comparable(one: Optional[Product], other: Optional[Product]) -> Optional[Tuple[Product, Product]]:
    """Return two lengths if they may be equal, which has to be checked in every call.

    Where one is a multiple of the other, or both are numbers, nobody would take them for equal.
    """
    if one is None or other is None or not (one.factors or other.factors):
        return None
    return None if one.over(other) or other.over(one) else (one, other)


def _simpler(one: Optional[Product], other: Optional[Product]) -> Optional[Product]:
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda product: (len(product.factors), product.number))


#: The axis is that of the rows.
ROWS = Layout()
#: Each row is several elements, of a number that is not known.
MERGED = Layout(ONE_ELEMENT, None)
