"""Exact functions refuse variables that a collective made different between ranks; expected values come from NumPy."""

import numpy as np
import pytest
from library import NAME, L, T
from refusals import refuses

import synkhronos as synk

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.thorough("fork-2")]

FAST = dict(mode=L.quick)


@pytest.fixture(params=[("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine=NAME)


@pytest.fixture
def program(world):
    x, w, n = T.dvector("x"), L.shared(np.array([1.0, 2.0]), "w"), L.shared(0.0, "n")
    f = synk.function([x], x.sum() + w.sum(), updates=[(n, n + x.sum())], exact=True, name="f", **FAST)
    assert f(np.ones(5)) == 8
    return f, w, n


def test_set_value_of_one_rank(world, program):
    f, w, n = program
    other = (world.root + 1) % world.n
    synk.set_value(other, w, [1.0, 7.0])
    synk.function([T.dscalar()], w.sum(), on_unused_input="ignore", **FAST)(1.0)  # this function is not exact
    got = f"7 on rank {other}, 2 on the master at index (1,)"
    for call in (f, f.compare, lambda x: f.steps(x, n_steps=2)):
        with refuses(ValueError, "shared variable w", "because the function f is exact", got, "synk.broadcast(w)"):
            call(np.ones(5))
    assert synk.gather(n, nd_up=1).tolist() == [5.0] * world.n  # nothing was updated
    synk.broadcast(w)
    assert f(np.ones(5)) == 8
    synk.set_value(world.root, w, [3.0, 2.0])
    with refuses(ValueError, "shared variable w"):
        f(np.ones(5))
    for rank in range(world.n):  # on all ranks, one after the other, because only the values count
        synk.set_value(rank, w, [3.0, 2.0])
    assert f(np.ones(5)) == 10


def test_scatter(world, program):
    f, w, _ = program
    synk.scatter(w, np.arange(2.0 * world.n))
    with refuses(ValueError, "shared variable w", "same value", "on rank"):
        f(np.ones(5))
    synk.all_gather(w)
    assert f(np.ones(5)) == 5 + np.arange(2 * world.n).sum()


def test_what_has_rows_on_every_rank_is_not_refused(world):
    s = L.shared(np.zeros(0), "s")
    f = synk.function([], s.sum() + s.mean(), sliceable_shareds=[s], exact=True, **FAST)
    synk.distribute()
    synk.scatter(s, np.arange(6.0))
    assert f() == 17.5


def test_collectives_that_leave_all_the_same(world, program):
    f, w, _ = program
    synk.set_value(world.root, w, [3.0, 2.0])
    synk.all_reduce(w, "sum")
    assert f(np.ones(5)) == 5 + 3 + 2 + (world.n - 1) * 3
    synk.set_value(world.root, w, [3.0, 2.0])
    synk.broadcast(w, [1.0, 1.0])
    assert f(np.ones(5)) == 7
    synk.reduce(w, in_place=True, op="sum")
    with refuses(ValueError, "shared variable w"):
        f(np.ones(5))


@pytest.mark.parametrize("in_steps", [False, True])
def test_updates_that_a_rank_without_rows_has_not_made(world, in_steps):
    """Exact functions refuse a variable that a rank without rows did not update in a call that was not exact."""
    x, count = T.dvector("x"), L.shared(0.0, "count")
    own = synk.function([x], x.sum(), updates=[(count, count + 1)], exact=False, **FAST)
    f = synk.function([x], x.sum() * count, exact=True, name="f", **FAST)
    own(np.ones(world.n)), own.steps(np.ones(world.n), n_steps=2)
    assert f(np.ones(5)) == 15
    if in_steps:
        own.steps(np.ones(world.n), batches=[slice(world.n), slice(0, 1)])
    else:
        own(np.ones(1))
    with refuses(ValueError, "shared variable count", "because the function f is exact", "master"):
        f(np.ones(5))
    synk.broadcast(count)
    assert f(np.ones(5)) == 5 * (5.0 if in_steps else 4.0)
