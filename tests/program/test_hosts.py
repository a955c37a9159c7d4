"""Sessions over several hosts, which are processes of this machine: what fails there is told here, and nothing hangs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from worlds import Meeting

import synkhronos as synk
from synkhronos.errors import SynkhronosError, WorkerDied, WorkerError, WorkerTimeout
from synkhronos.launchers.hosts.facts import Facts, differences
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command
from synkhronos.sync.hosts import Hosts

TOLD_S = 2.0


class Act(Command):
    """Do something on one rank; all meet at a barrier afterwards."""

    title = "act"

    def __init__(self, rank, what, *arguments):
        self.rank, self.what, self.arguments = rank, what, arguments

    def run(self, context):
        if context.rank == self.rank:
            self.what(*self.arguments)
        context.barrier.wait()
        return context.rank, os.getpid(), os.environ.get("SYNK_MEETING")


class Long(Command):
    """Take, exchange and return what is longer than any slot."""

    title = "long"

    def __init__(self, values):
        self.values = values

    def run(self, context):
        found = context.transport.exchange(b"x" * 40_000)
        return [len(notice) for notice in found], int(self.values[-1]), np.arange(30_000) + context.rank


def fail():
    raise KeyError("of this rank")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)


def stand_still():
    time.sleep(30)


def nothing():
    pass


@pytest.fixture
def session():
    """Two ranks on each of two hosts."""
    yield opened()
    synk.close()


def opened(**options):
    Meeting.begin(2)
    return PROGRAM.open(4, 0, hosts=Hosts.of_counts(("here", "there"), (2, 2)), **options)


@pytest.fixture(autouse=True)
def whole():
    """What was lost in a test is there again for the next."""
    yield
    if PROGRAM.world is not None and len(PROGRAM.all_hosts()) < PROGRAM.world.n:
        PROGRAM.shut_down()


def everywhere(session):
    return session.run(Act(-1, nothing))


def test_ranks_are_processes_of_their_hosts(session):
    answers = everywhere(session)
    assert [rank for rank, _, _ in answers] == [0, 1, 2, 3]
    deputy, keeper = PROGRAM.all_hosts()[1].processes
    assert {psutil.Process(pid).ppid() for _, pid, _ in answers[2:]} == {keeper}
    assert psutil.Process(keeper).ppid() == deputy
    assert psutil.Process(answers[1][1]).ppid() == PROGRAM.keeper_pid
    assert [told for _, _, told in answers] == [None] * 4


def test_an_exception_elsewhere(session):
    with pytest.raises(WorkerError, match=r"rank 3 on host there raised KeyError: 'of this rank' in act") as caught:
        session.run(Act(3, fail))
    assert caught.value.rank == 3 and "in fail" in str(caught.value.__cause__)
    del caught
    assert len(everywhere(session)) == 4


def test_a_death_elsewhere(session):
    pid = everywhere(session)[2][1]
    began = time.monotonic()
    with pytest.raises(
        WorkerDied, match=rf"rank 2 \(pid {pid} on host there\) was killed by SIGKILL.*in act"
    ) as caught:
        session.run(Act(2, die))
    assert time.monotonic() - began < TOLD_S
    assert (caught.value.rank, caught.value.pid, caught.value.exitcode) == (2, pid, -signal.SIGKILL)
    del caught
    assert not PROGRAM.session.block.command_number < 0
    again = opened()
    assert len(everywhere(again)) == 4
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("when", ["before a command", "in a command"])
def test_a_host_that_is_lost(session, when):
    ranks = [pid for _, pid, _ in everywhere(session)]
    deputy, keeper = PROGRAM.all_hosts()[1].processes
    if when == "before a command":
        os.kill(deputy, signal.SIGKILL)
        time.sleep(0.3)
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="on host there. was lost with its host") as caught:
        session.run(Act(1, kill, deputy))
    assert time.monotonic() - began < TOLD_S
    assert "host host1 is lost" in str(caught.value.__cause__)
    del caught
    until = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in [*ranks[1:], keeper]) and time.monotonic() < until:
        time.sleep(0.01)
    assert [pid for pid in [*ranks[1:], keeper] if psutil.pid_exists(pid)] == []
    assert [host.name for host in PROGRAM.all_hosts()][1:] == ["host2"]
    left = PROGRAM.open(3, 0, hosts=Hosts.of_counts(("here", "left"), (2, 1)))  # with the hosts that are left
    assert len(everywhere(left)) == 3


def test_the_bridge_is_killed(session):
    ranks = [pid for _, pid, _ in everywhere(session)]
    deputy, keeper = PROGRAM.all_hosts()[1].processes
    bridge = PROGRAM._bridge.pid
    with pytest.raises(SynkhronosError, match=rf"the bridge process \(pid {bridge}\).*killed by signal 9"):
        session.run(Act(1, kill, bridge))
    until = time.monotonic() + 10
    while any(map(psutil.pid_exists, [*ranks[1:], keeper, deputy])) and time.monotonic() < until:
        time.sleep(0.01)
    assert [pid for pid in [*ranks[1:], keeper, deputy] if psutil.pid_exists(pid)] == []
    PROGRAM._bridge = None


def test_a_rank_that_stands_still_elsewhere(whole):
    session = opened()
    everywhere(session)  # they have imported all that they need
    session.timeout = 0.5
    with pytest.raises(WorkerTimeout, match=r"(?s)rank 3 \(pid \d+\).*in stand_still"):
        session.run(Act(3, stand_still))
    del session


def test_long_messages_of_all_kinds(session):
    """They do not fit into their slots: the command, the notice of each rank at a barrier, and the answers."""
    sizes = session.run(Long(np.arange(50_000)))
    assert [(size, last) for size, last, _ in sizes] == [([40_000] * 4, 49_999)] * 4
    assert all(np.array_equal(answer, np.arange(30_000) + rank) for rank, (_, _, answer) in enumerate(sizes))


def test_what_ranks_print_elsewhere(session, capfd):
    session.run(Act(2, print, "said there"))
    until = time.monotonic() + 5
    printed = ""
    while "said there" not in printed and time.monotonic() < until:
        everywhere(session)
        printed += capfd.readouterr().out
    assert "[rank 2] said there\n" in printed


def test_what_ranks_print_elsewhere_comes_once():
    """By the program alone: not also from the process that serves it there."""
    program = (
        "import synkhronos as synk; from test_hosts import Act; from worlds import over_hosts\n"
        "session = over_hosts((1, 1))\n"
        "session.run(Act(1, print, 'said there'))\n"
        "synk.close()"
    )
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), str(tests.parent), str(tests.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        universal_newlines=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert not done.returncode and done.stdout == "[rank 1] said there\n"


def test_ctrl_c(session):
    everywhere(session)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.run(Act(3, time.sleep, 1.0))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(everywhere(session)) == 4


def test_fork_counts_ranks_per_host():
    Meeting.begin(3)
    assert synk.fork(2) == 6
    assert synk.size() == 6
    assert [host.ranks for host in synk.hosts()] == [(0, 1), (2, 3), (4, 5)]
    with pytest.raises(ValueError, match="master_rank"):
        synk.close()
        synk.fork(1, master_rank=1)
    cores = [host.cores for host in PROGRAM.all_hosts()]
    assert synk.fork() == sum(cores)
    synk.close()


def test_hosts_that_do_not_go_together():
    here = Facts("here", 2, {"Python": "3.11.7", "NumPy": "1.23.5"}, (1,))
    there = Facts("there", 2, {"Python": "3.11.7", "NumPy": "2.0.0"}, (1,))
    assert differences([here, here]) == []
    assert differences([here, there]) == ["NumPy is 1.23.5 on here, but 2.0.0 on there"]
