"""Asynchronous steps with hooks that only count, on ranks that are threads and processes."""

import numpy as np
import pytest
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.contrib.asynchronous import AsyncRegion, StepHooks, run_asynchronously
from synkhronos.testing import numpy_engine as engine

X = np.arange(20.0)


class Counting(StepHooks):
    """Hooks that record their calls, and add 1 to a number of all ranks in every ``every``-th step."""

    def __init__(self, shareds, every=1):
        super().__init__(shareds)
        self.every = every
        self._total, self.total = self.shared(np.zeros(1))

    def begin(self, region):
        super().begin(region)
        self.number, self.calls, self.orders = region.attach(self.total), [], []

    def before(self):
        self.calls.append("before")

    def after(self, batch):
        self.calls.append(batch)
        if len(self.calls) // 2 % self.every == 0:
            with self.region.alone() as order:
                self.number[0] += 1
                self.orders.append(order)
            self.put([value + 100 for value in self.values()])
            self.region.count()

    def last(self):
        self.calls.append("last")

    def end(self):
        return self.calls, self.orders


def adding(world):
    """Return a parameter and a function that adds the mean of its rows to the parameter."""
    x, w = engine.variable("x", "float64", 1), world.shared(np.zeros(1), "w")
    mean = engine.mean(x)
    f = synk.function([x], mean, updates=[(w, w + mean)], exact=False, name="add")
    synk.distribute()
    return w, f


@pytest.mark.slow("fork")
@pytest.mark.parametrize("launcher, n", [("threads", 1), ("threads", 2), ("threads", 3), ("fork", 3)])
@pytest.mark.parametrize("every", [1, 3])
def test_every_batch_is_one_step_of_one_rank(make_world, launcher, n, every):
    world = make_world(launcher, n)
    w, f = adding(world)
    hooks = Counting([w], every)
    assert not hooks.has_begun
    batches = [[i, i + 1] for i in range(17)]
    found = run_asynchronously(f, hooks, [X], {}, batches)
    assert hooks.has_begun and not hasattr(hooks, "region")  # ranks have copies, even the master
    np.testing.assert_array_equal(found.outputs, [X[batch].mean() for batch in batches])
    taken, orders = [], []
    for rank, (calls, of_rank) in enumerate(found.reports):
        own = calls[1:-1:2]
        assert calls[-1] == "last" and calls[:-1:2] == ["before"] * len(own) and f.last_rows[rank] == 2 * len(own)
        assert len(of_rank) == len(own) // every and of_rank == sorted(of_rank)
        expected = sum(X[batches[i]].mean() for i in own) + 100 * len(of_rank)
        np.testing.assert_allclose(world.values(w)[rank], [expected])
        taken, orders = taken + own, orders + of_rank
    assert sorted(taken) == list(range(17)) and sorted(orders) == list(range(len(orders)))
    assert hooks._total == [len(orders)]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_rank_waits_for_the_slowest(staleness):
    """`AsyncRegion.count` waits while this rank's lead is larger than the bound, but not for ranks that have ended."""
    region = AsyncRegion.__new__(AsyncRegion)
    region.rank, region.staleness, region._words, waits = 0, staleness, np.zeros(2 + 3, np.int64), []
    region._wait = lambda is_ready: waits.append(bool(is_ready()))
    for _ in range(3):
        region.count()
    assert waits == [count <= staleness for count in (1, 2, 3)]
    region._words[2:] = [3, 4, 0]
    region.rank = 2
    region.end()
    region.rank = 0
    region.count()
    assert waits[-1]


class Failing(Counting):
    def after(self, batch):
        raise ZeroDivisionError("the hook")


def test_an_error_in_a_hook_ends_the_command(make_world):
    world = make_world("threads", 2)
    w, f = adding(world)
    with reports((synk.WorkerError, ZeroDivisionError), "the hook"):
        run_asynchronously(f, Failing([w]), [X], {}, [[0]] * 4)
    assert run_asynchronously(f, Counting([w]), [X], {}, [[0]] * 4).outputs.tolist() == [0] * 4


def test_functions_with_collectives_are_refused(make_world):
    world = make_world("threads", 2)
    w, _ = adding(world)
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], synk.ops.all_reduce(engine.mean(x)), updates=[(w, w)], name="common")
    with refuses(ValueError, "function", "independently", "common"):
        run_asynchronously(f, Counting([w]), [X], {}, [[0]])
