"""Memory for results: taken again when the last view is dead, and never before."""

import gc

import numpy as np
import pytest

from synkhronos.memory import recycled
from synkhronos.memory.recycled import MIN_BYTES, Recycler


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture
def recycler():
    return Recycler()


def test_dead_memory_is_taken_again(recycler):
    array = recycler.empty((MIN_BYTES,), "uint8")
    where = address(array)
    del array
    again = recycler.empty((MIN_BYTES // 4,), "float32")
    assert address(again) == where and again.dtype == np.float32
    assert address(recycler.empty((MIN_BYTES,), "uint8")) != where


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[5:],
        lambda a: a.reshape(2, -1).T,
        lambda a: a.view("int8")[::3],
        lambda a: memoryview(a),
        lambda a: a[:1].real,
    ],
)
def test_a_view_keeps_it(recycler, view):
    array = recycler.empty((2 * MIN_BYTES,), "uint8")
    array[:] = 7
    kept = view(array)
    del array
    gc.collect()
    other = recycler.empty((2 * MIN_BYTES,), "uint8")
    other[:] = 9
    assert np.all(np.asarray(kept) == 7)


@pytest.mark.parametrize(
    "shape, dtype", [((), "float64"), ((0, 5), "float32"), ((MIN_BYTES - 1,), "uint8"), ((1 << 18,), object)]
)
def test_small_arrays_and_objects_are_numpys(recycler, shape, dtype):
    array = recycler.empty(shape, dtype)
    assert array.shape == shape and array.dtype == dtype and array.flags.owndata


def test_like_an_array_of_numpys(recycler):
    array = recycler.empty((3, MIN_BYTES), "float32")
    assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
    assert type(array) is np.ndarray and address(array) % 64 == 0


@pytest.mark.parametrize("first, second", [(MIN_BYTES, 2 * MIN_BYTES), (4 * MIN_BYTES, MIN_BYTES)])
def test_memory_that_does_not_fit_is_given_back(recycler, first, second):
    del_me = recycler.empty((first,), "uint8")
    del del_me
    array = recycler.empty((second,), "uint8")
    array[:] = 1
    assert repr(recycler) == "<Recycler: 0 bytes idle>"


def test_little_is_kept(recycler, monkeypatch):
    arrays = [recycler.empty((size * MIN_BYTES,), "uint8") for size in (1, 2, 3)]
    del arrays
    assert recycler._idle and sum(map(len, recycler._idle)) <= 3 * MIN_BYTES
    monkeypatch.setattr(recycled, "MAX_IDLE_BYTES", 4 * MIN_BYTES)
    large = recycler.empty((5 * MIN_BYTES,), "uint8")
    del large
    assert sum(map(len, recycler._idle)) <= 4 * MIN_BYTES


def test_array_outlives_its_recycler(recycler):
    array = recycler.empty((MIN_BYTES,), "uint8")
    del recycler
    gc.collect()
    array[:] = 3
    assert np.all(array == 3)


@pytest.mark.parametrize("size", [1 << 62, 1 << 46])
def test_memory_that_cannot_be_had_is_numpys_error(size):
    with pytest.raises(MemoryError):
        Recycler().empty((size,), np.uint8)
