"""Ranks that die are replaced, and programs end with the same bits as without deaths.

Modules: `synkhronos.runtime.deposits`, `synkhronos.runtime.healing`.
"""

import gc
import json
import logging
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from fragile_training import ROUNDS, Fragile, training
from gates import Gate, until
from killer import Killer, Terror, flat, kill, pid_of
from refusals import lacks, refuses, reports

import synkhronos as synk
from synkhronos.kernels.copy import copy_into
from synkhronos.processes.keeper import _Watch
from synkhronos.program.program import PROGRAM
from synkhronos.replication.replicator import Replicator, replicator_of
from synkhronos.runtime import deposits
from synkhronos.runtime.command import Command, DepositValues
from synkhronos.runtime.deposits import dump, load
from synkhronos.runtime.healing import Healing
from synkhronos.runtime.session import Session
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path / "gate")


def test_a_training_in_which_ranks_are_killed_ends_like_the_undisturbed_one():
    synk.fork(3, seed=1)
    expected = flat(training(ROUNDS))
    synk.close()
    synk.fork(3, seed=1, heal=1000)
    with Killer(PROGRAM.session.others) as killer:
        found = flat(training(ROUNDS, killer))
    healed = len(PROGRAM.session.healing.deaths)
    assert found == expected
    assert killer.kills >= healed >= ROUNDS


@pytest.mark.parametrize("standby", [True, False])
def test_the_log_says_who_died_of_what_where_and_when(caplog, standby):
    synk.fork(2, heal=2, standby=standby)
    w = engine.shared(np.zeros(3), "w")
    f = synk.function([], [], updates=[(w, w + 1)], name="step")
    f()
    before = pid_of(1)
    kill(1)
    with caplog.at_level(logging.WARNING, "synkhronos"):
        f()
    (record,) = caplog.records
    said = record.getMessage()
    assert (
        f"rank 1 (pid {before}) was killed by SIGKILL" in said
        and "function step is repeated (deaths: 1 of at most 2)" in said
    )
    assert pid_of(1) != before
    np.testing.assert_array_equal(synk.gather(w), [[2.0] * 3] * 2)


def test_without_heal_a_death_ends_the_session():
    synk.fork(2)
    w = engine.shared(np.zeros(3), "w")
    f = synk.function([], [], updates=[(w, w + 1)])
    f()
    kill(1)
    with pytest.raises(synk.WorkerDied):
        f()
    assert not synk.is_forked()


def test_more_deaths_than_that_end_the_session():
    synk.fork(2, heal=1)
    w = engine.shared(np.zeros(3), "w")
    f = synk.function([], [], updates=[(w, w + 1)])
    f()
    kill(1)
    f()
    kill(1)
    with pytest.raises(synk.WorkerDied) as caught:
        f()
    assert not lacks(str(caught.value.__notes__), "ranks replaced so far: 1 of at most 1")
    np.testing.assert_array_equal(w.get_value(), [2.0] * 3)
    assert synk.fork(2) == 2


class Change(Command):
    """Change a variable on every rank, in a transaction; before its end, fail or wait at a gate on one rank."""

    title = "change"

    def __init__(self, number, value, failing=None, gate=None):
        self.number, self.value, self.failing, self.gate = number, dump(value), failing, gate

    def run(self, context):
        context.transaction.protect(context.entries([self.number]))
        context.registry.shareds[self.number].cell[0] = load(self.value)
        if context.rank == self.failing:
            raise ValueError("of this rank")
        if context.rank == 1 and self.gate is not None:
            self.gate.wait()
        context.transaction.commit()


class Layout(Command):
    """Return a rank's value, and its strides if it has any."""

    def __init__(self, number):
        self.number = number

    def run(self, context):
        value = context.registry.shareds[self.number].cell[0]
        return getattr(value, "strides", None), dump(value)


VALUES = {
    "a dense array": np.arange(6.0).reshape(2, 3),
    "a number": np.float64(3.5),
    "an object": [1, "two"],
    "columns": np.arange(6.0).reshape(3, 2).T,
    "axes in another order": np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0),
    "an array without axes": np.array(2.5),
}


