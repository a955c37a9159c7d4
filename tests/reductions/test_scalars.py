"""Numbers combined together have the same bits as if combined one by one."""

import numpy as np
import pytest

from synkhronos.reductions import ReduceOp, combine, combine_each

EXTREME = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1e-310, 1e-45, 1e-38, 3.4e38, 1.7e308, -1e38, 1e-37]


def numbers(dtype, n_ranks, seed):
    """Return random, extreme and equal numbers, as one array for each rank."""
    random = np.random.RandomState(seed)
    normal = random.standard_normal((n_ranks, 300))
    wide = normal * 10.0 ** random.uniform(-320, 308, normal.shape)
    extreme = random.choice(EXTREME, (n_ranks, 400))
    equal = np.repeat(random.standard_normal((1, 50)), n_ranks, 0)
    opposite = random.standard_normal((1, 50)) * np.where(np.arange(n_ranks) % 2, -1, 1)[:, None]
    with np.errstate(all="ignore"):
        return list(np.concatenate([normal, wide, extreme, equal, opposite], 1).astype(dtype))


def bits(array):
    if np.lib.NumpyVersion(np.__version__) < "1.22.0":
        array = array + 0.0  # in these versions, the minimum of 0.0 and -0.0 depends on the arrays' length
    return np.where(np.isnan(array), np.nan, array).astype(array.dtype).tobytes()  # NaN has several bit patterns


@pytest.mark.slow
@pytest.mark.thorough(but="sum|avg-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", ["avg", "sum", "prod", "min", "max"])
def test_many_at_once_are_the_bits_of_one_by_one(op, dtype):
    op = ReduceOp(op)
    for seed, weights in enumerate(
        [None, [1], [3], [2, 1], [1, 1], [7, 7], [1, 2, 3], [10**16, 1, 3], [0, 1, 2], [5, 0.5, 1e-20], [0, 0]]
    ):
        parts = numbers(dtype, 3 if weights is None else len(weights), seed)
        for absent in (None, 0):
            if absent is not None and len(parts) > 1:
                parts[absent] = None
            together = combine_each(op, parts, weights)
            one_by_one = [
                combine(op, [p if p is None else p[i : i + 1].reshape(()) for p in parts], weights) for i in range(1100)
            ]
            assert together.dtype == one_by_one[0].dtype and together.shape == (1100,)
            assert bits(together) == bits(np.array(one_by_one))


def test_integers_and_bools_too():
    parts = [np.array([True, False]), np.array([True, True])]
    assert combine_each(ReduceOp("sum"), parts).tolist() == [2, 1]
    assert combine_each(ReduceOp("max"), [np.array([1, 5]), np.array([2, 3])]).tolist() == [2, 5]


def test_single_precision_is_rounded_once():
    """Sums are computed as Python floats: single precision would round intermediate sums."""
    parts = [np.array([16777216.0], "f"), np.array([1.0], "f"), np.array([1.0], "f")]
    assert combine_each(ReduceOp("sum"), parts).tolist() == [np.float32(16777216.0 + 1.0 + 1.0)]
    assert combine_each(ReduceOp("sum"), parts)[0] != np.float32(np.float32(16777216.0) + np.float32(1)) + np.float32(1)
