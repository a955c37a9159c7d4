"""Steps of functions with collectives inside: all ranks make a step or none does, whatever fails in the next step.

Expected values come from the engine alone, where collectives are identities, called with all rows step by step.
"""

from collections import OrderedDict

import numpy as np
import pytest
from library import NAME, L, T
from trainers import updates as rules

import synkhronos as synk
from synkhronos import in_graph
from synkhronos.calls.rank_call import Change, CollectivesOfCall
from synkhronos.errors import WorkerDied, WorkerError
from synkhronos.runtime.transaction import MAX_UNDO_STEPS

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.thorough("threads-1")]

FAST = dict(mode=L.quick)
X = np.random.RandomState(0).randn(40, 3)
#: Uneven batches, some with fewer rows than ranks.
BATCHES = [np.random.RandomState(i).permutation(40)[:n] for i, n in enumerate([6, 7, 1, 5, 2, 6, 3, 6])]


class Trouble(L.Op):
    """Op that returns its value; in one step on one rank, it first calls `how`."""

    __props__ = ("rank", "step", "how")

    def __init__(self, rank, step, how):
        self.rank, self.step, self.how = rank, step, how

    def make_node(self, count, value):
        return L.Apply(self, [count, value], [value.type()])

    def perform(self, node, inputs, outputs):
        count, value = inputs
        call = in_graph.current()
        if call is not None and call.context.rank == self.rank and count == self.step:
            self.how()
        outputs[0][0] = value.copy()


