"""Sessions send commands to all ranks, return answers, raise errors, and limit time.

Modules: `failures`, `launcher`.
"""

import logging
import os
import threading

import numpy as np
import pytest
from clocks import Clock
from gates import Gate, until
from refusals import lacks, reports

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime import session as session_module
from synkhronos.runtime.command import CheckStart, Command
from synkhronos.sync.control_block import COMMAND_BYTES


class Tell(Command):
    """Return this rank, the size, the root and the load."""

    title = "tell"

    def __init__(self, load=None):
        self.load = load

    def run(self, context):
        return context.rank, context.size, context.root, self.load


class Pass(Command):
    """Make one rank wait at a gate, and then all at a barrier."""

    title = "pass"

    def __init__(self, rank, gate, meet=True):
        self.rank, self.gate, self.meet = rank, gate, meet

    def run(self, context):
        if context.rank == self.rank:
            self.gate.wait()
        if self.meet:
            context.barrier.wait()


class Dawdle(Command):
    """Run an action on the master alone."""

    title = "dawdle"

    def __init__(self, action):
        self.action = action

    def __reduce__(self):
        return Dawdle, (None,)

    def run(self, context):
        if self.action is not None:
            self.action()


class Forget(Command):
    """Return the numbers of the rank's functions and variables."""

    def run(self, context):
        return sorted(context.registry.functions), sorted(context.registry.shareds)


@pytest.fixture
def open_session():
    def make(launcher, n=3, root=0, **keywords):
        synk.close()
        return PROGRAM.open(n, root, launcher=launcher, **keywords)

    yield make
    synk.close()


@pytest.fixture
def gate(tmp_path):
    """Return a closed gate for one rank."""
    return Gate(tmp_path / "gate")


@pytest.fixture
def clock(monkeypatch):
    """Return the clock that sessions use for time limits."""
    clock = Clock()
    monkeypatch.setattr(session_module, "time", clock)
    monkeypatch.setattr(session_module, "STACKS_TIMEOUT_S", 30.0)
    return clock


def is_alone(session, gate, rank):
    """Return a condition: a rank is at the gate, and the session waits for it alone."""
    return lambda: gate.is_reached() and session._missing() == [rank]


both = pytest.mark.parametrize("launcher", ["threads", "fork"])


@both
@pytest.mark.parametrize("n, root", [(1, 0), (2, 0), (2, 1), (5, 3)])
def test_results_in_rank_order(launcher, n, root, open_session):
    session = open_session(launcher, n, root)
    for _ in range(5):
        assert session.run(Tell("x")) == [(rank, n, root, "x") for rank in range(n)]


@pytest.mark.slow
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
    assert repr(session) == "Session(size=3, root=0, open, commands=1)"
    session.close()
    session.close()
    with reports(synk.StateError, "synkhronos.close()", "synkhronos.fork()"):
        session.run(Tell())
    assert "closed: synkhronos.close() was called" in repr(session)


@pytest.mark.slow
@both
@pytest.mark.parametrize("meet", [True, False])
def test_timeout(launcher, meet, open_session, clock, gate, tmp_path, monkeypatch):
    session, slow = open_session(launcher), Gate(tmp_path / "slow")
    clock.when(is_alone(session, slow, 1), lambda: (clock.advance(9.9), slow.open()))
    session.run(Pass(1, slow, meet), timeout=10)
    if launcher == "threads":  # threads end by themselves, unlike processes
        kill = session.launcher.kill
        monkeypatch.setattr(session.launcher, "kill", lambda: (gate.open(), kill()))
    clock.when(is_alone(session, gate, 1), lambda: clock.advance(0.3))
    with reports(synk.WorkerTimeout, "0.2 s", rank=1, command="pass") as caught:
        session.run(Pass(1, gate, meet), timeout=0.2)
    assert "rank 1 (pid" in str(caught.value) and "rank 2" not in str(caught.value)
    assert "in run" in str(caught.value)
    assert not synk.is_forked()


@pytest.mark.slow
def test_timeout_of_the_session(open_session, clock, gate):
    session = open_session("fork", timeout=0.2)
    clock.when(gate.is_reached, lambda: clock.advance(0.3))
    with pytest.raises(synk.WorkerTimeout):
        session.run(Pass(2, gate))


def test_a_slow_master_is_not_late(open_session, clock):
    """A command is not late if the other ranks have answered before the master finishes."""
    session = open_session("fork")

    def dawdle():
        until(lambda: all(session.channel.has_answered(rank, session._number) for rank in (1, 2)))
        clock.advance(10)

    assert session.run(Dawdle(dawdle), timeout=0.1) == [None] * 3


@pytest.mark.slow
def test_a_rank_that_answers_just_after_the_deadline(open_session, clock, gate, monkeypatch):
    session = open_session("threads")
    late = session._late

    def late_and_then_there():
        error = late()
        gate.open()
        until(lambda: session._missing() != [1])
        return error

    monkeypatch.setattr(session, "_late", late_and_then_there)
    clock.when(is_alone(session, gate, 1), lambda: clock.advance(0.2))
    with pytest.raises(synk.WorkerTimeout) as caught:
        session.run(Pass(1, gate), timeout=0.15)
    assert caught.value.rank == 1


