"""Ranks that are killed at recorded protocol steps: an exception, all or nothing, nothing left, and it works again."""

import os
import signal
import time
from collections import Counter

import numpy as np
import psutil
import pytest
from kill_steps import NAMES, Steps

import synkhronos as synk
from synkhronos.engines import numpy as engine
from synkhronos.errors import WorkerDied, WorkerTimeout
from synkhronos.program import PROGRAM


class Program:
    """A session with everything in it; knows what the master's variables must be after each operation."""

    def __init__(self, n):
        self.n = n
        self.w, self.v = engine.shared(np.zeros(1), "w"), engine.shared(np.zeros((2, 2)), "v")
        x = engine.variable("x", "float64", 2)
        self.f = synk.function([x], [(engine.mean(x), "avg"), (x, "gather")], updates=[(self.w, self.w + 1)])
        self.g = synk.function([], [], updates=[(self.v, self.v * 2)])
        self.x = np.arange(14.0).reshape(7, 2)

    def operations(self):
        """Yield (name, what to do, values of w and v after it)."""
        n, w, v = self.n, self.w, self.v
        yield "fork", lambda: PROGRAM.open(n, 0, timeout=20, pin=False), (np.arange(4.0), np.ones((2, 2)))
        yield "distribute", synk.distribute, (np.arange(4.0), np.ones((2, 2)))
        yield "call", self._call, (np.arange(4.0) + 1, np.ones((2, 2)))
        yield "call2", lambda: self.g(), (np.arange(4.0) + 1, np.full((2, 2), 2.0))
        yield "all_reduce", lambda: synk.all_reduce([w, v], op="sum"), (
            n * (np.arange(4.0) + 1), np.full((2, 2), 2.0 * n))
        yield "broadcast", lambda: synk.broadcast(w, np.full(4, 3.0)), (np.full(4, 3.0), np.full((2, 2), 2.0 * n))
        yield "reduce", lambda: synk.reduce(w, op="sum"), (np.full(4, 3.0 * n), np.full((2, 2), 2.0 * n))
        yield "gather", lambda: synk.gather(v), (np.full(4, 3.0 * n), np.full((2, 2), 2.0 * n))
        yield "scatter", lambda: synk.scatter(w, np.arange(2.0 * n)), (np.arange(2.0), np.full((2, 2), 2.0 * n))
        yield "all_gather", lambda: synk.all_gather(w), (np.arange(2.0 * n), np.full((2, 2), 2.0 * n))
        yield "set_value", lambda: synk.set_value(0, w, np.ones(5)), (np.ones(5), np.full((2, 2), 2.0 * n))
        yield "get_value", lambda: synk.get_value(1, w), (np.ones(5), np.full((2, 2), 2.0 * n))
        yield "close", synk.close, (np.ones(5), np.full((2, 2), 2.0 * n))

    def _call(self):
        mean, rows = self.f(self.x)
        assert mean == self.x.mean() and np.array_equal(rows, self.x)

    def run(self):
        """Run it all, comparing; return the operation at which a rank died and the error, if one did."""
        before = (np.arange(4.0), np.ones((2, 2)))
        self.w.set_value(before[0])
        self.v.set_value(before[1])
        for name, operation, after in self.operations():
            try:
                operation()
            except (WorkerDied, WorkerTimeout) as error:
                moment = time.monotonic()
                for got, was, would in zip((self.w, self.v), before, after):
                    got = got.get_value()
                    assert np.array_equal(got, was) or np.array_equal(got, would), (name, got, was, would)
                return name, error, moment
            for got, would in zip((self.w, self.v), after):
                assert np.array_equal(got.get_value(), would), name
            before = after
        return None, None, None


@pytest.fixture
def steps(fresh_keeper, monkeypatch):
    steps = Steps()
    steps.install(monkeypatch)
    return steps


def count_files(n):
    """Return how many files this process has open in a session of n ranks."""
    PROGRAM.open(n, 0, pin=False)
    count = len(os.listdir("/proc/self/fd"))
    synk.close()
    return count


