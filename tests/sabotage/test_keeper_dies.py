"""The keeper is killed or stopped, or has ended earlier."""

import os
import re
import signal
import threading
import time

import numpy as np
import psutil
import pytest
from clocks import Clock
from gates import Gate, until
from refusals import lacks, reports

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime import session as session_module
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow


class Meet(Command):
    """Make all ranks wait at a barrier; with a gate, rank 1 sleeps."""

    title = "meet"

    def __init__(self, gate=None):
        self.gate = gate

    def run(self, context):
        if context.rank == 1 and self.gate is not None:
            self.gate.reach()
            time.sleep(1000)
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


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path / "gate")


def gone(pids):
    """Wait until the processes have ended."""
    return until(lambda: not any(map(is_alive, pids)))


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_killed_while_idle(pids):
    keeper = PROGRAM.keeper_pid
    os.kill(keeper, signal.SIGKILL)
    assert gone(pids)
    with reports(synk.SynkhronosError, "keeper", f"pid {keeper}", "signal 9"):
        PROGRAM.session.run(Meet())
    assert not synk.is_forked()
    works()


def test_killed_during_a_command(pids, gate):
    keeper = PROGRAM.keeper_pid
    killer = threading.Thread(target=lambda: (gate.until_reached(), os.kill(keeper, signal.SIGKILL)))
    killer.start()
    with reports(synk.SynkhronosError, "keeper", keeper):
        PROGRAM.session.run(Meet(gate))
    killer.join()
    assert gone(pids)
    works()


def test_killed_before_close(pids):
    os.kill(PROGRAM.keeper_pid, signal.SIGKILL)
    synk.close()
    assert gone(pids)
    works()


def test_killed_between_sessions(pids):
    synk.close()
    os.kill(PROGRAM.keeper_pid, signal.SIGKILL)
    assert gone([PROGRAM.keeper_pid])
    works()


def test_stopped(pids):
    """A keeper that does not answer is ended, with all ranks, even those that do not answer."""
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(PROGRAM.keeper_pid, signal.SIGSTOP)
    with reports(synk.WorkerTimeout, "rank 1", f"pid {pids[0]}", "T (stopped)", rank=1):
        PROGRAM.session.run(Meet(), timeout=0.2)
    assert gone(pids)
    works()


def test_timeout_shows_stacks(pids, gate, monkeypatch):
    clock, session = Clock(), PROGRAM.session
    monkeypatch.setattr(session_module, "time", clock)
    monkeypatch.setattr(session_module, "STACKS_TIMEOUT_S", 30.0)
    clock.when(lambda: gate.is_reached() and session._missing() == [1], lambda: clock.advance(0.4))
    with pytest.raises(synk.WorkerTimeout) as caught:
        session.run(Meet(gate), timeout=0.3)
    message = str(caught.value)
    assert caught.value.rank == 1 and caught.value.command == "meet" and not lacks(message, "0.3 s")
    assert re.search(rf"rank 1 \(pid {pids[0]}\): [SRD] \(", message)
    assert 'test_keeper_dies.py", line' in message and "in run" in message  # the line of code where the rank was
    assert "rank 2" not in message
    works()
