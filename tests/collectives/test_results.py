"""Memory for large results: reused when nothing refers to a result, and otherwise the program's own."""

import mmap

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.collectives import results
from synkhronos.collectives.results import ResultMemory

FLOAT64 = np.dtype("float64")
REUSED_FROM_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    monkeypatch.setattr(results, "REUSED_FROM_BYTES", REUSED_FROM_BYTES)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_reused_when_nothing_refers_to_it():
    memory, shape = ResultMemory(), (2, REUSED_FROM_BYTES // 8)
    first = memory.empty(shape, FLOAT64)
    assert first.shape == shape and first.dtype == FLOAT64 and first.flags.c_contiguous and first.flags.writeable
    view, before = first[1, 5:], address(first)
    second = memory.empty(shape, FLOAT64)
    assert not np.shares_memory(first, second)
    del first
    third = memory.empty(shape, FLOAT64)
    assert not np.shares_memory(view, third)
    del view
    assert address(memory.empty(shape, FLOAT64)) == before
    assert address(memory.empty(shape[::-1], np.dtype("int64"))) == before  # only the size matters


def test_one_free_block_is_kept():
    memory = ResultMemory()
    blocks = [memory.empty((REUSED_FROM_BYTES + i,), np.dtype("uint8")) for i in (0, 1, 1, 2)]
    for _ in range(3):
        blocks.pop(0)
    assert list(memory.free) == [REUSED_FROM_BYTES + 1]
    memory.empty((REUSED_FROM_BYTES + 3,), np.dtype("uint8"))
    assert list(memory.free) == [REUSED_FROM_BYTES + 3]
    memory.empty((3,), FLOAT64)
    assert list(memory.free) == [REUSED_FROM_BYTES + 3]


@pytest.mark.parametrize("lacks", ["memory", "advice"])
def test_systems_that_lack_something(monkeypatch, lacks):
    class Lacking(mmap.mmap):
        def __new__(cls, *args, **kwargs):
            if lacks == "memory":
                raise OSError(12, "no memory")
            return super().__new__(cls, *args, **kwargs)

        def madvise(self, *args):
            raise AttributeError("madvise")

    monkeypatch.setattr(mmap, "mmap", Lacking)
    memory = ResultMemory()
    result = memory.empty((REUSED_FROM_BYTES,), np.dtype("int8"))
    result[...] = 3
    assert result.sum(dtype=int) == 3 * REUSED_FROM_BYTES and not memory.free


@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_results_of_a_program_stay_as_they_are(make_world, launcher):
    """Results are correct and stay unchanged while other results come and go, and after `close`."""
    world, n = make_world(launcher, 2), REUSED_FROM_BYTES // 4
    variable = world.shared(np.zeros(n, "float32"))
    kept = []
    for i in range(6):
        parts = [np.arange(n, dtype="float32") + 10 * i + rank for rank in range(2)]
        world.set_values(variable, parts)
        found = [synk.gather(variable), synk.gather(variable, nd_up=0), synk.get_value(variable, rank=1)]
        wanted = [np.stack(parts), np.concatenate(parts), parts[1]]
        for result, expected in zip(found, wanted):
            np.testing.assert_array_equal(result, expected)
        kept.append((found[i % 3], wanted[i % 3]))
        found[(i + 1) % 3][...] = -1  # the user's write changes neither another result nor a rank's value
    np.testing.assert_array_equal(world.values(variable), parts)
    synk.close()
    for result, expected in kept:
        np.testing.assert_array_equal(result, expected)