@pytest.mark.parametrize("dies", [False, True])
def test_values_that_change_their_kind(dies):
    """A rank's last deposited value is restored, whatever its type, with its memory layout."""
    synk.fork(3, heal=100)
    w = engine.shared(np.zeros((2, 3)), "w")
    synk.broadcast(w)
    session = PROGRAM.session
    number = replicator_of(session).find(engine.ENGINE, w)
    for before in VALUES.values():
        for after in VALUES.values():
            session.run(Change(number, before))
            expected = session.run(Layout(number))
            if dies:
                kill(2)
            else:
                with reports(synk.WorkerError, "of this rank"):
                    session.run(Change(number, after, 1))
            assert session.run(Layout(number)) == expected == [expected[0]] * 3
    session.run(Change(number, np.zeros((2, 3))))


def test_a_value_that_cannot_be_written_to(gate):
    synk.fork(2, heal=1)
    w = engine.shared(np.zeros(3), "w")
    synk.broadcast(w)
    number = replicator_of(PROGRAM.session).find(engine.ENGINE, w)
    value = np.frombuffer(bytes(24))
    PROGRAM.session.context.registry.shareds[number].cell[0] = value
    killer = threading.Thread(target=lambda: (gate.until_reached(), kill(1), gate.open()))
    killer.start()
    PROGRAM.session.run(Change(number, np.ones(3), gate=gate))
    killer.join()
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), np.ones((2, 3)))
    assert len(PROGRAM.session.healing.deaths) == 1 and not value.any()
    for i in (2, 3):  # the kept copy does not serve as memory for other copies
        PROGRAM.session.run(Change(number, np.full(3, float(i))))
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), np.full((2, 3), 3.0))
    assert not value.any()


def with_fragile_function(folder, times, heal, standby=True):
    """Open a session and kill rank 1; ``times`` of its replacements die while they load the function."""
    synk.fork(2, heal=heal, standby=standby)
    w, x = engine.shared(np.zeros(3), "w"), engine.variable("x", "float64", 1)
    fragile = engine.apply(Fragile(str(folder)), x, dtype="float64", ndim=1)
    f = synk.function([x], (fragile, "gather"), updates=[(w, w + 1)])
    f(np.arange(4.0))
    for i in range(times):
        (folder / str(i)).touch()
    kill(1)
    return f, w


@pytest.mark.parametrize("standby", [True, False])
def test_a_process_that_dies_while_it_takes_a_place_is_one_more_death(tmp_path, caplog, standby):
    f, w = with_fragile_function(tmp_path, 2, 3, standby)
    with caplog.at_level(logging.WARNING, "synkhronos"):
        np.testing.assert_array_equal(f(np.arange(4.0)), np.arange(4.0))
    np.testing.assert_array_equal(synk.gather(w), [[2.0] * 3] * 2)
    (record,) = caplog.records
    assert (
        "in restoration of a replaced rank" in record.getMessage() and "(deaths: 3 of at most 3)" in record.getMessage()
    )


def test_deaths_of_those_that_take_a_place_end_the_session_when_they_are_too_many(tmp_path):
    f, w = with_fragile_function(tmp_path, 9, 2)
    with pytest.raises(synk.WorkerDied) as caught:
        f(np.arange(4.0))
    assert not lacks(str(caught.value.__notes__), "restoration")
    assert "(death 3 of 2)" in str(caught.value.__notes__)
    np.testing.assert_array_equal(w.get_value(), [1.0] * 3)


