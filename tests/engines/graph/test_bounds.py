"""Bounds of integers: which partial sums may wrap around."""

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T

pytestmark = getattr(pytest.mark, NAME)

if IS_THEANO:
    from synkhronos.engines.theano.lengths import LENGTHS
else:
    LENGTHS = pytest.importorskip("synkhronos.engines.pytensor.lengths").LENGTHS

from synkhronos.engines.graph.bounds import MAX_ELEMENTS, bounds  # noqa: E402

x, labels, small = T.dmatrix("x"), T.ivector("labels"), L.variable("int8", 1, "small")
mask, unsigned, large = L.variable("bool", 1, "mask"), L.variable("uint8", 1, "unsigned"), T.lvector("large")

#: By name: a variable, and whether a partial of it may wrap around.
WRAP = {
    "a count": (mask.sum(), False),
    "a count in int32": (mask.sum(dtype="int32"), False),
    "a count in int8": (mask.sum(dtype="int8"), True),
    "a hundred times a count": (100 * mask.sum(), False),
    "a count of counts": (T.eq(labels, 1).sum() + T.eq(labels, 2).sum(), False),
    "a sum of int32": (labels.sum(), False),
    "a sum of int32 in int32": (labels.sum(dtype="int32"), True),
    "a sum in int8": (small.sum(acc_dtype="int8"), True),
    "a sum of int64": (large.sum(), True),
    "its negative": (-labels.sum(dtype="int32"), True),
    "of which more is taken": (labels.sum(dtype="int32") + np.int32(1), True),
    "in more dimensions": (labels.sum(dtype="int32").dimshuffle("x"), True),
    "widened again": (T.cast(labels.sum(dtype="int32"), "int64"), True),
    "a product": (small.prod(), True),
    "a largest element": (labels.max(), False),
    "less than an unsigned sum": (unsigned.sum() - np.uint64(1), True),
    "a negative unsigned sum": (-unsigned.sum(), True),
    "a negative sum as an unsigned one": (T.cast(-mask.sum(), "uint64"), True),
    "a histogram": (T.inc_subtensor(T.zeros((3,), "int64")[labels], 1), False),
    "one that was set": (T.set_subtensor(T.zeros((3,), "int64")[labels], 1), False),
    "a choice": (T.switch(mask, small, np.int8(0)), False),
    "a product of matrices of int32": (T.dot(labels, labels), True),
    "a size": (x.size, False),
    "a length of a length": (x.shape[0] * x.shape[1], False),
    "a difference of elements": ((unsigned - np.uint8(128)).sum(), False),
}


@pytest.mark.parametrize("name", WRAP)
def test_what_may_wrap(name):
    variable, wraps = WRAP[name]
    assert bounds(LENGTHS, variable).wraps == wraps


def test_bounds_are_those_of_values():
    assert bounds(LENGTHS, T.constant(np.array([3, -5], "int32")))[:2] == (-5, 3)
    assert bounds(LENGTHS, small)[:2] == (-128, 127)
    assert bounds(LENGTHS, 1 - T.cast(small, "int16") * 2)[:2] == (-253, 257)
    assert bounds(LENGTHS, T.arange(x.shape[0]) * x.shape[1]).low == 0
    assert bounds(LENGTHS, T.arange(x.shape[0]) * x.shape[1] - 1).low == -1
    assert bounds(LENGTHS, T.arange(x.shape[0]) * x.shape[1] + unsigned).low == 0
    assert bounds(LENGTHS, T.arange(x.shape[0]) * x.shape[1] + labels).low < 0
    assert bounds(LENGTHS, T.argmax(x, axis=1)).low == 0
    assert bounds(LENGTHS, mask.sum())[:2] == (0, MAX_ELEMENTS)


def test_long_chains_are_not_followed():
    total = mask.sum()
    for _ in range(20):
        total = total + np.int64(1)
    assert bounds(LENGTHS, total).wraps
