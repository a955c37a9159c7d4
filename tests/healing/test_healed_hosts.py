"""Ranks that die on any of several hosts are replaced there, and programs end with the same bits as without deaths.

Modules: `synkhronos.cluster.launcher`, `synkhronos.runtime.healing`, `synkhronos.runtime.session`.
"""

import gc
import logging
import os
import signal
import socket
import threading
import time

import numpy as np
import psutil
import pytest
from fragile_training import ROUNDS, Fragile, training
from gates import Gate, until
from killer import Killer, Terror, flat, kill, pid_of
from refusals import lacks, reports
from worlds import Handles, over_hosts

import synkhronos as synk
from synkhronos.cluster.bridge import Bridge
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("keeper")]

#: Length of a notice that does not fit into its slot.
LONG = 40_000


def forked(counts=(2, 2), heal=1, **options):
    return over_hosts(counts, seed=1, heal=heal, **options)


def undisturbed(counts, rounds):
    over_hosts(counts, seed=1)
    found = flat(training(rounds))
    synk.close()
    return found


def counting(name="step"):
    """Return a variable, and a function that adds 1 to it."""
    w = engine.shared(np.zeros(3), "w")
    f = synk.function([], [], updates=[(w, w + 1)], name=name)
    f()
    return w, f


def check(w, n, count):
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), np.full((n, 3), float(count)))


def end(rank):
    """Kill a rank, and wait until the program's host knows."""
    kill(rank)
    until(lambda: PROGRAM.session.block.ended[rank])