class Kill(Command):
    """Kill ranks in the middle of the command, each once for every file with its number in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, context):
        for path in Path(self.folder).glob(f"{context.rank}-*"):
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        context.barrier.wait()
        return context.rank


@pytest.mark.parametrize("names", [["1-a", "1-b", "1-c"], ["1-a", "2-a", "1-b", "2-b"]])
def test_a_rank_may_be_killed_more_than_once_in_a_command(tmp_path, names):
    """Repeated kills in a command are healed, unless a function itself kills its rank each time."""
    synk.fork(3, heal=len(names))
    w = engine.shared(np.arange(3.0), "w")
    synk.broadcast(w)
    for name in names:
        (tmp_path / name).touch()
    assert PROGRAM.session.run(Kill(str(tmp_path))) == [0, 1, 2]
    assert len(PROGRAM.session.healing.deaths) == len(names)
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [np.arange(3.0)] * 3)


@pytest.mark.thorough
def test_kills_at_any_time_end_like_the_undisturbed_training():
    """Kills of ranks, replacements and standbys every 20 to 150 ms do not change the results."""
    synk.fork(3, seed=1)
    expected = flat(training(2 * ROUNDS))
    synk.close()
    synk.fork(3, seed=1, heal=100)
    with Terror(PROGRAM.session.others, kills=40) as terror:
        found = flat(training(2 * ROUNDS, lambda: time.sleep(0.01)))
    assert found == expected
    assert 0 < len(PROGRAM.session.healing.deaths) <= terror.kills


def test_the_others_path_and_folder(tmp_path, monkeypatch):
    (tmp_path / "only_later.py").write_text("import os\ndef double(value):\n    return 2 * value + len(os.getcwd())\n")
    synk.fork(2, heal=1)
    monkeypatch.syspath_prepend(str(tmp_path))
    os.chdir(str(tmp_path))
    import only_later

    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.apply(only_later.double, x, dtype="float64", ndim=1), "gather"))
    expected = np.arange(4.0) * 2 + len(str(tmp_path))
    np.testing.assert_array_equal(f(np.arange(4.0)), expected)
    os.chdir("/")  # ranks learn the directory only with the next function
    kill(1)
    found = f(np.arange(4.0))
    np.testing.assert_array_equal(found[2:], expected[2:])  # as computed by the replaced rank


def test_a_rank_that_is_late_by_little(clock, gate, monkeypatch):
    """A late rank is replaced, even if it has finished by the time the others' stacks are collected."""
    synk.fork(2, heal=2, timeout=0.5)
    session = PROGRAM.session
    late = session._late

    def late_and_then_there():
        error = late()
        gate.open()
        until(lambda: session.block.arrived[1] >= session.context.barrier.current)
        gate.close()  # the rank is late in the repeated command, too
        return error

    monkeypatch.setattr(session, "_late", late_and_then_there)
    w = engine.shared(np.zeros(3), "w")
    synk.broadcast(w)
    number = replicator_of(PROGRAM.session).find(engine.ENGINE, w)
    before = pid_of(1)
    for _ in range(2):
        clock.when(gate.is_reached, lambda: clock.advance(0.6))
    with pytest.raises(synk.WorkerTimeout) as caught:
        session.run(Change(number, np.ones(3), gate=gate))
    assert not lacks(str(caught.value.__notes__), "first", "rank 1")
    assert not psutil.pid_exists(before)


def test_what_the_program_has_dropped_need_not_be_deposited(monkeypatch):
    synk.fork(2, heal=1)
    w, v = engine.shared(np.zeros(3), "w"), engine.shared(np.zeros(3), "v")
    synk.broadcast([w, v])
    session = PROGRAM.session
    session.healing.set_deposited([replicator_of(session).find(engine.ENGINE, w)], False)
    del w
    gc.collect()
    kill(1)
    synk.all_reduce(v)
    assert len(session.healing.deaths) == 1


def test_an_all_reduce_that_was_dropped_is_not_under_way():
    synk.fork(2, heal=1)
    w, m = engine.shared(np.arange(3.0), "w"), engine.shared(np.zeros(3), "m")
    synk.broadcast([w, m])
    synk.all_reduce(w, into=m, wait=False).drop()
    kill(1)
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [np.arange(3.0)] * 2)


def test_a_session_that_is_closed_meanwhile(monkeypatch):
    """`close` in a signal handler waits until the keeper has replaced the rank; the keeper lives on."""
    synk.fork(2, heal=1)
    w = engine.shared(np.zeros(3), "w")
    f = synk.function([], [], updates=[(w, w + 1)])
    f()
    replace = PROGRAM.session.launcher.replace

    def replace_slowly(*given):
        signal.raise_signal(signal.SIGALRM)
        return replace(*given)

    monkeypatch.setattr(PROGRAM.session.launcher, "replace", replace_slowly)
    before = signal.signal(signal.SIGALRM, lambda *_: synk.close())
    keeper = PROGRAM.keeper_pid
    try:
        kill(1)
        with reports(synk.StateError, "synkhronos.close()"):
            f()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert synk.fork(2) == 2 and PROGRAM.keeper_pid == keeper


