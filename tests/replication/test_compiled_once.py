"""With PyTensor's default linker, Numba, the master compiles functions; other ranks load them from the cache."""

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.runtime.command import Command

pytestmark = pytest.mark.pytensor
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")
pytest.importorskip("numba")

NUMBA = pytensor.compile.mode.get_mode("NUMBA")


#: Unique name, because functions of other tests may exist, too.
NAME = "compiled once"


class Compiled(Command):
    """Return the numbers of Numba's cache hits and misses on this rank, for each function called `NAME`."""

    def run(self, context):
        functions = [entry.reference() for entry in context.registry.functions.values()]
        stats = [function.vm.jit_fn.stats for function in functions if function.name == NAME]
        assert stats
        return [(sum(each.cache_hits.values()), sum(each.cache_misses.values())) for each in stats]


def step():
    """Return a function with two collectives and an update, and the updated variable."""
    x, w = pt.matrix("x"), pytensor.shared(np.ones(2), "w")
    total = synk.ops.all_reduce(x.sum(), "sum")
    gradient = synk.ops.all_reduce(x.mean(0) * total)
    return synk.function([x], [(total, None)], updates=[(w, w - gradient)], mode=NUMBA, name=NAME), w


def test_only_the_master_compiles(make_world):
    world = make_world("fork", 3, 2, "pytensor")
    f, w = step()
    synk.distribute()
    assert all(found == [(1, 0)] for rank, found in enumerate(world.session.run(Compiled())) if rank != 2)
    data, truth = np.random.RandomState(0).randn(7, 2), np.ones(2)
    for _ in range(2):
        (total,) = f(data)
        np.testing.assert_allclose(total, data.sum(), rtol=1e-12)
        truth = truth - data.mean(0) * data.sum()
        for value in world.values(w):
            np.testing.assert_allclose(value, truth, rtol=1e-12)
    assert all(found == [(1, 0)] for rank, found in enumerate(world.session.run(Compiled())) if rank != 2)


def test_one_signature_whatever_the_arrays_are(make_world):
    """Numba compiles each function once for arrays of any layout in memory."""
    world = make_world("fork", 2, 0, "pytensor")
    x, w = pt.matrix("x"), pytensor.shared(np.ones((2, 2)), "w")
    f = synk.function([x], (x * 2, "gather"), updates=[(w, w + x.sum())], mode=NUMBA, name=NAME)
    readonly = np.arange(8.0).reshape(4, 2)
    readonly.flags.writeable = False
    for value in (np.ones((4, 2)), np.ones((2, 4)).T, np.ones((8, 4))[::2, ::2], readonly, synk.data(np.ones((4, 2)))):
        np.testing.assert_array_equal(f(value), np.asarray(value) * 2)
        w.set_value(np.asfortranarray(w.get_value()), borrow=True)
    assert all(sum(one) == 1 for found in world.session.run(Compiled()) for one in found)
