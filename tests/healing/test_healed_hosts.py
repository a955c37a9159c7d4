"""Ranks that die on any of several hosts are replaced there, and programs end with the same bits as without deaths.

Modules: `synkhronos.cluster.launcher`, `synkhronos.runtime.healing`, `synkhronos.runtime.session`.
"""

import logging
import os
import signal

import numpy as np
import psutil
import pytest
from gates import until
from killer import Killer, flat, kill, pid_of
from refusals import lacks
from test_healing import ROUNDS, training
from worlds import over_hosts

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow

#: Length of a notice that does not fit into its slot.
LONG = 40_000


@pytest.fixture(autouse=True)
def closed():
    synk.close()
    yield
    synk.close()


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
    """Exchange long notices at the last barrier, and return their hash."""

    title = "exchange of long notices"

    def run(self, context):
        found = context.transport.exchange(np.full(LONG, context.rank, np.uint8).tobytes())
        return [(len(notice), set(notice)) for notice in found]


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
