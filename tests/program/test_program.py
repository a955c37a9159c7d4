"""The state of the program's process: memory, the keeper, the session."""

import os
import threading
from unittest.mock import Mock

import pytest
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.processes.local import LocalLauncher
from synkhronos.program.program import PROGRAM, Program
from synkhronos.sync.control_block import ANNOUNCED
from synkhronos.testing import numpy_engine

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def closed():
    synk.close()
    yield
    synk.close()


def test_current():
    with reports(synk.StateError, "synkhronos.fork()"):
        PROGRAM.current()
    session = PROGRAM.open(2, 0, launcher="threads")
    assert PROGRAM.current() is session
    with reports(synk.StateError, 2, "synkhronos.close()"):
        PROGRAM.open(3, 0, launcher="threads")
    session.close("no more")
    with reports(synk.StateError, "no more", "synkhronos.fork()"):
        PROGRAM.current()
    assert PROGRAM.open(3, 0, launcher="threads") is PROGRAM.current()
    PROGRAM.close()
    assert PROGRAM.session is None


def test_one_keeper_and_one_pool_for_all_sessions():
    pool = PROGRAM.pool
    PROGRAM.open(2, 0)
    keeper = PROGRAM.keeper_pid
    PROGRAM.close()
    PROGRAM.open(3, 1)
    assert PROGRAM.keeper_pid == keeper and PROGRAM.pool is pool
    PROGRAM.shut_down()
    assert PROGRAM.keeper_pid is None and PROGRAM.session is None
    with pytest.raises(ProcessLookupError):
        os.kill(keeper, 0)
    PROGRAM.shut_down()


def test_one_rank_needs_no_keeper():
    PROGRAM.shut_down()
    PROGRAM.open(1, 0)
    assert PROGRAM.keeper_pid is None


def test_two_threads_that_fork_at_once():
    """One of them forks, and the others get an error."""
    outcomes = []

    def work():
        try:
            outcomes.append(PROGRAM.open(2, 0))
        except synk.StateError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [isinstance(outcome, str) for outcome in outcomes].count(False) == 1
    assert all("forked already" in outcome for outcome in outcomes if isinstance(outcome, str))


def test_ranks_do_not_depend_on_the_thread_that_forked():
    """The kernel signals a parent's death when the *thread* that forked ends."""
    PROGRAM.shut_down()
    thread = threading.Thread(target=PROGRAM.open, args=(3, 0))
    thread.start()
    thread.join()
    from synkhronos.runtime.command import CheckStart

    for _ in range(3):
        assert PROGRAM.session.run(CheckStart()) == [None] * 3


def test_failed_start_leaves_nothing(monkeypatch):
    from synkhronos.program import program

    before = len(os.listdir("/proc/self/fd"))
    for name in ("Session", "MasterAffinity", "RankConfig", "nameless_file"):
        with monkeypatch.context() as patch:
            patch.setattr(program, name, lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                PROGRAM.open(3, 0)
        assert PROGRAM.session is None
    PROGRAM.open(3, 0)
    PROGRAM.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the keeper's socket, and the pool


def test_unknown_launcher_is_refused():
    for unknown in ("process", "mpi", None):
        with refuses(ValueError, "launcher", "one of ['fork', 'threads']", repr(unknown)):
            PROGRAM.open(2, 0, launcher=unknown)
        assert PROGRAM.session is None


def test_one_rank_needs_no_process():
    PROGRAM.shut_down()
    session = PROGRAM.open(1, 0)
    assert PROGRAM.keeper_pid is None and isinstance(session.launcher, LocalLauncher)


def test_disowned():
    """A forked child has no session or keeper, and leaves those of the parent unchanged."""
    session = PROGRAM.open(2, 0)
    pid = os.fork()
    if pid == 0:
        ok = PROGRAM.session is None and PROGRAM.keeper_pid is None and not PROGRAM.inside_rank
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert PROGRAM.session is session and PROGRAM.keeper_pid


def test_disown_gives_up_the_cores_in_the_child_only():
    """The child drops its copy of the parent's claims on cores, so that the parent can release the cores."""
    program = Program()
    program.session = Mock()
    placement = program.session.affinity
    program.detach_after_fork()
    placement.release.assert_called_once_with()
    assert program.session is None


@pytest.mark.parametrize("size, announced", [(2, b"numpy a.so\n"), (1, b"")])
def test_a_new_session_announces_modules_of_living_functions(size, announced, monkeypatch):
    """A rank, or a standby process, can load them before the first call."""
    x = numpy_engine.variable("x", "float64", 1)
    function = synk.function([x], numpy_engine.mean(x))
    monkeypatch.setattr(function.engine, "watch_modules", lambda tell: tell and tell("a.so"), raising=False)
    monkeypatch.setattr(type(PROGRAM), "functions", [function])  # others may be alive in this process
    session = PROGRAM.open(size, 0, launcher="threads")
    assert bytes(session.block.announcements[: session.block.words[ANNOUNCED]]) == announced
