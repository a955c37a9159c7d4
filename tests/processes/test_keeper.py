"""The keeper and the processes that it forks, and the launcher that turns them into ranks.

Modules: `launcher`, `child_process`.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from gates import until
from refusals import lacks, reports

import synkhronos as synk
from synkhronos.errors import SynkhronosError
from synkhronos.memory.memfd import nameless_file
from synkhronos.processes import child_process
from synkhronos.processes.child_process import ChildProcess
from synkhronos.processes.keeper import Descriptors, Keeper
from synkhronos.processes.launcher import ProcessLauncher
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.launcher import RankConfig
from synkhronos.sync.control_block import DEATHS, ControlBlock
from synkhronos.sync.hosts import Hosts
from synkhronos.sync.semaphore import WaitPolicy

pytestmark = pytest.mark.slow


@pytest.fixture
def keeper():
    synk.close()
    keeper = Keeper(lambda: None)
    yield keeper
    keeper.end()
    assert not psutil.pid_exists(keeper.pid)


def start(keeper, size, root=0):
    """Start ranks that wait for a command; return the launcher and the control block."""
    launcher, block = ProcessLauncher(keeper), ControlBlock(size)
    pools = {rank: nameless_file("pool", 0) for rank in range(size)}
    configs = [
        RankConfig(
            rank, size, root, Hosts.alone(size), [], 1, WaitPolicy.of_threads(), [], os.getcwd(), dict(os.environ), None
        )
        for rank in range(size)
        if rank != root
    ]
    try:
        launcher.start(configs, block, pools)
    finally:
        for fd in pools.values():
            os.close(fd)
        block.close()
    return launcher, block


def test_descriptors_arrive_as_they_were_sent():
    sent = Descriptors(10, 11, [20, 21, 30, 31], {-1: 40, 1: 41, 2: 42})
    received = Descriptors.of_flat(sent.flat(), 2, [-1, 1, 2])
    assert received == sent
    assert [received.streams_of(position) for position in range(2)] == [[20, 21], [30, 31]]
    assert Descriptors.of_flat([1, 2], 0, []) == Descriptors(1, 2, [], {})
    over_hosts = sent._replace(bells=(50, 51))
    assert Descriptors.of_flat(over_hosts.flat(), 2, [-1, 1, 2]) == over_hosts


def test_ranks_are_children_of_the_keeper(keeper):
    launcher, block = start(keeper, 4, root=2)
    pids = [launcher.pid(rank) for rank in (0, 1, 3)]
    assert sorted(pids) == sorted(child.pid for child in psutil.Process(keeper.pid).children())
    assert launcher.is_alive()
    launcher.kill()
    assert [block.ended[rank] for rank in range(4)] == [1, 1, 0, 1]
    assert [block.status[rank] for rank in (0, 1, 3)] == [-9] * 3
    assert not any(map(psutil.pid_exists, pids))
    launcher.kill()
    assert keeper.alive()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_says_how_a_rank_ended_and_wakes_who_waits(keeper, number):
    launcher, block = start(keeper, 3)
    assert not block.words[DEATHS]
    os.kill(launcher.pid(2), number)
    assert block.answers[2].acquire(60) and block.arrivals.acquire(60)
    assert block.words[DEATHS] == 1 and (block.ended[2], block.status[2]) == (1, -number) and not block.ended[1]
    launcher.kill()


def test_join(keeper):
    launcher, block = start(keeper, 2)
    assert not launcher.join(0.1)
    os.kill(launcher.pid(1), signal.SIGKILL)
    assert launcher.join(60)


def test_a_new_session_ends_the_ranks_of_one_that_was_given_up(keeper):
    first, _ = start(keeper, 3)
    pids = [first.pid(1), first.pid(2)]
    second, block = start(keeper, 2)
    assert not any(map(psutil.pid_exists, pids))
    assert [child.pid for child in psutil.Process(keeper.pid).children()] == [second.pid(1)]
    assert not block.ended[1]
    first.kill()  # kills all existing ranks
    second.kill()


def test_rank_that_cannot_start_leaves_its_words(keeper):
    launcher, block = ProcessLauncher(keeper), ControlBlock(2)
    pool = nameless_file("pool", 0)
    launcher.start(
        [RankConfig(1, 2, 0, Hosts.alone(2), [], 1, WaitPolicy.of_threads(), [], "/nowhere/at/all", {}, None)],
        block,
        {1: pool},
    )
    until(lambda: block.ended[1])
    assert block.status[1] == 70
    assert "FileNotFoundError" in launcher.fatal_error(1) and "/nowhere/at/all" in launcher.fatal_error(1)
    launcher.kill()
    os.close(pool)
    block.close()


def test_inspect():
    synk.fork(3)  # returns when the ranks are ready
    launcher = PROGRAM.session.launcher
    os.kill(launcher.pid(2), signal.SIGSTOP)
    until(lambda: psutil.Process(launcher.pid(2)).status() == "stopped")
    found = {}

    def are_shown():
        """Return whether stacks are complete: a process that waits for a processor may seem to have printed all."""
        found.update(launcher.inspect([1, 2], 30))
        return "in serve" in found[1] and "in rank_main" in found[1]

    until(are_shown)
    assert found[1][0] in "RSD"
    assert found[2].startswith("T (stopped)") and "\n" not in found[2]
    until(lambda: launcher.inspect([1], 30)[1].count("in rank_main") == 1)  # each call requests new stacks
    launcher.inspect([1, 2], 0)
    os.kill(launcher.pid(2), signal.SIGCONT)
    synk.close()


def test_a_keeper_that_is_gone(keeper):
    launcher, block = start(keeper, 3)
    pids = [launcher.pid(1), launcher.pid(2)]
    os.kill(keeper.pid, signal.SIGKILL)
    until(lambda: not keeper.alive())
    assert repr(keeper) == f"Keeper(pid={keeper.pid}, ended)"
    assert not launcher.is_alive()
    assert not lacks(str(launcher.error()), "keeper", f"pid {keeper.pid}", "signal 9")
    launcher.kill()
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)
    with reports(SynkhronosError, "keeper", f"pid {keeper.pid}"):
        start(keeper, 2)


def test_keeper_that_does_not_answer_is_ended(keeper, monkeypatch):
    monkeypatch.setattr("synkhronos.processes.keeper.KILL_TIMEOUT_S", 0.2)
    launcher, block = start(keeper, 2)
    os.kill(keeper.pid, signal.SIGSTOP)
    launcher.kill()
    assert not keeper.alive() and not psutil.pid_exists(keeper.pid)


def test_keeper_that_does_not_fork_is_ended(keeper, monkeypatch):
    monkeypatch.setattr("synkhronos.processes.keeper.FORK_TIMEOUT_S", 0.2)
    os.kill(keeper.pid, signal.SIGSTOP)
    with reports(SynkhronosError, "keeper", f"pid {keeper.pid}", "0.2 s"):
        start(keeper, 2)
    assert not keeper.alive() and not psutil.pid_exists(keeper.pid)


def test_ends_with_its_socket(keeper):
    launcher, block = start(keeper, 3)
    pids = [launcher.pid(1), launcher.pid(2)]
    keeper._socket.close()
    until(lambda: not keeper.alive())
    assert not any(map(psutil.pid_exists, pids))


def open_names(pid):
    """Return the names of a process's open files; it may close some meanwhile."""
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    return names