def test_two_deaths_at_once_count_as_two():
    synk.fork(3, heal=1)
    w = engine.shared(np.zeros(3), "w")
    synk.broadcast(w)
    kill(1)
    kill(2)
    until(lambda: PROGRAM.session.block.ended[1] and PROGRAM.session.block.ended[2])
    with pytest.raises(synk.WorkerDied) as caught:
        synk.broadcast(w)
    assert not lacks(str(caught.value.__notes__), "ranks replaced so far: 0 of at most 1", 2)


MASTER = os.getpid()


def crash_elsewhere(value):
    if os.getpid() != MASTER:
        os.kill(os.getpid(), signal.SIGSEGV)
    return value


def test_a_function_that_kills_its_rank_each_time_ends_the_session():
    synk.fork(2, heal=9)
    w, x = engine.shared(np.zeros(3), "w"), engine.variable("x", "float64", 1)
    crashing = engine.apply(crash_elsewhere, x, dtype="float64", ndim=1)
    f = synk.function([x], (crashing, "gather"), updates=[(w, w + 1)])
    with pytest.raises(synk.WorkerDied) as caught:
        f(np.arange(4.0))
    assert "SIGSEGV" in str(caught.value) and not lacks(str(caught.value.__notes__), "first", "rank 1")
    assert str(caught.value.__notes__).count("SIGSEGV") == 1
    np.testing.assert_array_equal(w.get_value(), np.zeros(3))  # no effect of the call remains


def test_a_rank_that_is_stuck_is_replaced(caplog, clock):
    synk.fork(3, heal=1, timeout=1.5)
    session = PROGRAM.session
    w = engine.shared(np.zeros(3), "w")
    f = synk.function([], [], updates=[(w, w + 1)])
    f()
    stuck = psutil.Process(pid_of(2))
    stuck.suspend()
    clock.when(lambda: stuck.status() == "stopped" and session._missing() == [2], lambda: clock.advance(1.6))
    with caplog.at_level(logging.WARNING, "synkhronos"):
        f()
    assert not stuck.is_running()
    assert "rank 2 has not answered" in caplog.records[-1].getMessage()
    np.testing.assert_array_equal(synk.gather(w), [[2.0] * 3] * 3)


def raise_on(rank, value, here):
    if here[0] == rank:
        raise RuntimeError("this rank does not like that")
    return value


def test_a_call_that_fails_on_one_rank_changes_nothing_on_any():
    synk.fork(3, heal=1)
    w, rank = engine.shared(np.zeros(2), "w"), engine.shared(np.zeros(1), "rank")
    x = engine.variable("x", "float64", 1)
    y = engine.apply(raise_on, 1, x, rank, dtype="float64", ndim=1)
    f = synk.function([x], (y, "gather"), updates=[(w, w + 1)], exact=False)
    f(np.arange(6.0))
    synk.scatter(rank, np.arange(3.0))
    with pytest.raises(synk.WorkerError):
        f(np.arange(6.0))
    np.testing.assert_array_equal(synk.gather(w), [[1.0] * 2] * 3)
    kill(2)
    synk.scatter(rank, np.full(3, 7.0))
    f(np.arange(6.0))
    np.testing.assert_array_equal(synk.gather(w), [[2.0] * 2] * 3)


def test_on_step_is_called_once_for_every_step():
    synk.fork(2, heal=3)
    w, x = engine.shared(np.zeros(2), "w"), engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.mean(x), "avg"), updates=[(w, w + 1)], exact=False)
    seen = []

    def on_step(i, output):
        seen.append((i, float(output)))
        if i in (5, 40):
            kill(1)
            until(lambda: PROGRAM.session.block.ended[1])
        return i != 49

    data = np.arange(120.0)
    means = f.steps(data, batches=[[2 * i, 2 * i + 1] for i in range(60)], on_step=on_step)
    assert [i for i, _ in seen] == list(range(50))
    assert 50 <= len(means) <= 60  # ranks do not wait for each other, so another rank may have begun more steps
    np.testing.assert_array_equal(means, 2.0 * np.arange(len(means)) + 0.5)
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [[float(len(means))] * 2] * 2)


