"""Large sessions: inputs of 3 GB, and 64 ranks; each test is skipped without the memory that it needs."""

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.host import machine
from synkhronos.testing import numpy_engine as engine

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

GB = 1 << 30
ROWS, WIDTH = 3 << 20, 256  # 3 GB of float32


def needs(nbytes):
    """Skip a test if less memory is available than it needs."""
    available = machine.available_memory()
    if available < nbytes:
        pytest.skip(f"needs {nbytes / GB:.0f} GB of memory, and {available / GB:.1f} GB are available")


def fill(array):
    """Write small integers, equal in each row."""
    array[:] = (np.arange(ROWS, dtype="float32") % 7)[:, None]


def functions():
    """Return a function with the sum of each column, which float32 represents exactly, and the number of its calls."""
    x, calls = engine.variable("x", "float32", 2), engine.shared(np.zeros(1), "calls")
    return synk.function([x], (engine.sum(x, 0), "sum"), updates=[(calls, calls + 1)]), calls


def total(rows=slice(None)):
    return np.full(WIDTH, (np.arange(ROWS)[rows] % 7).sum(), "float32")


def test_data_of_3_gb():
    needs(4 * GB)
    data, (f, calls) = synk.data(shape=(ROWS, WIDTH), dtype="float32"), functions()
    fill(data)
    with synk.fork(2):
        assert np.array_equal(f(data), total())
        assert np.array_equal(f(data, num_slices=3), total())
        last = slice(ROWS - 10, ROWS)
        assert np.array_equal(f(data, batch=last), total(last))
        assert calls.get_value() == [3]
    data.free_memory()


def test_a_plain_input_of_3_gb():
    needs(7 * GB)  # the array, and its copy in shared memory
    plain, (f, _) = np.empty((ROWS, WIDTH), "float32"), functions()
    fill(plain)
    with synk.fork(2):
        assert np.array_equal(f(plain), total())


def test_64_ranks():
    needs(6 * GB)
    w, x = engine.shared(np.arange(1000.0), "w"), engine.variable("x", "float64", 2)
    f = synk.function([x], [(engine.mean(x), "avg"), (x, "gather")], updates=[(w, w + engine.sum(x))])
    values = np.arange(512.0).reshape(256, 2)
    parts = [part.sum() for part in np.array_split(values, 64)]
    with synk.fork(64) as n:
        assert n == 64
        mean, rows = f(values)
        assert mean == values.mean() and np.array_equal(rows, values)
        for rank in (0, 1, 31, 63):
            assert np.array_equal(synk.get_value(rank, w), np.arange(1000.0) + parts[rank])
        synk.all_reduce(w, op="sum")
        for rank in (0, 63):
            assert np.array_equal(synk.get_value(rank, w), 64 * np.arange(1000.0) + sum(parts))
        assert synk.in_sync(w)
