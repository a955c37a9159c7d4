"""Arithmetic with lengths: whether a result is proportional to the number of rows, and the factor.

::

    rows * t // t             rows
    rows * t * 4 / 4          rows * t          also in floating point, if the result is a whole number
    rows * v // 3             rows * (v // 3)   if v is a multiple of 3, which every call checks
    rows // 2                 not proportional: 3 for 6 rows, but 1 + 1 on ranks with 3 rows each
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Optional, Sequence, Tuple

from .layout import Product, Quotient, over, product
from .placements import Length, Power

#: Pairs of lengths that must be equal.
Equal = Sequence[Tuple[Product, Product]]


class Kind(enum.Enum):
    """Effect of an operation on lengths."""

    OTHER = enum.auto()
    SUM = enum.auto()
    DIFFERENCE = enum.auto()
    PRODUCT = enum.auto()
    QUOTIENT = enum.auto()
    #: A quotient rounded down.
    FLOOR = enum.auto()
    #: The first input, unchanged.
    SAME = enum.auto()
    #: The first input converted to a whole number; unchanged if it already is one.
    WHOLE = enum.auto()
    #: The second input, with the shape of the first.
    SECOND = enum.auto()
    #: One of the inputs.
    ONE_OF = enum.auto()
    #: One of the inputs after the first.
    CHOICE = enum.auto()


class Arithmetic(NamedTuple):
    """An operation on numbers, which applies to vectors element by element."""

    kind: Kind
    values: Sequence[Optional[Sequence[Optional[Product]]]]  # the known elements of each input, if equal on all ranks
    results: Optional[Sequence[Optional[Product]]] = None  # the known elements of the result

    def result(self, k: int) -> Optional[Product]:
        return self.results[k] if self.results is not None and k < len(self.results) else None


def computed(kind: Kind, lengths: Sequence[Length], power: Optional[Power], exact: bool) -> Tuple[Length, Equal]:
    """Return the result of an operation on lengths, and pairs of lengths whose equality it requires.

    ``power`` is the result's power, None if unknown; ``exact`` allows conditions that every call checks.
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
    """Return the sum of multiples of a length, all after the first times ``sign``; None if unknown or negative."""
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
    """Return a quotient, unknown if a rank may have a remainder; with ``exact``, calls may check that there is none."""
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