@pytest.mark.parametrize("counts", [(2, 2), (1, 1), pytest.param((1, 2, 1), marks=pytest.mark.thorough)])
def test_a_training_in_which_ranks_of_all_hosts_are_killed_ends_like_the_undisturbed_one(counts):
    expected = undisturbed(counts, ROUNDS // 2)
    session = forked(counts, 1000)
    with Killer(session.others) as killer:
        found = flat(training(ROUNDS // 2, killer))
    assert found == expected
    assert killer.kills >= len(session.healing.deaths) > 0


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_rank_is_replaced_on_its_host(rank, caplog):
    """Rank 1 is on the first host; rank 2 leads the second host, and rank 3 does not."""
    session = forked()
    w, f = counting()
    before = psutil.Process(pid_of(rank))
    keeper = before.ppid()
    kill(rank)
    with caplog.at_level(logging.WARNING, "synkhronos"):
        f()
    (record,) = caplog.records
    assert not lacks(record.getMessage(), f"rank {rank} (pid {before.pid}", "SIGKILL", "step", "deaths: 1 of at most 1")
    assert pid_of(rank) != before.pid and psutil.Process(pid_of(rank)).ppid() == keeper
    check(w, 4, 2)
    kill(rank)
    with pytest.raises(synk.WorkerDied) as caught:
        f()
    assert not lacks(str(caught.value.__notes__), "ranks replaced so far: 1 of at most 1")
    assert session.closed


@pytest.mark.parametrize("ranks", [(1, 3), (2, 3), (1, 2, 3)])
def test_several_deaths_at_once(ranks):
    forked(heal=len(ranks))
    w, f = counting()
    for rank in ranks:
        kill(rank)
    until(lambda: all(PROGRAM.session.block.ended[rank] for rank in ranks))
    f()
    check(w, 4, 2)
    assert len(PROGRAM.session.healing.deaths) == len(ranks)


class Exchange(Command):
    """Exchange long notices; return the length and the different bytes of each."""

    title = "exchange of long notices"

    def run(self, context):
        found = context.transport.exchange(np.full(LONG, context.rank, np.uint8).tobytes())
        result = [(len(notice), set(notice)) for notice in found]
        assert result == [(LONG, {rank}) for rank in range(context.size)]  # even if a rank has died meanwhile
        return result


class Fatal(Command):
    """Make a leader kill itself from the next command on, once, before or after it handles a kind of message."""

    title = "fatal"

    def __init__(self, path, rank, kind, when, count):
        self.path, self.rank, self.kind, self.when, self.left = path, rank, kind, when, count

    def run(self, context):
        if context.rank != self.rank or not self.path.exists():
            return
        relay = context.leading
        receive, link = relay._deal_with, relay._link
        send = link.send
        first = context.barrier.command + 1

        def perhaps(kind, when):
            if kind == self.kind and when == self.when and relay.block.words[3] >= first - (kind == "command"):
                self.left -= 1
                if self.left <= 0 and self.path.exists():
                    self.path.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)

        def receives(kind, *what):
            perhaps(kind, "before")
            receive(kind, *what)
            perhaps(kind, "after")

        def sends(message, watch):
            perhaps(message[0], "before")
            send(message, watch)
            perhaps(message[0], "after")

        relay._deal_with, link.send = receives, sends


@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["command", "decided", "arrived", "answers"])
def test_a_leader_that_dies_with_a_message(kind, when, count, tmp_path):
    """Its host's ranks wait for the message that it received, or the program waits for the one that it did not send."""
    session = forked()
    w, f = counting()
    v = engine.shared(np.arange(4.0), "v")
    synk.scatter(v, np.arange(16.0))
    path = tmp_path / "alive"
    path.touch()
    session.run(Fatal(path, 2, kind, when, count))
    for _ in range(3):
        assert session.run(Exchange()) == [[(LONG, {rank}) for rank in range(4)]] * 4
        f()
        synk.all_reduce(v, "sum")
    assert not path.exists() and len(session.healing.deaths) == 1
    check(w, 4, 4)
    expected = np.arange(16.0).reshape(4, 4).sum(axis=0) * 16
    np.testing.assert_array_equal(synk.gather(v, nd_up=1), [expected] * 4)


@pytest.mark.parametrize("standby", [True, False])
@pytest.mark.parametrize("rank", [2, 3])
def test_processes_that_die_while_they_replace_a_rank(rank, standby, tmp_path, caplog):
    forked(heal=3, standby=standby)
    w, x = engine.shared(np.zeros(3), "w"), engine.variable("x", "float64", 1)
    fragile = engine.apply(Fragile(str(tmp_path)), x, dtype="float64", ndim=1)
    f = synk.function([x], (fragile, "gather"), updates=[(w, w + 1)])
    f(np.arange(4.0))
    for i in range(2):
        (tmp_path / str(i)).touch()
    kill(rank)
    with caplog.at_level(logging.WARNING, "synkhronos"):
        np.testing.assert_array_equal(f(np.arange(4.0)), np.arange(4.0))
    check(w, 4, 2)
    assert not lacks(caplog.records[0].getMessage(), "in restoration of a replaced rank", "(deaths: 3 of at most 3)")


class Slow(Command):
    """Wait at a gate on one rank, without a barrier."""

    title = "slow"

    def __init__(self, rank, gate):
        self.rank, self.gate = rank, gate

    def run(self, context):
        if context.rank == self.rank:
            self.gate.wait()
        return context.rank


@pytest.mark.parametrize("heal", [0, 1])
def test_a_leader_that_dies_after_its_own_answer(heal, tmp_path):
    """Another rank of its host is still computing, and can no longer answer through it."""
    session, gate = forked(heal=heal), Gate(tmp_path / "gate")
    counting()

    def act():
        gate.until_reached()
        until(lambda: session.channel.has_answered(2, session._number))
        end(2)
        gate.open()

    helper = threading.Thread(target=act)
    helper.start()
    try:
        if heal:
            assert session.run(Slow(3, gate)) == [0, 1, 2, 3]
            assert len(session.healing.deaths) == 1
        else:
            with reports(synk.WorkerDied, "SIGKILL", rank=2):
                session.run(Slow(3, gate))
    finally:
        gate.open()
        helper.join()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_rank_that_dies_while_the_program_fetches_its_results(rank):
    """The results are in memory that outlives the rank, so the command is not repeated."""
    session = forked()
    w, _ = counting()
    assert session.run(Handles(lambda: end(rank))) == [0, 1, 2, 3]
    assert not session.healing.deaths
    check(w, 4, 1)
    assert len(session.healing.deaths) == 1


class CutLink(Command):
    """Shut down the link of a leader, once, and wait at a barrier."""

    title = "cut link"

    def __init__(self, path, rank):
        self.path, self.rank = path, rank

    def run(self, context):
        if context.rank == self.rank and self.path.exists():
            self.path.unlink()
            context.leading._link._socket.shutdown(socket.SHUT_RDWR)
        context.barrier.wait()


@pytest.mark.parametrize("lost_by", ["the master", "the leader"])
def test_a_lost_link_is_replaced(lost_by, tmp_path):
    session = forked()
    w, f = counting()
    if lost_by == "the master":
        (link,) = session.context.leading._links.values()
        link._socket.shutdown(socket.SHUT_RDWR)
        f()
    else:
        (tmp_path / "link").touch()
        session.run(CutLink(tmp_path / "link", 2))
    check(w, 4, 1 + (lost_by == "the master"))
    assert not lacks(session.healing.deaths[0], "rank 2", "exit code")


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_rank_that_is_stuck(rank, clock):
    """Other ranks of its host wait, even if it is their leader and does not forward their messages."""
    session = forked(timeout=1.5)
    w, f = counting()
    stuck = psutil.Process(pid_of(rank))
    stuck.suspend()
    missing = [2, 3] if rank == 2 else [rank]
    clock.when(lambda: stuck.status() == "stopped" and session._missing() == missing, lambda: clock.advance(1.6))
    f()
    assert not stuck.is_running() and len(session.healing.deaths) == 1
    check(w, 4, 2)


@pytest.fixture
def whole():
    """Start all hosts again after a test that has lost one of them."""
    yield
    synk.close()
    PROGRAM.shut_down()


def test_a_lost_host_ends_the_session(whole):
    session = forked(heal=9)
    _, f = counting()
    server, _ = PROGRAM.all_hosts()[1].processes
    os.kill(server, signal.SIGKILL)
    with pytest.raises(synk.WorkerDied) as caught:
        for _ in range(100):
            f()
    assert not lacks(str(caught.value), "on host host1", "lost")
    assert not lacks(str(caught.value.__notes__), "host host1 is lost") and session.closed


def test_the_keeper_of_another_host_is_killed(whole):
    session = forked(heal=9)
    _, f = counting()
    os.kill(PROGRAM.all_hosts()[1].processes[1], signal.SIGKILL)
    with pytest.raises(synk.WorkerDied) as caught:
        for _ in range(10000):
            f()
    assert not lacks(str(caught.value), "keeper", "ended", "on host host1")
    assert not lacks(str(caught.value.__cause__), "keeper process", "signal 9")
    assert session.closed
    over_hosts((2, 2))


@pytest.mark.thorough
def test_kills_at_any_time_on_all_hosts_end_like_the_undisturbed_training():
    expected = undisturbed((2, 2), ROUNDS)
    session = forked(heal=1000)
    hosts = PROGRAM.all_hosts()[1:2]
    with Terror(session.others, 40, hosts=hosts) as terror:
        found = flat(training(ROUNDS, lambda: time.sleep(0.01)))
    assert found == expected
    assert 0 < len(session.healing.deaths) <= terror.kills


@pytest.mark.parametrize("heal", [0, 1])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_death_in_fork_before_the_host_has_connected(rank, heal, monkeypatch, caplog):
    begin = Bridge.open

    def open_and_kill(self, *arguments):
        monkeypatch.setattr(Bridge, "open", begin)
        pids = begin(self, *arguments)
        os.kill(pids[rank], signal.SIGKILL)
        return pids

    monkeypatch.setattr(Bridge, "open", open_and_kill)
    if not heal:
        with reports(synk.WorkerDied, "on host host1", "SIGKILL", rank=rank):
            forked(heal=0)
    else:
        with caplog.at_level(logging.WARNING, "synkhronos"):
            session = forked(heal=1)
        assert not lacks(caplog.records[0].getMessage(), f"rank {rank}", "SIGKILL")
        assert len(session.healing.deaths) == 1
        check(counting()[0], 4, 1)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_close_after_a_death(rank):
    session = forked()
    counting()
    pids = [pid_of(each) for each in session.others]
    end(rank)
    synk.close()
    assert session.closed and not any(map(psutil.pid_exists, pids))


def files_of(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_replacements_leave_no_open_files():
    """A process may have the file of its last answer open for a moment after that answer has arrived."""
    session = forked(heal=100)
    w, f = counting()
    processes = [os.getpid(), PROGRAM.keeper_pid, PROGRAM._bridge.pid, *PROGRAM.all_hosts()[1].processes]
    for i in range(6):
        for rank in session.others:
            end(rank)
            f()
        if i == 2:
            gc.collect()
            before = list(map(files_of, processes))
    gc.collect()
    until(lambda: all(files_of(pid) <= n for pid, n in zip(processes, before)))
    check(w, 4, 1 + 6 * 3)


def test_constant_data_and_rows_of_data(tmp_path):
    """A replaced rank fetches the program's data again."""
    forked(heal=100)
    x, w = engine.variable("x", "float64", 2), engine.shared(np.zeros(2), "w")
    f = synk.function([x], (x, "gather"), updates=[(w, w + engine.sum(x))], exact=False)
    rows = np.arange(4000.0).reshape(2000, 2)
    np.save(tmp_path / "rows.npy", rows)
    for data in (synk.data(rows, constant=True), synk.data(rows), synk.data(str(tmp_path / "rows.npy"))):
        for rank in (None, 1, 2, 3):
            if rank:
                kill(rank)
            batch = np.random.RandomState(rank).permutation(2000)[:100]
            np.testing.assert_array_equal(f(data, batch=batch), rows[batch])
