"""Sessions: commands go to all ranks, answers come back, errors are told, time is limited."""

import logging
import os
import threading
import time

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime import session as session_module
from synkhronos.runtime.command import Command, Start
from synkhronos.sync.control_block import COMMAND_BYTES


class Tell(Command):
    """Return what a rank is."""

    title = "tell"

    def __init__(self, load=None):
        self.load = load

    def run(self, context):
        return context.rank, context.size, context.root, self.load


class Sleep(Command):
    title = "sleep"

    def __init__(self, rank, seconds, meet=True):
        self.rank, self.seconds, self.meet = rank, seconds, meet

    def run(self, context):
        if context.rank == self.rank:
            time.sleep(self.seconds)
        if self.meet:
            context.barrier.wait()


class Forget(Command):
    """Return the numbers that this rank knows."""

    def run(self, context):
        return sorted(context.functions), sorted(context.shareds)


@pytest.fixture
def open_session():
    def make(launcher, n=3, root=0, **keywords):
        synk.close()
        return PROGRAM.open(n, root, launcher=launcher, **keywords)

    yield make
    synk.close()


both = pytest.mark.parametrize("launcher", ["threads", "fork"])


@both
@pytest.mark.parametrize("n, root", [(1, 0), (2, 0), (2, 1), (5, 3)])
def test_results_in_rank_order(launcher, n, root, open_session):
    session = open_session(launcher, n, root)
    for _ in range(5):
        assert session.run(Tell("x")) == [(rank, n, root, "x") for rank in range(n)]


@both
@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 16, 5 << 20])
def test_commands_and_results_of_any_length(launcher, nbytes, open_session):
    session = open_session(launcher)
    load = np.random.RandomState(0).bytes(nbytes)
    used = PROGRAM.pool.used
    for _ in range(3):
        assert [result[3] for result in session.run(Tell(load))] == [load] * 3
    session.run(Tell())
    session.run(Tell())
    assert PROGRAM.pool.used == used


@both
def test_closed(launcher, open_session):
    session = open_session(launcher)
    assert repr(session) == "Session(size=3, root=0, open, 1 commands)"
    session.close()
    session.close()
    with pytest.raises(synk.StateError, match=r"closed \(synkhronos.close\(\) was called\): call synkhronos.fork"):
        session.run(Tell())
    assert "closed: synkhronos.close() was called" in repr(session)


@both
@pytest.mark.parametrize("meet", [True, False])
def test_timeout(launcher, meet, open_session):
    session = open_session(launcher)
    session.run(Sleep(1, 0.1, meet), timeout=10)
    began = time.monotonic()
    with pytest.raises(synk.WorkerTimeout, match="sleep did not finish within 0.2 s") as caught:
        session.run(Sleep(1, 1.5, meet), timeout=0.2)
    assert time.monotonic() - began < (4 if launcher == "threads" else 1.4)
    assert caught.value.rank == 1 and "rank 1 (pid" in str(caught.value) and "rank 2" not in str(caught.value)
    assert "time.sleep" in str(caught.value) or "in run" in str(caught.value)
    assert not synk.is_forked()


def test_timeout_of_the_session(open_session):
    session = open_session("fork", timeout=0.2)
    with pytest.raises(synk.WorkerTimeout):
        session.run(Sleep(2, 3))


def test_a_slow_master_is_not_late(open_session):
    """Where the others have answered by the time the master is done, there is nothing to wait for."""
    session = open_session("fork")
    assert session.run(Sleep(0, 0.3, meet=False), timeout=0.1) == [None] * 3


def test_a_rank_that_answers_just_after_the_deadline(open_session):
    session = open_session("threads")
    session._late = lambda original=session._late: (original(), time.sleep(0.3))[0]
    with pytest.raises(synk.WorkerTimeout) as caught:
        session.run(Sleep(1, 0.3), timeout=0.15)
    assert caught.value.rank == 1