def test_steps_with_collectives_end_where_the_program_says():
    synk.fork(2, heal=3)
    w, x = engine.shared(np.zeros(2), "w"), engine.variable("x", "float64", 1)
    joint = synk.ops.all_reduce(engine.mean(x))
    f = synk.function([x], [(joint, None)], updates=[(w, w + joint)], exact=False)

    def on_step(i, outputs):
        if i in (5, 31):
            kill(1)
        return i != 31

    data = np.arange(120.0)
    (found,) = f.steps(data, batches=[[2 * i, 2 * i + 1] for i in range(60)], on_step=on_step)
    np.testing.assert_array_equal(found, np.arange(32) * 2 + 0.5)
    np.testing.assert_array_equal(synk.gather(w), [[found.sum()] * 2] * 2)
    assert len(PROGRAM.session.healing.deaths) == 2


def test_steps_after_an_error_are_deposited(caplog):
    """A rank that dies after an error is replaced with the results of the steps before the error."""
    synk.fork(2, heal=1)
    w, x = engine.shared(np.zeros(2), "w"), engine.variable("x", "float64", 1)
    y = engine.apply(refuse_sevens, x, dtype="float64", ndim=1)
    f = synk.function([x], (y, "gather"), updates=[(w, w + 1)], exact=False)
    with reports(Exception, "seven"):
        f.steps(np.arange(20.0), batches=[[i, i + 1] for i in range(19)])
    before = synk.gather(w)
    kill(1)
    np.testing.assert_array_equal(synk.gather(w), before)
    assert before[0, 0] == 7 or before[1, 0] == 6


def refuse_sevens(value):
    if 7 in value:
        raise ValueError("a seven")
    return value


def test_what_a_dead_rank_alone_had_is_its_successors():
    synk.fork(3, heal=2)
    w = engine.shared(np.zeros(2), "w")
    synk.scatter(w, np.arange(6.0))
    assert synk.gather(w).shape == (3, 2)
    for rank in (1, 2):
        kill(rank)
        np.testing.assert_array_equal(synk.gather(w).ravel(), np.arange(6.0))


@pytest.mark.parametrize("another_command", [True, False])
def test_what_only_the_dead_rank_had_is_said(another_command):
    synk.fork(2, heal=2)
    w = engine.shared(np.arange(70_000.0), "w")
    other = engine.shared(np.zeros(70_000), "other")
    synk.broadcast([w, other])
    pending = synk.all_reduce(w, into=other, wait=False)
    kill(1)
    with pytest.raises(synk.WorkerDied) as caught:
        synk.gather(w) if another_command else pending.wait()
    assert not lacks(str(caught.value.__notes__), "all_reduce(wait=False)" if another_command else "all_reduce")


def test_the_keeper_is_not_replaced():
    synk.fork(2, heal=5)
    w = engine.shared(np.zeros(2), "w")
    f = synk.function([], [], updates=[(w, w + 1)])
    f()
    os.kill(PROGRAM._keeper.pid, signal.SIGKILL)
    with pytest.raises(synk.SynkhronosError):
        while True:
            f()
            time.sleep(0.01)
    assert not synk.is_forked()


def standbys():
    """Return the keeper's child processes that are not ranks."""
    ranks = {pid_of(rank) for rank in PROGRAM.session.others}
    return [child for child in psutil.Process(PROGRAM._keeper.pid).children() if child.pid not in ranks]


def test_a_standby_that_was_killed_is_not_missed():
    synk.fork(2, heal=2)
    w = engine.shared(np.zeros(2), "w")
    f = synk.function([], [], updates=[(w, w + 1)])
    f()
    (standby,) = standbys()
    standby.kill()
    until(lambda: not standbys())
    kill(1)
    f()
    np.testing.assert_array_equal(synk.gather(w), [[2.0] * 2] * 2)
    assert len(standbys()) == 1
    synk.close()
    assert not psutil.Process(PROGRAM._keeper.pid).children()


