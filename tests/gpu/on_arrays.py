"""Arithmetic of arrays on a device. Expected values come from `reductions`, which is tested with NumPy."""

import itertools

import numpy as np
import pygpu
import pytest
from refusals import refuses
from worlds import DEVICE

from synkhronos.reductions import Accumulator, ReduceOp, combine
from synkhronos.reductions import device as gpu_arrays

DTYPES = ("float64", "float32", "float16", "int64", "int8", "uint8", "bool")
TOLERANCE = {"float16": 2e-3, "float32": 1e-6}


@pytest.fixture(scope="module")
def context():
    return pygpu.init(DEVICE)


def values(dtype, shape, count):
    random = np.random.RandomState(len(shape))
    arrays = [np.asarray(random.randn(*shape) * 3).astype(dtype) for _ in range(count)]
    if dtype.startswith("float") and arrays[0].size > 1 and count > 2:
        arrays[1].flat[0], arrays[2].flat[1], arrays[-1].flat[-1] = np.nan, np.inf, -np.inf
    return arrays


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_accumulate_as_on_the_host(context, dtype):
    for name, keep, shape in itertools.product(
        ("avg", "sum", "prod", "min", "max", "gather", None), (False, True), ((7,), (), (2, 3), (0, 3))
    ):
        if name == "avg" and not dtype.startswith("float"):
            continue
        op = ReduceOp(name)
        host, device = Accumulator(op, keep), gpu_arrays.DeviceAccumulator(op, keep)
        parts = values(dtype, shape, 1 if name is None else 5)
        for part, weight in zip(parts, (3, 0, 1, 2, 4)):
            host.add(part, weight)
            device.add(pygpu.array(part, context=context), weight)
        (expected, total), (found, weight) = host.finish(), device.finish()
        assert gpu_arrays.is_on_device(found) and weight == total
        found = np.asarray(found)
        assert found.dtype == expected.dtype and found.shape == expected.shape, (name, keep)
        np.testing.assert_allclose(found, expected, TOLERANCE.get(dtype, 1e-14), TOLERANCE.get(dtype, 0), err_msg=name)


def test_an_average_of_equal_values_is_that_value(context):
    for dtype in ("float32", "float64"):
        x = np.random.RandomState(0).randn(1000).astype(dtype) * (np.finfo(dtype).max / 10)
        a = pygpu.array(x, context=context)
        for weights in ((1, 1), (1, 2), (3, 7), (1e300, 1e-3)):
            np.testing.assert_array_equal(np.asarray(gpu_arrays.combine(ReduceOp("avg"), a, a, None, weights)), x)


def test_in_place_is_as_in_new_memory(context):
    for name in ("avg", "sum", "prod", "min", "max"):
        a, b = values("float32", (5,), 2)
        x, y = (pygpu.array(value, context=context) for value in (a, b))
        fresh = gpu_arrays.combine(ReduceOp(name), x, y, None, (1, 3))
        np.testing.assert_array_equal(np.asarray(x), a)
        assert gpu_arrays.combine(ReduceOp(name), x, y, x, (1, 3)) is x
        np.testing.assert_array_equal(np.asarray(x), np.asarray(fresh))
        np.testing.assert_allclose(np.asarray(x), combine(ReduceOp(name), [a, b], [1, 3]), 1e-6)
    with refuses(ValueError, "'sum'", got="float32(3,)"):
        gpu_arrays.combine(ReduceOp("sum"), x, pygpu.array(np.zeros(3, "float32"), context=context))


def test_the_first_slice_may_be_another_output_too(context):
    x = pygpu.array(np.ones(3, "float32"), context=context)
    first, second = (gpu_arrays.DeviceAccumulator(ReduceOp("sum")) for _ in range(2))
    for _ in range(3):
        first.add(x)
        second.add(x)
    np.testing.assert_array_equal(np.asarray(first.finish()[0]), 3)
    np.testing.assert_array_equal(np.asarray(second.finish()[0]), 3)
    np.testing.assert_array_equal(np.asarray(x), 1)


def test_scale_nan_mark_take(context):
    x = np.array([1, np.nan, -np.inf, 4], "float32")
    a = pygpu.array(x, context=context)
    np.testing.assert_allclose(np.asarray(gpu_arrays.scale(a, 3.0, 8.0)), x * 3 / 8)
    np.testing.assert_array_equal(np.asarray(gpu_arrays.nan_mark(a)), [0, np.nan, 0, 0])
    half = pygpu.array(np.array([60000, 2], "float16"), context=context)
    np.testing.assert_allclose(np.asarray(gpu_arrays.scale(half, 4.0, dtype="float32")), [240000, 8])
    table = np.arange(12.0).reshape(4, 3)
    found = gpu_arrays.take(pygpu.array(table, context=context), np.array([3, 0, 3]))
    np.testing.assert_array_equal(np.asarray(found), table[[3, 0, 3]])
    into = np.empty((3, 4))
    np.testing.assert_array_equal(gpu_arrays.download(pygpu.array(table, context=context).T, into), table.T)