def test_holds_nothing_of_the_programs_files(tmp_path):
    synk.close()
    read, write = os.pipe()
    file = open(str(tmp_path / "file"), "w")
    keeper = Keeper(lambda: None)
    try:
        start(keeper, 2)[0]
        os.close(write)
        assert os.read(read, 1) == b""  # no other process has the other end open
        for process in [psutil.Process(keeper.pid)] + psutil.Process(keeper.pid).children():
            assert not any(str(tmp_path) in name for name in open_names(process.pid))
    finally:
        keeper.kill()
        keeper.end()
        file.close()
        os.close(read)


def test_enter_is_called_in_the_new_process(tmp_path):
    synk.close()
    path = tmp_path / "pid"
    keeper = Keeper(lambda: path.write_text(str(os.getpid())))
    until(lambda: path.exists() and path.read_text())
    assert int(path.read_text()) == keeper.pid
    keeper.end()
    keeper.end()


def test_keeper_is_small(keeper):
    """Sessions leave no descriptor open in the keeper."""
    process = psutil.Process(keeper.pid)
    start(keeper, 3)[0].kill()
    time.sleep(0.2)  # time for the keeper to close its answer
    before = process.num_fds()
    for _ in range(10):
        start(keeper, 3)[0].kill()
    until(lambda: process.num_fds() <= before)


