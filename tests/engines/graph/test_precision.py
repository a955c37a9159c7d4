"""Ranks' parts before rounding: the values of wider types in a graph."""

import numpy as np
import pytest
from library import NAME, L, T

pytestmark = getattr(pytest.mark, NAME)

if NAME == "theano":
    from synkhronos.engines.theano.classes import CLASSES
else:
    CLASSES = pytest.importorskip("synkhronos.engines.pytensor.classes").CLASSES

from synkhronos.engines.graph.precision import BeforeRounding  # noqa: E402

before_rounding = BeforeRounding(CLASSES)
x, y, i = L.variable("float64", 1, "x"), L.variable("float32", 1, "y"), T.lvector("i")
narrow = T.cast(x.sum(), "float32")

#: By name: a partial, the wider value before rounding in float64, and whether its accumulator must count for this.
PARTS = {
    "a cast": (narrow, x.sum(), False),
    "a factor of it": (narrow * np.float32(3), 3 * x.sum(), False),
    "another axis": (narrow.dimshuffle("x"), x.sum().dimshuffle("x"), False),
    "a narrow sum": (x.sum(dtype="float32"), x.sum(), False),
    "a sum of integers": (i.sum(dtype="float32"), T.cast(i.sum(), "float64"), False),
    "a sum of a cast": (T.stack([narrow, narrow]).sum(), 2 * x.sum(), False),
    "a cast of a sum of floats": (T.cast(y.sum(), "float16"), T.cast(y, "float64").sum(), True),
    "a sum of floats": (y.sum(), T.cast(y, "float64").sum(), True),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_wider_value_is_found(name):
    part, expected, needs_accumulator = PARTS[name]
    wide = before_rounding(part, lambda variable: variable not in (x, y, i))
    assert wide.dtype == "float64" and wide.ndim == part.ndim
    values = np.array([1e8, 1.25, 0.5]), np.array([1e8, 0.25, 0.5], "float32"), np.array([2**40, 1, 5])
    got, want = L.function([x, y, i], [wide, expected], on_unused_input="ignore", mode=L.quick)(*values)
    assert got == want
    if needs_accumulator and name == "a sum of floats":
        assert before_rounding(part, lambda variable: variable not in (x, y, i), accumulated=False) is None


@pytest.mark.parametrize("part", [x.sum(), x.sum() * 2, T.cast(x, "float32").max(), i.sum(), T.dot(y, y)])
def test_what_is_not_rounded(part):
    assert before_rounding(part, lambda variable: variable not in (x, y, i)) is None


def test_what_is_no_part_is_left_as_it_is():
    assert before_rounding(narrow, lambda variable: False) is None


def test_each_variable_is_looked_at_once():
    part = narrow
    for _ in range(40):
        part = part + part
    assert before_rounding(part, lambda variable: variable is not x).dtype == "float64"
