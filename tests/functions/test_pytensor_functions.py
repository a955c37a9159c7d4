"""What functions of PyTensor's offer besides calls, on ranks: profiles, copies, free, trust_input."""

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk

pytestmark = pytest.mark.pytensor
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

ROWS = np.arange(4.0)


@pytest.fixture(params=[("threads", 3), ("fork", 2)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine="pytensor")


def function(linker="vm", **kwargs):
    """Return a function that adds the sum of the rows to a variable, and it."""
    x, w = pt.vector("x"), pytensor.shared(np.zeros(()), "w")
    mode = pytensor.compile.mode.Mode(linker, None)
    return synk.function([x], (pt.tanh(x).mean(), "avg"), updates=[(w, w + x.sum())], mode=mode, **kwargs), w


def test_the_profile_counts_all_ranks(world):
    from pytensor.compile.debug.profiling import ProfileStats

    f, _ = function(profile=ProfileStats(atexit_print=False))
    for _ in range(3):
        f(ROWS)
    profile = f.profile
    assert profile.fct_callcount == 3 * world.n
    assert set(profile.apply_callcount.values()) == {3 * world.n}


@pytest.mark.parametrize("linker", ["py", "vm"])
def test_copies_and_free(world, linker):
    f, w = function(linker)
    v = pytensor.shared(np.ones(()), "v")
    f(ROWS)
    f.free()
    sums = [part.sum() for part in np.array_split(ROWS, world.n)]
    f.copy(swap={w: v})(ROWS)
    np.testing.assert_array_equal(world.values(v), np.add(1, sums))
    np.testing.assert_allclose(f.copy(delete_updates=True)(ROWS), np.tanh(ROWS).mean())
    np.testing.assert_array_equal(world.values(w), sums)


def test_trust_input(world):
    f, _ = function()
    f.trust_input = True
    assert f.trust_input
    np.testing.assert_allclose(f(ROWS), np.tanh(ROWS).mean())


def test_functions_return_no_dicts(world):
    x = pt.vector("x")
    with refuses(TypeError, "outputs", got="a dict"):
        synk.function([x], {"a": x.sum()})
