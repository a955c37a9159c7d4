"""`synkhronos.all_reduce` with ``into`` and with ``wait=False``; expected values come from NumPy."""

import functools
import gc
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import table
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

RANDOM = np.random.RandomState(0)


@pytest.fixture(params=[("threads", 3, 1), ("fork", 2, 0), ("threads", 1, 0)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param)


def parts_of(world, shapes):
    return [[RANDOM.randn(*shape) for _ in range(world.n)] for shape in shapes]


def made(world, shapes=((3,), (2, 30_000))):
    """Return variables whose values differ between ranks, other variables of the same types, and the values."""
    parts = parts_of(world, shapes)
    sources, targets = [world.shareds([np.zeros(shape) for shape in shapes]) for _ in range(2)]
    for source, of_ranks in zip(sources, parts):
        world.set_values(source, of_ranks)
    return sources, targets, parts


def test_results_go_into_others(world):
    sources, targets, parts = made(world)
    for op, ufunc in (("avg", np.mean), ("max", np.max)):
        assert synk.all_reduce(sources, op, into=targets) is None
        for source, target, of_ranks in zip(sources, targets, parts):
            np.testing.assert_array_equal(world.values(source), of_ranks)
            values = world.values(target)
            table.assert_same_bits(values)
            np.testing.assert_allclose(values[0], ufunc(of_ranks, axis=0), rtol=1e-14, atol=1e-15)


def test_into_one_of_the_sources(world):
    """All sources are read before any target is overwritten."""
    (a, b), _, (of_a, of_b) = made(world, [(4,), (4,)])
    synk.all_reduce([a, b], "sum", into=[b, a])
    np.testing.assert_allclose(world.values(b)[0], np.sum(of_a, axis=0), rtol=1e-13)
    np.testing.assert_allclose(world.values(a)[-1], np.sum(of_b, axis=0), rtol=1e-13)


def test_targets_take_the_shapes(world):
    source, target = world.shared(np.zeros(5), "source"), world.shared(np.zeros(2), "target")
    synk.all_reduce(source, "max", into=target)
    table.assert_same_bits(world.values(target), np.zeros(5))


@pytest.mark.parametrize("is_into", [True, False], ids=["into others", "into themselves"])
def test_values_are_those_of_the_start(world, is_into):
    """Calls, updates and collectives after the start do not change the result, even if memory is reused."""
    sources, targets, parts = made(world)
    steps = synk.function([], updates=[(source, source * 2 + 1) for source in sources])
    for _ in range(3):
        started = synk.all_reduce(sources, into=targets if is_into else None, wait=False)
        steps()
        synk.broadcast(sources[1], np.ones((2, 30_000)))
        before = [world.values(target) for target in targets]
        later = [parts_of(world, [(3,), (2, 30_000)]) for _ in range(1)][0]
        for source, of_ranks in zip(sources, later):
            world.set_values(source, of_ranks)
        for target, values in zip(targets, before):
            np.testing.assert_array_equal(world.values(target), values)
        assert "started" in repr(started)
        started.wait()
        assert "done" in repr(started)
        for source, target, of_ranks, new in zip(sources, targets, parts, later):
            values = world.values(target if is_into else source)
            table.assert_same_bits(values)
            np.testing.assert_allclose(values[0], np.mean(of_ranks, axis=0), rtol=1e-13, atol=1e-15)
            np.testing.assert_array_equal(world.values(source), new if is_into else values)
        for source, of_ranks in zip(sources, parts):
            world.set_values(source, of_ranks)


def test_several_at_a_time_in_any_order(world):
    """Several collectives may be under way and end in any order; their weights are those from the start."""
    (a, b), (to_a, to_b), (of_a, of_b) = made(world)
    weights = np.arange(1.0, world.n + 1)
    first = synk.all_reduce(a, into=to_a, weights=weights, wait=False)
    weights *= 0
    second = synk.all_reduce(b, "min", into=to_b, wait=False)
    second.wait()
    first.wait()
    np.testing.assert_allclose(world.values(to_a)[0], np.average(of_a, axis=0, weights=np.arange(1, world.n + 1)))
    np.testing.assert_array_equal(world.values(to_b)[-1], np.min(of_b, axis=0))


def test_one_of_a_variable_at_a_time(make_world):
    world = make_world("threads", 2)
    w, v = world.shareds([np.zeros(2), np.zeros(2)])
    started = synk.all_reduce([w, v], wait=False)
    with reports(synk.StateError, "wait()", "v1"):
        synk.all_reduce(v, wait=False)
    started.wait()
    with reports(synk.StateError, "all_reduce", "v0", "v1"):
        started.wait()
    synk.all_reduce(v, wait=False).wait()


def test_what_is_given_up(make_world):
    """A dropped collective delivers no result, does not prevent another one, and need not end before `close`."""
    world = make_world("threads", 2)
    w, mean = world.shared(np.zeros(2), "w"), world.shared(np.zeros(2), "mean")
    world.set_values(w, [[1.0, 1.0], [3.0, 3.0]])
    started = synk.all_reduce(w, into=mean, wait=False)
    started.drop()
    started.drop()
    with reports(synk.StateError, "all_reduce", "w"):
        started.wait()
    world.set_values(w, [[5.0, 5.0], [7.0, 7.0]])
    another = synk.all_reduce(w, into=mean, wait=False)
    started.drop()  # (this does not affect the other collective)
    with reports(synk.StateError, "wait()", "w"):
        synk.all_reduce(w, wait=False)
    another.wait()
    table.assert_same_bits(world.values(mean), np.full(2, 6.0))
    synk.all_reduce(w, wait=False).drop()
    synk.close()


@pytest.mark.parametrize("lost", ["into", "feedback"])
def test_what_takes_results_lives_until_they_are_there(make_world, lost):
    world = make_world("threads", 2)
    w = world.shared(np.zeros(2), "w")
    world.set_values(w, [[1.0, 1.0], [3.0, 3.0]])
    others = {name: engine.shared(np.zeros(2), name) for name in ("into", "feedback")}  # no function uses these
    started = synk.all_reduce(w, exchange="bfloat16", wait=False, **others)
    del others[lost]
    gc.collect()
    started.wait()
    for name, other in others.items():
        table.assert_same_bits(world.values(other), np.full(2, 2.0 if name == "into" else 0.0))


def test_waiting_in_two_threads(make_world):
    world = make_world("threads", 2)
    (w,) = world.shareds([np.zeros(2)])
    started = synk.all_reduce(w, wait=False)
    with ThreadPoolExecutor(1) as executor:
        with world.session.lock:
            other = executor.submit(started.wait)
            time.sleep(0.2)  # time for the other thread to wait for the lock; if it is late, the test still passes
            started.wait()
        with reports(synk.StateError, "all_reduce", "v0"):
            other.result(10)


def test_error_at_the_end_leaves_values_and_the_session(make_world):
    world = make_world("threads", 3)
    w, z = world.shared(np.zeros(2), "w"), world.shared(np.ones(2), "z")
    synk.set_value(1, w, np.zeros(3))
    started = synk.all_reduce(w, into=z, wait=False)
    with refuses(ValueError, "w", got="float64 (3,) on rank 1"):
        started.wait()
    table.assert_same_bits(world.values(z), np.ones(2))
    synk.broadcast(w, np.full(2, 4.0))
    again = synk.all_reduce(w, into=z, wait=False)
    again.wait()
    table.assert_same_bits(world.values(z), np.full(2, 4.0))


def test_another_session(make_world):
    world = make_world("threads", 2)
    w = world.shared(np.zeros(2), "w")
    started = synk.all_reduce(w, wait=False)
    with reports(synk.StateError, "all_reduce", "w"):
        synk.close()
    with reports(synk.StateError, "synkhronos.fork()"):
        started.wait()
    make_world("threads", 2)
    with pytest.raises(synk.StateError):
        started.wait()


@pytest.mark.parametrize(
    "into, error, expected",
    [
        (lambda w: [w], ValueError, "one variable"),
        (lambda w: w.storage[0], TypeError, "shared"),
        (lambda w: engine.shared(np.zeros(2, "float32"), "single"), TypeError, "float64"),
        (lambda w: engine.shared(np.zeros((2, 2)), "matrix"), TypeError, "float64"),
    ],
    ids=["list", "array", "dtype", "dimensions"],
)
@pytest.mark.parametrize("wait", [True, False])
def test_wrong_targets(make_world, refused, into, error, expected, wait):
    world = make_world("threads", 2)
    w = world.shared(np.zeros(2), "w")
    call = functools.partial(synk.all_reduce, w, into=into(w), wait=wait)
    refused(world, error, call, argument="into", expected=expected)