@pytest.mark.parametrize(
    ("options", "error", "argument", "got"),
    [
        ({"heal": -1}, ValueError, "heal", "-1"),
        ({"heal": 1.5}, TypeError, "heal", "1.5"),
        ({"heal": "3"}, TypeError, "heal", "'3'"),
        ({"heal": 1, "standby": 2}, TypeError, "standby", "2"),
    ],
)
def test_bad_arguments(options, error, argument, got):
    with refuses(error, argument, got=got):
        synk.fork(2, **options)
    assert not synk.is_forked()


def test_the_environment_says_it(monkeypatch):
    monkeypatch.setenv("SYNK_HEAL", "3")
    synk.fork(2)
    assert PROGRAM.session.healing.most == 3
    synk.close()
    synk.fork(2, heal=0)
    assert PROGRAM.session.healing is None
    synk.close()
    monkeypatch.setenv("SYNK_HEAL", "many")
    with refuses(TypeError, "SYNK_HEAL", "int", "'many'"):
        synk.fork(2)


def test_ctrl_c_while_another_process_takes_the_place_ends_the_session(monkeypatch):
    synk.fork(2, heal=1)
    w = engine.shared(np.zeros(2), "w")
    f = synk.function([], [], updates=[(w, w + 1)])
    f()
    kill(1)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(PROGRAM.session.launcher, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        f()
    assert not synk.is_forked()
    np.testing.assert_array_equal(w.get_value(), [1.0] * 2)


def test_why_no_process_can_take_the_place_is_said(monkeypatch):
    synk.fork(2, heal=1)
    w = engine.shared(np.zeros(2), "w")
    f = synk.function([], [], updates=[(w, w + 1)])
    f()
    kill(1)

    def refused(*args):
        raise synk.SynkhronosError("no process can be started")

    monkeypatch.setattr(PROGRAM.session.launcher, "replace", refused)
    with pytest.raises(synk.WorkerDied) as caught:
        f()
    assert not lacks(str(caught.value.__notes__), "SynkhronosError: no process can be started")
    assert not synk.is_forked()


class PassGates:
    """Returns a rank's rows, after a wait at a gate unless the first row is 0."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, value):
        if value[0]:
            self.gate_of(value[0]).wait()
        return value

    def gate_of(self, row):
        return Gate(self.folder / str(int(row)))


def test_a_rank_that_computes_finishes_first(tmp_path, monkeypatch):
    """If another rank dies, a computing rank is not taken for dead, and its unfinished updates are undone."""
    synk.fork(3, heal=1)
    w, x = engine.shared(np.zeros(2), "w"), engine.variable("x", "float64", 1)
    gates = PassGates(tmp_path)
    y = engine.apply(gates, x, dtype="float64", ndim=1)
    f = synk.function([x], (y, "gather"), updates=[(w, w + 1)], exact=False)
    before, (dies, computes) = pid_of(2), [gates.gate_of(row) for row in (2, 4)]
    session = PROGRAM.session
    watch = session._watch_survivor
    # The survivor continues when another rank has died and the master waits for the survivor.
    monkeypatch.setattr(session, "_watch_survivor", lambda *about: (computes.open(), watch(*about)))

    def die():
        dies.until_reached()
        computes.until_reached()
        kill(1)
        dies.open()

    killer = threading.Thread(target=die)
    killer.start()
    np.testing.assert_array_equal(f(np.arange(6.0)), np.arange(6.0))
    killer.join()
    assert pid_of(2) == before
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [[1.0] * 2] * 3)


def test_a_profile_has_what_both_processes_did(tmp_path):
    synk.fork(2, heal=1, profile=tmp_path / "profile")
    w = engine.shared(np.zeros(2), "w")
    f = synk.function([], [], updates=[(w, w + 1)], name="step")
    for i in range(20):
        if i == 10:
            kill(1)
        f()
    synk.close()
    timeline = json.loads((tmp_path / "profile" / "timeline.json").read_text())
    names = [event["name"] for event in timeline["traceEvents"] if event["ph"] == "X" and event["pid"] == 1]
    assert names.count("step") >= 19 and names.count("restoration of a replaced rank") == 1


@pytest.mark.parametrize("error", [synk.SharedMemoryError("no memory for the copy"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("dies", [False, True], ids=["error", "death"])
def test_what_could_not_be_deposited_is_before_the_next_command(monkeypatch, error, dies):
    """A failed deposit is repeated before the next command, so errors and deaths do not restore older values."""
    synk.fork(2, heal=3)
    w, x = engine.shared(np.zeros(2), "w"), engine.variable("x", "float64", 1)
    y = engine.mean(engine.apply(refuse_sevens, x, dtype="float64", ndim=1))
    f = synk.function([x], (synk.ops.all_reduce(y), None), updates=[(w, w + 1)], exact=False)
    execute = Session._execute_and_heal

    def fail_once(self, command, timeout):
        if type(command) is DepositValues:
            monkeypatch.undo()
            raise error
        return execute(self, command, timeout)

    monkeypatch.setattr(Session, "_execute_and_heal", fail_once)
    with pytest.raises(type(error)):
        f.steps(np.arange(20.0), batches=[[i, i + 1] for i in range(19)])
    if dies:
        f(np.zeros(2))
        kill(1)
    else:
        with reports(Exception, "seven"):
            f(np.array([0.0, 7.0]))
    found = synk.gather(w, nd_up=1) - dies
    np.testing.assert_array_equal(found, np.full((2, 2), found[0, 0]))
    assert found[0, 0] in (5, 6)  # the last step before the error is undone if not all ranks began the next step


def test_ctrl_c_after_the_commit(monkeypatch):
    """After Ctrl-C, the master knows where the ranks' new values are, even without their answers."""
    synk.fork(2, heal=1)
    w, v = engine.shared(np.zeros(2), "w"), engine.shared(np.zeros(2), "v")
    f, g = synk.function([], [], updates=[(w, w + 1)]), synk.function([], [], updates=[(v, v + w)])
    f(), g()

    def interrupted(self, answers):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Healing, "record_deposits", interrupted)
    with pytest.raises(KeyboardInterrupt):
        f()
    kill(1)
    g()
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [[2.0] * 2] * 2)
    np.testing.assert_array_equal(synk.gather(v, nd_up=1), [[3.0] * 2] * 2)


