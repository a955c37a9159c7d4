"""The keeper killed, stopped, or gone before it is needed."""

import os
import signal
import time

import numpy as np
import psutil
import pytest

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine


class Sleep(Command):
    title = "sleep"

    def __init__(self, seconds):
        self.seconds = seconds

    def run(self, context):
        if context.rank == 1:
            time.sleep(self.seconds)
        context.barrier.wait()


@pytest.fixture
def pids(fresh_keeper):
    synk.fork(3)
    return [PROGRAM.session.launcher.pid(rank) for rank in (1, 2)]


def works():
    x = engine.variable("x", "float64", 1)
    synk.fork(3)
    assert synk.function([x], (engine.mean(x), "avg"))(np.arange(5.0)) == 2.0
    synk.close()


def gone(pids, seconds=2.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
        if not alive:
            return True
        time.sleep(0.01)
    return False


def test_killed_while_idle(pids):
    os.kill(PROGRAM.keeper_pid, signal.SIGKILL)
    assert gone(pids)
    with pytest.raises(synk.SynkhronosError, match=r"keeper process \(pid \d+\).* is gone: killed by signal 9"):
        PROGRAM.session.run(Sleep(0))
    assert not synk.is_forked()
    works()


def test_killed_during_a_command(pids):
    import threading

    timer = threading.Timer(0.2, os.kill, (PROGRAM.keeper_pid, signal.SIGKILL))
    timer.start()
    began = time.monotonic()
    with pytest.raises(synk.SynkhronosError, match="keeper"):
        PROGRAM.session.run(Sleep(30))
    timer.join()
    assert time.monotonic() - began < 1.5
    assert gone(pids, 0.5)
    works()


def test_killed_before_close(pids):
    os.kill(PROGRAM.keeper_pid, signal.SIGKILL)
    synk.close()
    assert gone(pids)
    works()


def test_killed_between_sessions(pids):
    synk.close()
    os.kill(PROGRAM.keeper_pid, signal.SIGKILL)
    assert gone([PROGRAM.keeper_pid], 5)
    works()


def test_stopped(pids):
    """A keeper that does not answer is ended, and the ranks with it, also those that do not answer."""
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(PROGRAM.keeper_pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(synk.WorkerTimeout, match=rf"rank 1 \(pid {pids[0]}\): T \(stopped\)"):
        PROGRAM.session.run(Sleep(0), timeout=0.2)
    assert time.monotonic() - began < 6
    assert gone(pids, 0.5)
    works()


def test_timeout_shows_stacks(pids):
    with pytest.raises(synk.WorkerTimeout) as caught:
        PROGRAM.session.run(Sleep(20), timeout=0.3)
    message = str(caught.value)
    assert caught.value.rank == 1 and "sleep did not finish within 0.3 s" in message
    assert f"rank 1 (pid {pids[0]}): S (sleeping)" in message
    assert 'test_keeper_dies.py", line' in message and "in run" in message  # where it is
    assert "rank 2" not in message
    works()
