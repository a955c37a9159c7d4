"""Number types, also those of arrays, load from pickles as NumPy's own dtype objects."""

import importlib
import pickle

import cloudpickle
import numpy as np
import pytest

import synkhronos as synk
from synkhronos.memory.pool import Pool


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex128"])
def test_types_are_numpys_own(dumps, name):
    dtype = np.dtype(name)
    assert pickle.loads(dumps(dtype)) is dtype
    for array in (np.ones((2, 3), dtype), np.ones((4, 6), dtype)[::2, ::2], np.ones((2, 3), dtype).T):
        for protocol in (2, 5):
            loaded = pickle.loads(dumps(array, protocol))
            assert loaded.dtype is dtype
            np.testing.assert_array_equal(loaded, array)


def loaded_type():
    """Return float64 as loaded from other programs' pickles: not NumPy's own object."""
    build, args, state = np.dtype("float64").__reduce__()
    loaded = build(*args)
    loaded.__setstate__(state)
    assert loaded is not np.dtype("float64")
    return loaded


def test_arrays_in_shared_memory_have_numpys_own_types():
    pool = Pool(-1)
    assert pool.allocate((2, 3), loaded_type()).dtype is np.dtype("float64")
    assert pool.allocate((2, 3), np.dtype("longlong")).dtype == np.int64
    pool.close()


def test_other_types_are_as_before():
    for dtype in (np.dtype(">f8"), np.dtype("f8", metadata={"unit": "m"}), np.dtype([("x", "f4")]), np.dtype("U3")):
        loaded = pickle.loads(pickle.dumps(dtype))
        assert loaded == dtype and loaded.metadata == dtype.metadata


@pytest.mark.pytensor
@pytest.mark.parametrize("is_loaded", [False, True], ids=["", "loaded"])
@pytest.mark.parametrize("world", [("threads", 2), ("fork", 2)], ids="{0[0]}-{0[1]}".format)
def test_ranks_compute_shared_values_with_the_same_bits(make_world, world, is_loaded):
    """All ranks sum a transposed array in the same memory order, including rank 1, which unpickles its function."""
    pytensor, pt = pytest.importorskip("pytensor"), pytest.importorskip("pytensor.tensor")
    mode = importlib.import_module("pytensor.compile.mode").Mode("py", "fast_run")
    make_world(*world, engine="pytensor")
    value = np.random.default_rng(0).normal(size=(6, 6, 6))
    value = np.frombuffer(bytearray(value), loaded_type()).reshape(value.shape) if is_loaded else value
    w, x = pytensor.shared(value, "w"), pt.matrix("x")
    transposed = w.dimshuffle(1, 0, 2) * pt.max(w, axis=1)
    totals = [pytensor.shared(0.0, f"total{k}") for k in range(20)]
    updates = [(total, (transposed * (k + 1) / 7).sum()) for k, total in enumerate(totals)]
    f = synk.function([x], [], updates=updates, mode=mode, exact=True, on_unused_input="ignore")
    f(np.zeros((4, 3)))
    one, other = ([float(value) for value in synk.get_value(totals, rank)] for rank in range(2))
    assert one == other