@both
def test_warns_who_is_waited_for(launcher, open_session, monkeypatch, caplog):
    monkeypatch.setattr(session_module, "WARN_AFTER_S", 0.15)
    session = open_session(launcher)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "synkhronos"):
        session.run(Sleep(2, 0.6))
    assert 1 <= len(caplog.messages) <= (time.monotonic() - began) / 0.15  # on a busy machine it takes longer
    # (The first may come before the others have got the command there, the last when all have woken.)
    assert any(message.startswith("waiting for rank(s) 2 in sleep, since ") for message in caplog.messages)
    assert all(message.startswith("waiting for rank(s) ") and "2 in sleep" in message for message in caplog.messages)


@both
def test_what_is_forgotten_is_forgotten_by_all(launcher, open_session):
    session = open_session(launcher)
    for number in (1, 2):
        session.context.functions[number] = session.context.shareds[number] = "thing"
    session._forget = [("function", 1), ("shared", 2)]
    assert session.run(Forget())[0] == ([2], [1])
    assert session._forget == []


def test_no_memory_for_a_command(open_session, monkeypatch):
    """Nothing was sent: the session goes on."""
    session = open_session("fork")

    def put(payload, slot, pool):
        raise synk.SharedMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr("synkhronos.memory.messages.put", put)
        with pytest.raises(synk.SharedMemoryError, match="full"):
            session.run(Tell("x" * COMMAND_BYTES))
    assert len(session.run(Tell())) == 3


def test_threads_take_turns(open_session):
    session = open_session("fork", 2)
    results = []

    def work(k):
        for _ in range(50):
            results.append(session.run(Tell(k)) == [(rank, 2, 0, k) for rank in range(2)])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 150


def test_close_waits_for_another_threads_command(open_session):
    session = open_session("fork", 2)
    results = []
    thread = threading.Thread(target=lambda: results.append(session.run(Sleep(1, 0.4))))
    thread.start()
    time.sleep(0.1)
    synk.close()
    thread.join()
    assert results == [[None, None]]


def test_close_that_does_not_wait(open_session):
    session = open_session("fork", 2)
    errors = []

    def work():
        try:
            session.run(Sleep(1, 30))
        except synk.SynkhronosError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.1)
    began = time.monotonic()
    session.close("enough", wait_s=0.1)
    thread.join()
    assert time.monotonic() - began < 2
    assert "enough" in str(errors[0]) and "in the middle of sleep" in str(errors[0])
    assert session.closed == "enough"


def test_other_errors_are_noted_on_the_one_that_ends_it(open_session):
    session = open_session("fork", 3)
    with pytest.raises(synk.WorkerDied) as caught:
        session.run(Mixed())
    notes = caught.value.__notes__
    assert "the master also raised KeyError: 'on the master'" in notes
    assert any("rank 2 also raised OSError: on rank 2" in note for note in notes)


class Mixed(Command):
    title = "mixed"

    def run(self, context):
        if context.rank == 1:
            time.sleep(0.3)
            os._exit(5)
        if context.rank == 2:
            raise OSError("on rank 2")
        raise KeyError("on the master")


def test_profiles(tmp_path, monkeypatch, open_session):
    import pstats

    monkeypatch.chdir(tmp_path)
    session = open_session("fork", 2, profile=True)
    session.run(Sleep(1, 0.01))
    session.run(Start())
    synk.close()
    for rank in range(2):
        stats = pstats.Stats(f"synkhronos_rank_{rank}.prof")
        assert any(name == "run" and "test_session" in file for file, _, name in stats.stats)


def test_close_is_not_half_done_if_a_signal_comes_before_signals_are_deferred(make_world, monkeypatch):
    make_world("fork", 2)
    raised = []

    class Interrupted(session_module.DeferredSignals):
        def __enter__(self):
            if not raised:
                raised.append(True)
                raise KeyboardInterrupt
            super().__enter__()

    monkeypatch.setattr(session_module, "DeferredSignals", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        synk.close()
    assert raised and not synk.is_forked()
    synk.close()
    assert synk.fork(2, use_gpu=False) == 2
    synk.close()
