"""Other features of PyTensor's functions, on ranks: profiles, copies, free, trust_input and inputs with a value.

Modules: `synkhronos.engines.graph.profiles`.
"""

import copy
import pickle

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
    """Return a function that adds the sum of the rows to a variable, and this variable."""
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


@pytest.mark.parametrize("exact", [False, True])
def test_inputs_bound_to_a_shared_variable(world, exact):
    """Calls behave like those of PyTensor's own function: an argument replaces the variable's value."""
    x, s = pt.vector("x"), pt.scalar("s")
    w, own = (pytensor.shared(np.asarray(1.0), name) for name in ("w", "own"))

    def given(shared):
        return pytensor.In(s, value=shared, update=0.5 * s + (x.mean() if exact else 1), implicit=False)

    mode = pytensor.compile.mode.Mode("py", None)
    f = synk.function([x], (x * s, "gather"), bcast_inputs=[given(w)], mode=mode, exact=exact)
    serial = pytensor.function([x, given(own)], x * s, mode=mode)
    for args, options in (((), {}), ((), {"num_slices": 2}), ((8.0,), {}), ((), {})):
        np.testing.assert_allclose(f(ROWS, *args, **options), serial(ROWS, *args))
        np.testing.assert_allclose(world.values(w), [own.get_value()] * world.n)
    for shared in (w, own):
        shared.set_value(np.asarray(4.0))  # all ranks have the value in the next call
    np.testing.assert_allclose(f(ROWS), serial(ROWS))
    np.testing.assert_allclose(f.steps(ROWS, n_steps=2), [serial(ROWS), serial(ROWS)])
    np.testing.assert_allclose(world.values(w), [own.get_value()] * world.n)
    for again in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        np.testing.assert_allclose(again(ROWS), own.get_value() * ROWS)
    np.testing.assert_allclose(world.values(w), [own.get_value()] * world.n)


def test_a_generator_that_is_put_there(world):
    rng, r = pytensor.shared(np.random.default_rng(3), "rng"), pt.random.type.random_generator_type("r")
    new, drawn = pt.random.uniform(size=(3,), rng=r).owner.outputs
    given = pytensor.In(r, value=rng, update=new, implicit=False, mutable=True)
    f = synk.function([], (drawn, "gather"), bcast_inputs=[given], mode=pytensor.compile.mode.Mode("py", None))
    f()
    rng.set_value(np.random.default_rng(7))
    numbers = f().reshape(world.n, 3)
    np.testing.assert_array_equal(numbers[world.root], np.random.default_rng(7).uniform(size=3))
    assert len(np.unique(numbers)) == 3 * world.n
    rng.set_value(np.random.default_rng(7))
    np.testing.assert_array_equal(f().reshape(world.n, 3), numbers)
