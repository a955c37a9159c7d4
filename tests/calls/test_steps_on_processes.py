"""Steps on real processes: interrupts, deaths and late ranks in the middle of many steps, and memory use."""

import os
import signal
import time

import numpy as np
import psutil
import pytest
from clocks import Clock
from gates import Gate, until
from refusals import reports
from worlds import ENGINES, Tables

import synkhronos as synk
from synkhronos.runtime import session as session_module
from synkhronos.runtime.context import RankContext

pytestmark = pytest.mark.slow


#: Rows that delay the other rank at a step, and the number of this step.
HELD, HELD_AT = np.array([1.0, 1.0, 2.0, 2.0]), 30


def held_back(x, count):
    """Return the sum after 0.5 ms; on rows of 2s, step HELD_AT waits at a gate."""
    time.sleep(0.0005)
    if x[0] == 2 and count == HELD_AT:
        gate_of_ranks().wait()
    return x.sum()


def gate_of_ranks():
    """Return the gate whose path is in the environment variable SYNK_TEST_GATE."""
    return Gate(os.environ["SYNK_TEST_GATE"])


class Counter:
    """A function that counts its calls, on two processes."""

    def __init__(self, make_world, words_of, name, n=2, **options):
        self.words = words_of(name)
        self.world = make_world("fork", n, 0, name, **options)
        x, self.count = self.words.variable("x"), self.words.shared(np.array(0), name="count")
        if name == "numpy":
            value = self.words.apply(held_back, x, self.count, dtype="float64", ndim=0)
        else:
            from library import L, T

            value = L.as_op([x.type, self.count.type], [T.dscalar])(held_back)(x, self.count)
        self.f = self.words.function(
            [x], [(value, "sum"), (self.count, "gather")], updates=[(self.count, self.count + 1)]
        )
        self.f(np.ones(4))
        self.world.set_values(self.count, [0] * n)

    def counts(self):
        return [value.tolist() for value in self.world.values(self.count)]


@pytest.fixture(params=ENGINES)
def counter(request, make_world, words_of, monkeypatch, tmp_path):
    """Return a `Counter` for each engine."""
    monkeypatch.setenv("SYNK_TEST_GATE", str(tmp_path / "gate"))
    monkeypatch.setattr(session_module, "GRACE_S", 60.0)
    return Counter(make_world, words_of, request.param)


@pytest.fixture
def clock(monkeypatch):
    """Return the clock that sessions use to detect late commands."""
    clock = Clock()
    monkeypatch.setattr(session_module, "time", clock)
    return clock


def at(step, action):
    """Return an ``on_step`` that acts after one step, while the other rank waits at the gate."""

    def on_step(i, outputs):
        if i == step:
            gate_of_ranks().until_reached()
            action()

    return on_step


def test_ctrl_c_in_the_500th_of_1000_steps(counter, monkeypatch):
    abort = RankContext.abort
    monkeypatch.setattr(RankContext, "abort", lambda context: (abort(context), gate_of_ranks().open())[0])
    with pytest.raises(KeyboardInterrupt) as caught:
        counter.f.steps(HELD, n_steps=1000, on_step=at(499, lambda: os.kill(os.getpid(), signal.SIGINT)))
    error = caught.value
    assert error.step == 499 and error.steps == [500, HELD_AT + 1]
    assert counter.counts() == error.steps  # the session is still usable, and no rank has made a step since
    sums, counts = counter.f.steps(np.ones(4), n_steps=2)
    assert sums.tolist() == [4.0, 4.0] and [each.tolist() for each in counts] == [
        error.steps,
        [n + 1 for n in error.steps],
    ]


@pytest.mark.parametrize("seconds", [0.0001, 0.0004, 0.003])
def test_an_interrupt_in_the_middle_of_a_step(counter, seconds):
    """At any moment, every rank has the updates of its counted steps, and possibly of one more, not yet counted."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)

    def on_step(i, outputs):
        if i == 20:  # not while the command is being prepared
            signal.setitimer(signal.ITIMER_REAL, seconds)

    before = counter.counts()
    with pytest.raises(KeyboardInterrupt) as caught:
        counter.f.steps(np.ones(4), n_steps=100000, on_step=on_step)
    after = counter.counts()
    for rank in range(2):
        assert after[rank] - before[rank] - caught.value.steps[rank] in (0, 1)


def test_a_rank_is_killed_in_a_step(counter):
    session = counter.world.session

    def kill():
        os.kill(session.launcher.pid(1), signal.SIGKILL)
        until(lambda: session.block.ended[1])

    with reports(synk.WorkerDied, "SIGKILL", rank=1, exitcode=-signal.SIGKILL) as caught:
        counter.f.steps(HELD, n_steps=10000, on_step=at(50, kill))
    error = caught.value
    assert error.rank == 1 and error.step == error.steps[1] == HELD_AT and 51 <= error.steps[0] < 10000
    assert error.updated == ["count"] and f"in step {error.step} " in str(error)
    assert not synk.is_forked()


def test_a_rank_that_stops_in_a_step(counter, clock):
    session = counter.world.session
    clock.when(lambda: session.block.steps[0] == 400, lambda: clock.advance(0.2))
    clock.when(lambda: True, lambda: clock.advance(0.4))
    with reports(synk.WorkerTimeout, "step", "0.3 s") as caught:
        stop = at(20, lambda: os.kill(session.launcher.pid(1), signal.SIGSTOP))
        counter.f.steps(HELD, n_steps=400, on_step=stop, timeout=0.3)
    assert caught.value.rank == 1 and caught.value.steps == [400, HELD_AT]
    assert caught.value.step == HELD_AT


class OneByOne:
    """Callable that returns the sum; on rows of 1s, every call waits at a separate gate."""

    def __init__(self, folder):
        self.folder, self.calls = folder, 0

    def __call__(self, x):
        if x[0] == 1:
            Gate(self.folder / str(self.calls)).wait()
            self.calls += 1
        return x.sum()


def test_time_counts_from_the_last_finished_step(make_world, numpy_words, monkeypatch, caplog, clock, tmp_path):
    """Ten steps of 0.9 s cause neither a timeout of 1 s nor a warning about a slow rank."""
    monkeypatch.setattr(session_module, "WARN_AFTER_S", 1.0)
    make_world("fork", 2)
    x = numpy_words.variable("x")
    f = synk.function([x], (numpy_words.apply(OneByOne(tmp_path), x, dtype="float64", ndim=0), "sum"), exact=False)
    gates = [Gate(tmp_path / str(i)) for i in range(12)]
    for gate in gates[:10]:
        clock.when(gate.is_reached, lambda gate=gate: (clock.advance(0.9), gate.open()))
    assert f.steps(np.array([0.0, 1.0]), n_steps=10, timeout=1.0).tolist() == [1.0] * 10
    assert not caplog.messages
    clock.when(gates[10].is_reached, lambda: (clock.advance(0.9), gates[10].open()))
    clock.when(gates[11].is_reached, lambda: clock.advance(0.9))
    clock.when(lambda: True, lambda: clock.advance(1.1))
    with pytest.raises(synk.WorkerTimeout) as caught:
        f.steps(np.array([0.0, 1.0]), n_steps=10, timeout=1.0)
    assert caught.value.rank == 1 and caught.value.step == 1


@pytest.mark.long
@pytest.mark.timeout(600)  # hundreds of thousands of steps, on a busy machine
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
    # A leak recurs in every round. Between rounds, the system may give a process memory in larger pages.
    assert max(np.diff(used, axis=0).min(axis=0)) < 1 << 20  # ten leaked bytes per step would reach this limit
