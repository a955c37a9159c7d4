"""Arithmetic with lengths, compared with numbers for three ranks and for all rows."""

import pytest

from synkhronos.sharding.arithmetic import Kind, computed
from synkhronos.sharding.layout import ROWS, Product, Quotient
from synkhronos.sharding.placements import Length

T, V = Product.of("t"), Product.of("v")
NUMBERS = {"t": 5, "v": 6}
RANKS = (4, 1, 2)

ROWS_, TIMES, UNKNOWN = Length(1, ROWS, Product()), Length(1, None, T.times(V)), Length(None)


def number(n):
    return Length(0, None, Product(n))


def value(length, rows):
    """Return the value of a length for a number of rows."""
    found = length.times.number
    for symbol, exponent in length.times.factors:
        known = symbol.length.number * NUMBERS["v"] // symbol.divisor.number if isinstance(symbol, Quotient) else None
        found *= (known or NUMBERS[symbol]) ** exponent
    return rows**length.power * found


CASES = [
    (Kind.PRODUCT, (ROWS_, Length(0, None, T)), 1, lambda a, b: a * b),
    (Kind.PRODUCT, (ROWS_, number(0)), 1, lambda a, b: a * b),
    (Kind.SUM, (TIMES, TIMES), 1, lambda a, b: a + b),
    (Kind.SUM, (TIMES, number(0)), 1, lambda a, b: a + b),
    (Kind.DIFFERENCE, (Length(1, None, Product(3)), ROWS_), 1, lambda a, b: a - b),
    (Kind.FLOOR, (TIMES, Length(0, None, T)), None, lambda a, b: a // b),
    (Kind.FLOOR, (TIMES, Length(1, None, V)), None, lambda a, b: a // b),
    (Kind.FLOOR, (Length(1, None, Product(6)), number(3)), None, lambda a, b: a // b),
    (Kind.QUOTIENT, (TIMES, Length(0, None, V)), 1, lambda a, b: a / b),
    (Kind.SAME, (TIMES,), 1, lambda a: a),
    (Kind.WHOLE, (TIMES,), None, int),
    (Kind.SECOND, (number(1), TIMES), 1, lambda a, b: b),
    (Kind.ONE_OF, (ROWS_, ROWS_), 1, max),
    (Kind.CHOICE, (number(1), TIMES, ROWS_), None, lambda c, a, b: a if c else b),
    (Kind.CHOICE, (number(0), TIMES, ROWS_), None, lambda c, a, b: a if c else b),
]


@pytest.mark.parametrize("kind, lengths, power, function", CASES)
def test_a_result_is_what_the_numbers_give(kind, lengths, power, function):
    found, equal = computed(kind, lengths, power, exact=False)
    assert not equal
    for rows in (*RANKS, sum(RANKS)):
        assert value(found, rows) == function(*[value(one, rows) for one in lengths])


@pytest.mark.parametrize(
    "kind, lengths",
    [
        (Kind.FLOOR, (ROWS_, number(2))),
        (Kind.FLOOR, (Length(1, None, Product(4)), number(3))),
        (Kind.FLOOR, (Length(1, None, Product(4)), number(0))),
        (Kind.FLOOR, (UNKNOWN, number(2))),
        (Kind.FLOOR, (Length(1), number(2))),
        (Kind.WHOLE, (Length(1),)),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_what_may_have_a_remainder_is_not_in_proportion(kind, lengths, exact):
    found, equal = computed(kind, lengths, None, exact)
    assert found.power is None and not equal


def test_a_quotient_of_a_length_that_is_not_known_is_checked():
    lengths = (Length(1, None, V), number(3))
    assert computed(Kind.FLOOR, lengths, None, exact=False)[0] == UNKNOWN
    found, equal = computed(Kind.FLOOR, lengths, None, exact=True)
    assert equal == [(Product.of(Quotient(V, Product(3))).times(Product(3)), V)]
    for rows in RANKS:
        assert value(found, rows) == rows * NUMBERS["v"] // 3


@pytest.mark.parametrize("kind", [Kind.SUM, Kind.ONE_OF, Kind.CHOICE])
def test_lengths_that_differ_give_one_that_is_not_known(kind):
    found, _ = computed(kind, (ROWS_, ROWS_, TIMES), 1, exact=True)
    assert found.times is None and found.power == 1
