"""One rank's share of a reduction: kernel and NumPy compute the same bits."""

import numpy as np
import pytest

from synkhronos.kernels import copy as streaming
from synkhronos.kernels.reduce import Portion
from synkhronos.reductions import ReduceOp, combine

OPS = ["avg", "sum", "prod", "min", "max"]
SIZES = (5, 0, 1000, 1, 129, 70000)


@pytest.fixture(params=["kernel", "kernel past the caches", "NumPy"])
def way(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(streaming, "kernels", None)
    elif streaming.kernels is None:
        pytest.skip("needs the kernels in C: make install, with a compiler")
    else:
        monkeypatch.setattr(streaming, "CACHE_BYTES", 0 if "past" in request.param else 1 << 50)
    return request.param


def drawn(random, size, dtype):
    """Return random numbers, and among floats special values such as nan, inf and the largest float."""
    values = random.standard_normal(size)
    if np.dtype(dtype).kind != "f":
        return (3 * values).astype(dtype)
    info = np.finfo(dtype)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.min, info.max / 2, info.tiny, 1, 1, 1])
    values = np.where(random.random_sample(size) < 0.2, special[random.randint(0, len(special), size)], values)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def reduced(parts, ranks, op, weights, n_targets):
    """Return the targets after all ranks have combined their shares of the parts."""
    targets = [
        [np.full_like(next(part for part in of_array if part is not None), 7) for _ in range(n_targets)]
        for of_array in parts
    ]
    shares = [Portion(parts, targets, rank, ranks) for rank in range(ranks)]
    for _ in range(2):  # the second round reuses what is known from the first
        for of_array in targets:
            for target in of_array:
                target.fill(7)
        for share in shares:
            share.combine(op, weights)
    return targets


def check(parts, ranks, op, weights, n_targets=2):
    op = ReduceOp(op)
    for of_array, targets in zip(parts, reduced(parts, ranks, op, weights, n_targets)):
        # test_reductions.py compares `combine` with NumPy. This test checks that blocks and kernels change no bit.
        expected = combine(op, of_array, weights, keep_dtype=True)
        for target in targets:
            assert target.dtype == expected.dtype
            np.testing.assert_array_equal(target, expected)  # NaNs count as equal, and so do zeros
            ties = op.name in ("avg", "min", "max")  # ties of 0 and -0, which NumPy itself does not define
            if expected.dtype.kind == "f" and not ties:
                numbers = ~np.isnan(expected)
                np.testing.assert_array_equal(np.signbit(target[numbers]), np.signbit(expected[numbers]))


@pytest.mark.slow
@pytest.mark.thorough(but="-2-")
@pytest.mark.parametrize(
    "op, dtype",
    [
        (op, dtype)
        for op in OPS
        for dtype in ("float32", "float64", "float16", "int32", ">f8")
        if (op, dtype) != ("avg", "int32")
    ],
)  # integers have no average
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_same_bits_as_numpy(way, op, dtype, ranks):
    random = np.random.RandomState(ranks)
    parts = [[drawn(random, size, dtype) for _ in range(ranks)] for size in SIZES]
    check(parts, ranks, op, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights", [(1, 2, 3), (0, 1, 1), (0, 0, 5), (0, 0, 0), (1e300, 1e-300, 1), (7, 7, 7), (1, 1e-9, 0)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights(way, weights, dtype):
    random = np.random.RandomState(0)
    parts = [[drawn(random, size, dtype) for _ in range(3)] for size in SIZES]
    check(parts, 3, "avg", [float(weight) for weight in weights])


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("there", [(0, 2), (1,), (1, 2), (0, 1, 2)])
def test_ranks_without_a_value(way, op, there):
    random = np.random.RandomState(1)
    parts = [[drawn(random, size, "float32") if rank in there else None for rank in range(3)] for size in SIZES]
    check(parts, 3, op, None, n_targets=1)
    check(parts, 3, op, [2.0, 1.0, 0.0] if op == "avg" else None, n_targets=1)


def test_arrays_of_several_dtypes_and_shapes(way):
    random = np.random.RandomState(2)
    parts = [
        [drawn(random, 600, dtype).reshape(shape) for _ in range(2)]
        for dtype in ("float32", "int64", "float64", "float16")
        for shape in ((600,), (20, 30), (1, 600, 1))
    ]
    check(parts, 2, "sum", None)


@pytest.mark.slow
def test_weights_change_from_call_to_call(way):
    parts = [[np.zeros(100, "float32"), np.ones(100, "float32")]]
    targets = [[np.empty(100, "float32")]]
    share = Portion(parts, targets, 0, 1)
    for step in range(40):
        share.combine(ReduceOp("avg"), [1.0, float(step)])
        np.testing.assert_allclose(targets[0][0], step / (1 + step), rtol=1e-6)
    share.combine(ReduceOp("max"), None)
    assert np.all(targets[0][0] == 1)


def test_more_ranks_than_the_kernel_takes(way):
    parts = [[np.full(10, rank, "float32") for rank in range(70)]]
    check(parts, 70, "sum", None, n_targets=1)
    check(parts, 70, "avg", None, n_targets=1)


def test_mean_of_equal_values_is_that_value(way):
    values = np.random.RandomState(3).standard_normal(5000).astype("float32")
    targets = reduced([[values.copy() for _ in range(3)]], 3, ReduceOp("avg"), [1.0, 3.0, 7.0], 1)
    np.testing.assert_array_equal(targets[0][0], values)