def test_ctrl_c_while_the_master_undoes_a_call(monkeypatch):
    synk.fork(2, heal=1)
    w, v, x = engine.shared(np.zeros(2), "w"), engine.shared(np.zeros(2), "v"), engine.variable("x", "float64", 1)
    y = engine.apply(refuse_sevens, x, dtype="float64", ndim=1)
    f = synk.function([x], (y, "gather"), updates=[(w, w + 1), (v, v + 1)], exact=False)
    f(np.zeros(2))
    copies = []

    def interrupted(target, source):
        copies.append(copy_into(target, source))
        if len(copies) == 3:  # two values were saved, and one is being restored
            raise KeyboardInterrupt

    monkeypatch.setattr(deposits, "copy_into", interrupted)
    with pytest.raises(KeyboardInterrupt):
        f(np.array([0.0, 7.0]))
    monkeypatch.undo()
    assert len(copies) > 3
    for each in (w, v):
        np.testing.assert_array_equal(synk.gather(each, nd_up=1), [[1.0] * 2] * 2)


def test_what_is_dropped_while_a_rank_is_replaced(monkeypatch):
    synk.fork(2, heal=1)
    w, v = engine.shared(np.zeros(2), "w"), engine.shared(np.zeros(2), "v")
    f, g = synk.function([], [], updates=[(w, w + 1)]), synk.function([], [], updates=[(v, v + 1)])
    f(), g()
    cycle = [v, g]
    cycle.append(cycle)
    items = Replicator._functions_items

    def collecting(*arguments):
        gc.collect()
        return items(*arguments)

    monkeypatch.setattr(Replicator, "_functions_items", collecting)
    gc.disable()
    try:
        del v, g, cycle
        kill(1)
        f()
    finally:
        gc.enable()
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [[2.0] * 2] * 2)


def test_no_process_can_stand_by(monkeypatch):
    """If no standby can be started, there is none."""
    keeper = _Watch.__new__(_Watch)
    keeper.block, keeper.standby = object(), None

    def refused():
        raise OSError("too many processes")

    monkeypatch.setattr(os, "fork", refused)
    before = len(os.listdir("/proc/self/fd"))
    keeper.stand_by([], None)
    assert keeper.standby is None and len(os.listdir("/proc/self/fd")) == before
