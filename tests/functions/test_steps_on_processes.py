"""Steps on real processes: interrupts, deaths and late ranks in the middle of many, and their memory."""

import os
import signal
import time

import numpy as np
import psutil
import pytest
from worlds import ENGINES, Tables

import synkhronos as synk
from synkhronos.runtime import session as session_module


def slowly(x):
    """A sum that takes a moment, so that ranks are in the middle of their steps when something happens."""
    time.sleep(0.0005)
    return x.sum()


class Counter:
    """A function that counts its calls, on two processes."""

    def __init__(self, make_world, words_of, name, n=2, **options):
        self.words = words_of(name)
        self.world = make_world("fork", n, 0, name, **options)
        x, self.count = self.words.variable("x"), self.words.shared(np.array(0), name="count")
        if name == "numpy":
            value = self.words.apply(slowly, x, dtype="float64", ndim=0)
        else:
            from library import L, T

            value = L.as_op([x.type], [T.dscalar])(slowly)(x)
        self.f = self.words.function(
            [x], [(value, "sum"), (self.count, "gather")], updates=[(self.count, self.count + 1)]
        )
        self.f(np.ones(4))
        self.world.set_values(self.count, [0] * n)

    def counts(self):
        return [value.tolist() for value in self.world.values(self.count)]


@pytest.fixture(params=ENGINES)
def counter(request, make_world, words_of):
    """The function, on each engine."""
    return Counter(make_world, words_of, request.param)


def at(step, action):
    """Return an ``on_step`` that acts after one step."""
    return lambda i, outputs: action() if i == step else None


def test_ctrl_c_in_the_500th_of_1000_steps(counter):
    with pytest.raises(KeyboardInterrupt) as caught:
        counter.f.steps(np.ones(4), n_steps=1000, on_step=at(499, lambda: os.kill(os.getpid(), signal.SIGINT)))
    error = caught.value
    assert error.step == 499 and error.steps[0] == 500 and 0 < error.steps[1] < 1000
    assert counter.counts() == error.steps  # the session goes on, and no rank has made a step since
    sums, counts = counter.f.steps(np.ones(4), n_steps=2)
    assert sums.tolist() == [4.0, 4.0] and [each.tolist() for each in counts] == [
        error.steps,
        [n + 1 for n in error.steps],
    ]


def test_an_interrupt_in_the_middle_of_a_step(counter):
    """At whatever moment: every rank holds what its own steps have made, or one more if the last was not counted yet."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for seconds in (0.1, 0.13, 0.2):  # not while the command is being prepared
        before = counter.counts()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with pytest.raises(KeyboardInterrupt) as caught:
            counter.f.steps(np.ones(4), n_steps=100000)
        after = counter.counts()
        for rank in range(2):
            assert after[rank] - before[rank] - caught.value.steps[rank] in (0, 1)


def test_a_rank_is_killed_in_a_step(counter):
    launcher = counter.world.session.launcher
    with pytest.raises(synk.WorkerDied, match="rank 1 .*SIGKILL.* in steps of function") as caught:
        counter.f.steps(np.ones(4), n_steps=10000, on_step=at(50, lambda: os.kill(launcher.pid(1), signal.SIGKILL)))
    error = caught.value
    assert error.rank == 1 and error.step == error.steps[1] < 10000 and 51 <= error.steps[0] < 10000
    assert error.updated == ["count"] and f"in step {error.step} " in str(error)
    assert not synk.is_forked()


def test_a_rank_that_stops_in_a_step(counter):
    launcher = counter.world.session.launcher
    with pytest.raises(synk.WorkerTimeout, match="no rank finished a step .* within 0.3 s") as caught:
        stop = at(20, lambda: os.kill(launcher.pid(1), signal.SIGSTOP))
        counter.f.steps(np.ones(4), n_steps=400, on_step=stop, timeout=0.3)
    assert caught.value.rank == 1 and caught.value.steps[0] == 400
    assert caught.value.step == caught.value.steps[1] < 400


def late(x):
    if x[0] == 1:
        time.sleep(0.15)
    return x.sum()


def test_time_counts_from_the_last_finished_step(make_world, numpy_words, monkeypatch, caplog):
    """Ten steps of 0.15 s: neither late after 1 s, nor is a rank waited for."""
    monkeypatch.setattr(session_module, "WARN_AFTER_S", 1.0)
    make_world("fork", 2)
    x = numpy_words.variable("x")
    f = synk.function([x], (numpy_words.apply(late, x, dtype="float64", ndim=0), "sum"))
    assert f.steps(np.array([0.0, 1.0]), n_steps=10, timeout=1.0).tolist() == [1.0] * 10
    assert not caplog.messages
    with pytest.raises(synk.WorkerTimeout) as caught:
        f.steps(np.array([0.0, 1.0]), n_steps=10, timeout=0.05)
    assert caught.value.rank == 1 and caught.value.step < 10


@pytest.mark.parametrize(
    "engine, n",
    [
        ("numpy", 100000),
        *(
            pytest.param(name, n, marks=getattr(pytest.mark, name))
            for name, n in (("theano", 20000), ("pytensor", 10000))
        ),
    ],
)
def test_memory_does_not_grow(make_world, words_of, engine, n):
    words = words_of(engine)
    world = make_world("fork", 2, 0, engine)
    x, w = words.variable("x", 2), words.shared(np.zeros(3), name="w")
    f = words.function([x], [words.mean(x * w), (words.max(x), "max")], updates=[(w, w * 0.5 + words.mean(x, axis=0))])
    data = synk.data(np.arange(300.0).reshape(100, 3))
    batches = np.random.RandomState(0).randint(0, 100, (n, 4))

    def memory():
        pids = [os.getpid(), world.session.launcher.pid(1)]
        return [psutil.Process(pid).memory_info().rss for pid in pids] + [
            used for _, _, used in world.session.run(Tables())
        ]

    f.steps(data, batches=batches[:5000], output_subset=[0])
    f.steps(data, batches=batches[:5000], output_subset=[0])
    f.steps(data, batches=batches, output_subset=[0])
    used = [memory()]
    for _ in range(3):
        f.steps(data, batches=batches, output_subset=[0])
        used.append(memory())
    # What leaks does so each time; in between the system may give a process memory in larger pages.
    assert max(np.diff(used, axis=0).min(axis=0)) < 1 << 20  # ten bytes for each step would be as much