@pytest.fixture
def check_recovery(find_leftovers):
    """Check that all is closed, nothing is left, and the same program works again."""
    def check(program, files):
        assert not synk.is_forked()
        assert not find_leftovers()
        PROGRAM.open(program.n, 0, pin=False)
        assert len(os.listdir("/proc/self/fd")) <= files
        mean, rows = program.f(program.x)
        assert mean == program.x.mean() and np.array_equal(rows, program.x)
        assert len(set(map(bytes, synk.gather(program.w)))) == 1
        synk.close()

    return check


@pytest.mark.timeout(0 if "SYNK_KILLS" in os.environ else 120)
@pytest.mark.parametrize("n, kills", [(n, int(os.environ.get("SYNK_KILLS", 60))) for n in (2, 3)])
def test_kill_at_every_step(n, kills, steps, check_recovery):
    program = Program(n)
    for _ in range(2):  # the first distributes what earlier tests have left, too
        steps.plan()
        assert program.run() == (None, None, None)
    taken = [steps.names(rank) for rank in range(n)]
    files = count_files(n)
    assert not taken[0] and all(len(names) > 100 for names in taken[1:])

    hit = Counter()
    for i in range(kills):
        victim = 1 + i % (n - 1)
        total, answers = len(taken[victim]), taken[victim].count("RankEnd.send after")
        steps.plan(victim, (i * total) // kills, signal.SIGKILL)
        operation, error, moment = program.run()
        step, killed = steps.happened
        assert step is not None
        hit[operation, step] += 1
        if operation is None:  # close() needs nothing of it any more
            assert steps.names(victim).count("RankEnd.send after") >= answers - 1, (i, step)
        else:
            assert isinstance(error, WorkerDied), error
            assert error.rank == victim and error.exitcode == -signal.SIGKILL
            assert "rank %d (pid %d) was killed by SIGKILL" % (victim, error.pid) in str(error)
            assert not psutil.pid_exists(error.pid)
            assert moment - killed < 1.0, (operation, step, moment - killed)
        del error  # with the frames in which the session stands
        steps.plan()
        check_recovery(program, files)
    operations = {operation for operation, _ in hit}
    assert operations >= {"fork", "distribute", "call", "all_reduce", "broadcast", "reduce", "gather", "scatter",
                          "all_gather"}
    assert len({step for _, step in hit}) > len(NAMES) // 2


@pytest.mark.parametrize("action, text", [
    (signal.SIGSEGV, "was killed by SIGSEGV"), (signal.SIGABRT, "was killed by SIGABRT"),
    (signal.SIGTERM, "was killed by SIGTERM"), (0, "ended with exit code 0")])
def test_other_deaths(action, text, steps, check_recovery):
    program = Program(2)
    steps.plan()
    assert program.run() == (None, None, None)
    total = len(steps.names(1))
    files = count_files(2)
    for i in range(1, 4):
        steps.plan(1, total * i // 4, action)
        operation, error, moment = program.run()
        assert isinstance(error, WorkerDied) and error.rank == 1 and error.exitcode == -action
        assert text in str(error)
        assert moment - steps.happened[1] < 1.0
        del error
        steps.plan()
        check_recovery(program, files)


def test_dies_between_commands(check_recovery):
    program = Program(3)
    files = count_files(3)
    PROGRAM.open(3, 0, pin=False)
    program.f(program.x)
    w = program.w.get_value()
    pid = PROGRAM.session.launcher.pid(2)
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 5
    while not PROGRAM.session.block.ended[2] and time.monotonic() < until:
        time.sleep(0.001)
    with pytest.raises(WorkerDied, match="rank 2 .*SIGKILL.*before call of function") as caught:
        program.f(program.x)
    assert (caught.value.rank, caught.value.pid) == (2, pid)
    assert np.array_equal(program.w.get_value(), w)
    del caught
    check_recovery(program, files)


def test_stopped_rank_times_out(steps, check_recovery):
    program = Program(3)
    steps.plan()
    assert program.run() == (None, None, None)
    step = steps.names(2).index("NumpyEngine.call before")
    files = count_files(3)
    steps.plan(2, step, signal.SIGSTOP)
    PROGRAM.open(3, 0, pin=False, timeout=0.3)
    began = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"rank 2 \(pid \d+\): T \(stopped\)") as caught:
        program.f(program.x)
    assert 0.3 <= time.monotonic() - began < 2.5
    assert caught.value.rank == 2 and "rank 1" not in str(caught.value)
    del caught
    steps.plan()
    check_recovery(program, files)
