"""Arithmetic with lengths: whether a result is in proportion to the rows, and how many times as many it is.

::

    rows * t // t             rows
    rows * t * 4 / 4          rows * t          also of real numbers, if they are whole
    rows * v // 3             rows * (v // 3)   if v is a multiple of 3, which is checked in every call
    rows // 2                 of 5 rows 2, of 2 and 3 rows 1 + 1: not in proportion
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Optional, Sequence, Tuple

from .layout import Product, Quotient, over, product
from .placements import Length, Power

#: Pairs of lengths that have to be equal.
Equal = Sequence[Tuple[Product, Product]]


class Kind(enum.Enum):
    """What an operation does with numbers."""

    OTHER = enum.auto()
    SUM = enum.auto()
    DIFFERENCE = enum.auto()
    PRODUCT = enum.auto()
    QUOTIENT = enum.auto()
    #: A quotient without its remainder.
    FLOOR = enum.auto()
    #: The first input as it is.
    SAME = enum.auto()
    #: The first input made a whole number: as it is, if it is one.
    WHOLE = enum.auto()
    #: In the shape of the first input, the second.
    SECOND = enum.auto()
    #: One of the inputs.
    ONE_OF = enum.auto()
    #: One of the inputs after the first.
    CHOICE = enum.auto()


class Arithmetic(NamedTuple):
    """An operation on numbers, or on vectors of them element by element.

    Attributes
    ----------
    kind : Kind
    values : sequence of (sequence of (Product or None), or None)
        For each input what is known of its elements, if all ranks have the same; one for a number.
    results : sequence of (Product or None), optional
        What is known of the elements of the result.
    """

    kind: Kind
    values: Sequence[Optional[Sequence[Optional[Product]]]]
    results: Optional[Sequence[Optional[Product]]] = None

    def result(self, k: int) -> Optional[Product]:
        return self.results[k] if self.results is not None and k < len(self.results) else None


def computed(kind: Kind, lengths: Sequence[Length], power: Optional[Power], exact: bool) -> Tuple[Length, Equal]:
    """Return what an operation makes of lengths, and what has to be equal for that.

    Parameters
    ----------
    kind : Kind
    lengths : sequence of Length
    power : number, optional
        Of the result, as far as that follows from those of the inputs alone.
    exact : bool
        Whether something can be checked.
    """
    if kind == Kind.FLOOR:
        return _quotient(lengths[0], lengths[1], exact)
    if kind == Kind.CHOICE and lengths[0].power == 0 and lengths[0].times is not None and not lengths[0].times.factors:
        return lengths[1 if lengths[0].times.number else 2], ()
    times = _times(kind, [one.times for one in lengths])
    if kind == Kind.WHOLE:
        power = lengths[0].power if times is not None or lengths[0].power == 0 else None
    if kind == Kind.QUOTIENT and times is not None:
        power = _difference(lengths[0], lengths[1])
    layouts = {one.layout for one in _candidates(kind, lengths)}
    layout = layouts.pop() if len(layouts) == 1 else None
    if power is None:
        return Length(None, layout), ()
    if times == Product(0):
        return Length(0, None, times), ()
    return Length(power, layout, times), ()


def _candidates(kind: Kind, lengths: Sequence[Length]) -> Sequence[Length]:
    """Return those of the inputs of which one is the result."""
    if kind in (Kind.SAME, Kind.WHOLE):
        return lengths[:1]
    if kind == Kind.ONE_OF:
        return lengths
    return lengths[1:] if kind in (Kind.SECOND, Kind.CHOICE) else ()


def _times(kind: Kind, times: Sequence[Optional[Product]]) -> Optional[Product]:
    if kind == Kind.PRODUCT:
        return product(times)
    if kind == Kind.QUOTIENT:
        return over(*times)
    if kind in (Kind.SUM, Kind.DIFFERENCE):
        return _sum(times, -1 if kind == Kind.DIFFERENCE else 1)
    if kind in (Kind.SAME, Kind.WHOLE, Kind.ONE_OF, Kind.SECOND, Kind.CHOICE):
        found = set(times[:1] if kind in (Kind.SAME, Kind.WHOLE) else times if kind == Kind.ONE_OF else times[1:])
        return found.pop() if len(found) == 1 else None
    return None


def _sum(times: Sequence[Optional[Product]], sign: int) -> Optional[Product]:
    """Return the sum of multiples of the same; None if they are of different lengths."""
    signs = [1, *[sign] * (len(times) - 1)]
    terms = [(one, by) for one, by in zip(times, signs) if one is not None and one.number != 0]
    factors = {one.factors for one, _ in terms}
    number = sum(one.number * by for one, by in terms)
    if None in times or len(factors) > 1 or number < 0:
        return None
    return Product(number, factors.pop()) if number else Product(0)


def _difference(one: Length, other: Length) -> Optional[Power]:
    return None if one.power is None or other.power is None else one.power - other.power


def _quotient(one: Length, other: Length, exact: bool) -> Tuple[Length, Equal]:
    """Return a quotient that has no remainder on any rank, or on no rank if that is checked."""
    if one.power == other.power == 0:
        return Length(), ()
    if one.power is None or other.power is None or one.times is None or other.times is None:
        return Length(None), ()
    power, times = _difference(one, other), one.times.over(other.times)
    if times is not None:
        return Length(power, None, times), ()
    if not exact or other.times.number <= 0 or not (one.times.factors or other.times.factors):
        return Length(None), ()
    times = Product.of(Quotient(one.times, other.times))
    return Length(power, None, times), [(times.times(other.times), one.times)]