@pytest.mark.long
@pytest.mark.alone
def test_keeper_is_idle(keeper):
    """The keeper uses hardly any processor time between sessions."""
    start(keeper, 3)[0].kill()
    before = psutil.Process(keeper.pid).cpu_times()
    time.sleep(0.3)
    after = psutil.Process(keeper.pid).cpu_times()
    assert after.user + after.system - before.user - before.system < 0.1


def test_the_programs_keeper_stays_between_sessions():
    synk.fork(2)
    pid = PROGRAM.keeper_pid
    synk.close()
    synk.fork(3)
    assert PROGRAM.keeper_pid == pid
    synk.close()
    assert psutil.Process(pid).children() == []


def test_keeper_that_dies_while_it_forks(monkeypatch, tmp_path):
    """A rank ends immediately if its keeper died before the rank began to watch it."""
    path = tmp_path / "pids"
    fork = os.fork

    def fork_and_die():
        pid = fork()
        if pid:
            os.kill(os.getpid(), signal.SIGKILL)  # kills the keeper
        with open(str(path), "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.1)
        return pid

    synk.close()
    keeper = Keeper(lambda: setattr(os, "fork", fork_and_die))
    with reports(SynkhronosError, "keeper", f"pid {keeper.pid}"):
        start(keeper, 2)
    until(path.exists)
    pid = int(path.read_text())
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")
    keeper.end()


def killed(sock, program):
    os.kill(os.getpid(), signal.SIGTERM)


def ended(sock, program):
    sock.close()


def deaf(sock, program):
    sock.close()
    signal.pause()


@pytest.mark.parametrize("work, found, not_found", [(killed, "15", "9"), (ended, "exited", "9"), (deaf, "closed", "9")])
def test_the_reason_of_an_end_is_the_processs_own(monkeypatch, work, found, not_found):
    """The error states why the process ended, not the SIGKILL that the program sends afterwards."""
    if work is deaf:
        monkeypatch.setattr(child_process, "ENDING_S", 0.0)
    process = ChildProcess("helper", work)
    with reports(SynkhronosError, "helper", found) as caught:
        process.ask("anything", (), 60)
    assert f"signal {not_found}" not in str(caught.value)
    assert not process.alive()


#: Program that raises or lowers the limit of open files between two sessions, and prints both results.
LIMITS = """
import resource, sys
import synkhronos as synk
for limit, n in zip(sys.argv[1::2], sys.argv[2::2]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        print(synk.fork(int(n)))
    except (synk.SynkhronosError, MemoryError) as error:
        print(type(error).__name__, error)
    synk.close()
"""


def with_limits(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", LIMITS, *map(str, arguments)],
        env=dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_keeper_has_the_limit_of_open_files_that_the_program_has_now():
    assert with_limits(48, 2, 512, 24, 64, 3, 512, 24) == ["2", "24", "3", "24"]


@pytest.mark.parametrize("limit", range(9, 20))
def test_a_limit_of_open_files_that_is_too_low_is_named(limit):
    """The error names the limit, whichever process reaches it first; `fork` succeeds once it is raised."""
    first, second = with_limits(limit, 2, 512, 2)
    assert second == "2" and (first == "2" or "ulimit -n" in first and "killed" not in first)