@pytest.mark.slow
@both
def test_warns_who_is_waited_for(launcher, open_session, clock, gate, monkeypatch, caplog):
    monkeypatch.setattr(session_module, "WARN_AFTER_S", 20.0)
    session = open_session(launcher)
    is_awaited = is_alone(session, gate, 2)
    clock.when(is_awaited, lambda: clock.advance(21))
    clock.when(is_awaited, lambda: clock.advance(19))
    clock.when(is_awaited, lambda: clock.advance(2))
    clock.when(is_awaited, gate.open)
    with caplog.at_level(logging.WARNING, "synkhronos"):
        session.run(Pass(2, gate))
    assert caplog.messages == [f"waiting for rank 2 in pass ({seconds} s so far)" for seconds in (21, 42)]


@both
def test_what_is_forgotten_is_forgotten_by_all(launcher, open_session):
    session = open_session(launcher)
    for number in (1, 2):
        session.context.registry.functions[number] = session.context.registry.shareds[number] = "thing"
    session._forget = [("function", 1), ("shared", 2)]
    assert session.run(Forget())[0] == ([2], [1])
    assert session._forget == []


def test_no_memory_for_a_command(open_session, monkeypatch):
    """The session remains open if a command cannot be sent."""
    session = open_session("fork")

    def put(payload, slot, pool):
        raise synk.SharedMemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr("synkhronos.memory.messages.put", put)
        with reports(synk.SharedMemoryError, "full"):
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


class ObservedLock:
    """A lock that calls an observer before it is acquired."""

    def __init__(self, lock, observer):
        self.lock, self.observer = lock, observer

    def acquire(self, *args, **kwargs):
        self.observer()
        return self.lock.acquire(*args, **kwargs)

    def release(self):
        self.lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *exception):
        self.release()


def test_each_thread_is_prepared_for_the_device(open_session):
    """A CUDA context must be made current in each thread of the program that runs a command."""
    session, prepared = open_session("threads"), []
    session.context.transport.prepare_thread = lambda: prepared.append(threading.get_ident())
    thread = threading.Thread(target=session.run, args=(Tell(),))
    thread.start()
    thread.join()
    session.run(Tell())
    assert prepared == [thread.ident, threading.get_ident()]


def test_close_waits_for_another_threads_command(open_session, gate):
    session = open_session("fork", 2)
    results = []
    thread = threading.Thread(target=lambda: results.append(session.run(Pass(1, gate))))
    thread.start()
    gate.until_reached()
    session.lock = ObservedLock(session.lock, gate.open)
    synk.close()
    thread.join()
    assert results == [[None, None]]


def test_close_that_does_not_wait(open_session, gate):
    session = open_session("fork", 2)
    errors = []

    def work():
        try:
            session.run(Pass(1, gate))
        except synk.SynkhronosError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    gate.until_reached()
    session.close("enough", wait_s=0.1)
    thread.join()
    assert not lacks(str(errors[0]), "enough", "pass")
    assert session.closed == "enough"


def test_a_session_that_is_closed_during_a_command_of_another_thread_is_ended_once(open_session, gate, monkeypatch):
    session = open_session("fork", 2)
    caught, killing, kill = [], [], session.launcher.kill

    def work():
        with pytest.raises(synk.StateError) as info:
            session.run(Pass(1, gate))
        caught.append(str(info.value))

    def observed_kill():
        killing.append(threading.current_thread())
        if killing[-1] is not thread:
            thread.join()  # until its command has noticed that the session is closed
        kill()

    thread = threading.Thread(target=work)
    monkeypatch.setattr(session.launcher, "kill", observed_kill)
    thread.start()
    gate.until_reached()
    session.close("enough", wait_s=0.0)
    assert killing == [threading.main_thread()]
    assert not lacks(caught[0], "enough", "pass")


def test_other_errors_are_noted_on_the_one_that_ends_it(open_session, clock, gate):
    session = open_session("fork", 3)
    clock.when(lambda: session.channel.has_answered(2, session._number), gate.open)
    with pytest.raises(synk.WorkerDied) as caught:
        session.run(Mixed(gate))
    notes = caught.value.__notes__
    assert any(not lacks(note, "master", "KeyError: 'on the master'") for note in notes)
    assert any(not lacks(note, "rank 2", "OSError: on rank 2") for note in notes)


class Mixed(Command):
    title = "mixed"

    def __init__(self, gate):
        self.gate = gate

    def run(self, context):
        if context.rank == 1:
            self.gate.wait()
            os._exit(5)
        if context.rank == 2:
            raise OSError("on rank 2")
        raise KeyError("on the master")


def test_profiles(tmp_path, monkeypatch, open_session, gate):
    import pstats

    monkeypatch.chdir(tmp_path)
    session = open_session("fork", 2, profile_workers=True)
    gate.open()
    session.run(Pass(1, gate))
    session.run(CheckStart())
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