class Twins:
    """A program that trains and counts its steps, on the ranks and in the engine alone.

    Parameters
    ----------
    trouble : (rank, step, how), optional
    after : bool
        Whether the trouble comes after the last collective.
    only_every : int, optional
        Number of steps per step with collectives.
    """

    def __init__(self, trouble=None, after=False, only_every=None):
        (self.f, self.params), (self.g, self.others) = (
            self._build(make, trouble, after, only_every) for make in (synk.function, L.function)
        )

    @staticmethod
    def _build(make, trouble, after, only_every):
        x = T.dmatrix("x")
        w, speed, count = (
            L.shared(value, name) for value, name in ((np.ones(3), "w"), (np.zeros(3), "speed"), (0, "count"))
        )
        loss = T.sqr(T.dot(x, w) - 1).mean()
        gradient = T.grad(loss, w)
        if trouble and not after:
            gradient = Trouble(*trouble)(count, gradient)
        gradient = synk.ops.all_reduce(gradient)
        if only_every:
            gradient = L.ifelse(T.eq(count % only_every, 0), gradient, T.zeros_like(gradient))
        new = 0.5 * speed - 0.1 * gradient
        if trouble and after:
            new = Trouble(*trouble)(count, new)
        updates = OrderedDict([(speed, new), (w, w + new), (count, count + 1)])
        return make([x], loss, updates=updates, mode=L.lazy if only_every else L.quick), [w, speed, count]

    def serial(self, batches):
        """Make the steps in the engine alone; return the losses."""
        return [float(self.g(X[rows])) for rows in batches]

    def compare(self):
        """Compare the variables on all ranks with the serial ones."""
        for ours, other in zip(self.params, self.others):
            for value in np.atleast_1d(synk.gather(ours, nd_up=1)):
                np.testing.assert_allclose(value, other.get_value(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("how", [("threads", 1, 0), ("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def test_steps_are_the_serial_programs(make_world, how):
    make_world(*how, engine=NAME)
    twins, seen = Twins(), []
    data = synk.data(X)
    losses = twins.f.steps(data, batches=BATCHES, on_step=lambda i, loss: seen.append(i))
    np.testing.assert_allclose(losses, twins.serial(BATCHES), rtol=1e-11)
    twins.compare()
    assert seen == list(range(len(BATCHES)))
    again, mean = Twins(), Twins()
    calls = [again.f(data, batch=rows) for rows in BATCHES]
    assert np.array_equal(losses, calls)
    for ours, other in zip(twins.params, again.params):
        assert np.array_equal(ours.get_value(), other.get_value())
    weights = list(map(len, BATCHES))
    np.testing.assert_allclose(
        mean.f.steps(X, batches=BATCHES, total=True), np.average(calls, weights=weights), rtol=1e-11
    )


@pytest.mark.thorough
def test_an_epoch_of_adam(make_world):
    make_world("fork", 2, 0, engine=NAME)

    def build(make):
        x, w = T.dmatrix("x"), L.shared(np.ones(3), "w")
        loss = T.sqr(T.dot(x, w) - 1).mean()
        return make([x], loss, updates=rules.adam(synk.ops.all_reduce(T.grad(loss, [w])), [w], 0.1)), w

    (f, w), (g, other) = build(synk.function), build(L.function)
    for _ in range(2):
        losses = f.steps(X, batches=BATCHES)
        np.testing.assert_allclose(losses, [g(X[rows]) for rows in BATCHES], rtol=1e-10)
        np.testing.assert_allclose(synk.gather(w, nd_up=1), [other.get_value()] * 2, rtol=1e-10)


def fail():
    raise ArithmeticError("trouble")


@pytest.mark.thorough(but="4-fork")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", [("threads", 3, 0), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
@pytest.mark.parametrize("step", [0, 4])
def test_an_error_in_a_step_leaves_the_steps_before(make_world, how, rank, after, step):
    make_world(*how, engine=NAME)
    twins = Twins((rank, step, fail), after)
    with pytest.raises(ArithmeticError if rank == 0 else WorkerError) as caught:
        twins.f.steps(X, batches=BATCHES)
    assert caught.value.step == step
    (made,) = set(caught.value.steps)
    assert made in (step, step - 1)  # (the completion of the previous step is known at the next collective)
    twins.serial(BATCHES[:made])
    twins.compare()
    if made < step:
        twins.f(X, batch=BATCHES[made]), twins.serial(BATCHES[made : made + 1])
    twins.params[2].set_value(100), synk.broadcast(twins.params[2]), twins.others[2].set_value(100)
    np.testing.assert_allclose(twins.f.steps(X, batches=BATCHES), twins.serial(BATCHES), rtol=1e-11)
    twins.compare()


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("after", [False, True])
def test_ctrl_c_in_a_step(make_world, after):
    make_world("fork", 2, 0, engine=NAME)
    twins = Twins((0, 5, interrupt), after)
    with pytest.raises(KeyboardInterrupt) as caught:
        twins.f.steps(X, batches=BATCHES)
    assert caught.value.step == 5
    (made,) = set(caught.value.steps)
    twins.serial(BATCHES[:made])
    twins.compare()


def test_ctrl_c_before_a_step_is_counted(make_world, monkeypatch):
    make_world("fork", 2, 0, engine=NAME)
    twins, right, calls = Twins(), Change.__call__, []

    def interrupted(self):
        right(self)
        calls.append(self)
        if len(calls) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(Change, "__call__", interrupted)  # only on the master
    with pytest.raises(KeyboardInterrupt) as caught:
        twins.f.steps(X, batches=BATCHES)
    (made,) = set(caught.value.steps)
    assert made in (4, 5, 6)
    twins.serial(BATCHES[:made])
    twins.compare()


def die():
    import os

    os._exit(3)


@pytest.mark.parametrize("after", [False, True])
def test_a_rank_that_dies_in_a_step(make_world, after):
    make_world("fork", 2, 0, engine=NAME)
    twins = Twins((1, 5, die), after)
    with pytest.raises(WorkerDied) as caught:
        twins.f.steps(X, batches=BATCHES)
    assert caught.value.step == 5
    twins.serial(BATCHES[: caught.value.steps[0]])
    for ours, other in zip(twins.params, twins.others):
        np.testing.assert_allclose(ours.get_value(), other.get_value(), rtol=1e-11)


@pytest.mark.thorough
def test_steps_in_which_ranks_do_not_meet(make_world):
    """If a condition skips the collectives in most steps, the values after all steps or after a failure are correct."""
    make_world("fork", 2, 0, engine=NAME)
    batches = [BATCHES[i % 8] for i in range(3 * MAX_UNDO_STEPS)]
    every = 2 * MAX_UNDO_STEPS + 3
    twins = Twins(only_every=every)
    np.testing.assert_allclose(twins.f.steps(X, batches=batches), twins.serial(batches), rtol=1e-11)
    twins.compare()
    step = every + 5
    twins = Twins((1, step, fail), after=True, only_every=every)
    with pytest.raises(WorkerError) as caught:
        twins.f.steps(X, batches=batches)
    (made,) = set(caught.value.steps)
    assert caught.value.step == step and step - MAX_UNDO_STEPS <= made <= step
    twins.serial(batches[:made])
    twins.compare()


@pytest.mark.parametrize("how", [("threads", 3, 0), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def test_on_step_ends_the_steps(make_world, how):
    make_world(*how, engine=NAME)
    twins = Twins()
    losses = twins.f.steps(X, batches=BATCHES, on_step=lambda i, loss: i < 3)
    assert len(losses) == 4  # ranks are at the same step
    np.testing.assert_allclose(losses, twins.serial(BATCHES[:4]), rtol=1e-11)
    twins.compare()


@pytest.mark.parametrize("n", [1, 3])
def test_values_of_one_step_alone_are_kept(make_world, monkeypatch, n):
    """Only one step can be undone: once ranks reach the next step's collective, the previous step is final."""
    make_world("threads", n, 0, engine=NAME)
    right, kept = CollectivesOfCall.all_reduce, []

    def counting(self, *args):
        results = right(self, *args)
        kept.append(len(self.context.transaction._undo_log))
        return results

    monkeypatch.setattr(CollectivesOfCall, "all_reduce", counting)
    Twins().f.steps(X, batches=BATCHES)
    assert kept == [0] * len(BATCHES) * n


@pytest.mark.thorough
def test_memory_does_not_grow(make_world):
    world = make_world("fork", 2, 0, engine=NAME)
    w = L.shared(np.ones(30000), "w")
    f = synk.function([], w.sum(), updates=[(w, synk.ops.all_reduce(w * 0.999) + 0.001)])
    f.steps(n_steps=500)
    used = world.session.pool.used
    f.steps(n_steps=500)
    assert world.session.pool.used <= used + 4096
    np.testing.assert_allclose(w.get_value(), 1)
