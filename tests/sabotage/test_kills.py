"""Ranks are killed at protocol steps: errors are raised, changes are complete or absent, and nothing is left."""

import os
import signal

import numpy as np
import psutil
import pytest
from clocks import Clock
from everyday import Program, Wrong
from gates import until
from kill_steps import NAMES, OS_EXIT, SYS_EXIT
from pieces import deaths, kills
from pieces.report import check_nothing_left
from refusals import reports

import synkhronos as synk
from synkhronos.errors import WorkerDied, WorkerTimeout
from synkhronos.processes.launcher import ProcessLauncher
from synkhronos.program.program import PROGRAM
from synkhronos.runtime import session as session_module
from synkhronos.runtime.transaction import Transaction

pytestmark = pytest.mark.slow


@pytest.fixture
def victims(fresh_keeper, request):
    return kills.Victims(1, request)


def silent(*_):
    pass


def test_the_programs_take_every_step(victims):
    assert set(NAMES) == set(victims.hit)


@pytest.mark.long
@pytest.mark.timeout(600)  # a hundred programs, which are slow on a busy machine
def test_kill_at_every_step(victims):
    """Run a short form of pieces/kills.py; `make sabotage` runs all."""
    operations = ("fork", "distribute", "call", "all_reduce", "data growth", "scatter")
    (row,) = kills.kill(victims, 60, 1, silent, operations)
    assert row.done >= 60 and len(row.seconds) > 0.8 * row.done
    assert set(+victims.hit) == set(NAMES)
    assert all(f"{operation} " in row.result for operation in operations)


@pytest.mark.thorough
def test_other_deaths(victims):
    rows = deaths.die_otherwise(victims, 4, silent)
    assert [row.done for row in rows] == [4] * len(deaths.DEATHS)
    assert {OS_EXIT, SYS_EXIT, signal.SIGSEGV} < {action for action, _ in deaths.DEATHS}


def test_changes_of_a_command_that_was_given_up_are_found(victims, monkeypatch):
    """The campaign finds changes of aborted commands."""

    def settle(transaction):
        for change in transaction._changes:
            change()
        transaction._commitment, transaction._changes = None, []

    monkeypatch.setattr(Transaction, "settle", settle)
    victims.n, victims.rank = 2, 1
    with reports(Wrong, "master"):
        for step, name in enumerate(victims.taken[2, 1]):
            if name == "SharedMemoryTransport._layout after":  # before the rank has computed its share
                victims.steps.plan(1, step)
                victims.run()
    synk.close()


@pytest.mark.thorough
def test_ranks_that_stay_are_found(victims, monkeypatch):
    kill = ProcessLauncher.kill
    monkeypatch.setattr(ProcessLauncher, "kill", lambda launcher: None)
    victims.n, victims.rank = 3, 1
    victims.steps.plan(1, victims.taken[3, 1].index("NumpyEngine.call before"))
    assert victims.run()[0] == "call"
    with reports(AssertionError, "left behind"):
        victims.recover()
    kill(PROGRAM.session.launcher)


def count_files(n):
    """Return how many files this process has open in a session of n ranks."""
    PROGRAM.open(n, 0, pin=False)
    count = len(os.listdir("/proc/self/fd"))
    synk.close()
    return count


@pytest.mark.thorough
def test_open_files_after_deaths(victims):
    files = count_files(3)
    for _ in range(10):
        victims.n, victims.rank = 3, 2
        victims.steps.plan(2, victims.random.randrange(len(victims.taken[3, 2])))
        victims.run()
        assert count_files(3) <= files


def test_dies_between_commands(fresh_keeper):
    program = Program(3)
    program.open()
    program.call(program.x)
    w = program.w.get_value()
    pid = PROGRAM.session.launcher.pid(2)
    os.kill(pid, signal.SIGKILL)
    until(lambda: PROGRAM.session.block.ended[2])
    with reports(WorkerDied, "SIGKILL", "before", rank=2, pid=pid) as caught:
        program.call(program.x)
    assert caught.value.command.startswith("call of function")
    assert np.array_equal(program.w.get_value(), w)
    del caught
    check_nothing_left()
    program.recover()


def test_stopped_rank_times_out(victims, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(session_module, "time", clock)

    def is_stopped():
        session = PROGRAM.session
        pid = session is not None and session.launcher.pid(2)
        return pid and psutil.Process(pid).status() == psutil.STATUS_STOPPED and session._missing() == [2]

    clock.when(is_stopped, lambda: clock.advance(0.4))
    program = victims.programs[3]
    program.options["timeout"] = 0.3
    victims.steps.plan(2, victims.taken[3, 2].index("NumpyEngine.call before"), signal.SIGSTOP)
    operation, error, _ = program.run()
    assert operation == "call" and isinstance(error, WorkerTimeout)
    assert error.rank == 2 and "rank 1" not in str(error)
    assert "rank 2 (pid" in str(error) and "T (stopped)" in str(error)
    del error
    victims.steps.plan()
    check_nothing_left()
    program.recover()
