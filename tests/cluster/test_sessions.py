"""Sessions over several hosts, simulated by processes of this machine: remote failures are reported, and nothing hangs.

Modules: `bridge`, `facts`, `launcher`, `serve`, `spec`, `world`, `synkhronos.sync.fetching`.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from clocks import Clock
from gates import Gate, until
from refusals import lacks, refuses, reports
from simulated_hosts import MEETING, StartedWorld
from worlds import Handles, Meeting, World

import synkhronos as synk
from synkhronos.cluster import launcher as hosts_launcher
from synkhronos.cluster import world as cluster_world
from synkhronos.cluster.bridge import LOST, _Bridge
from synkhronos.cluster.environment import ProcessPlace
from synkhronos.cluster.facts import HostFacts, differences
from synkhronos.errors import SynkhronosError, WorkerDied, WorkerError, WorkerTimeout
from synkhronos.kernels.reduce import Portion
from synkhronos.program.program import PROGRAM
from synkhronos.reductions import ReduceOp
from synkhronos.runtime import session as session_module
from synkhronos.runtime.command import Command
from synkhronos.runtime.context import RankContext
from synkhronos.sync import rendezvous
from synkhronos.sync.barrier import BARRIERS_PER_COMMAND
from synkhronos.sync.control_block import COMMAND_NUMBER, DEATHS, DECIDED
from synkhronos.sync.hosts import Hosts
from synkhronos.testing import numpy_engine as engine
from synkhronos.transports.strategy import Reduction

pytestmark = pytest.mark.slow

COMBINE = Portion.combine


class Act(Command):
    """Call a function on one rank; afterwards, all ranks pass a barrier."""

    title = "act"

    def __init__(self, rank, what, *arguments):
        self.rank, self.what, self.arguments = rank, what, arguments

    def run(self, context):
        if context.rank == self.rank:
            self.what(*self.arguments)
        context.barrier.wait()
        return context.rank, os.getpid(), os.environ.get(MEETING)


class Long(Command):
    """Command whose arguments, notices and answers are longer than any slot."""

    title = "long"

    def __init__(self, values):
        self.values = values

    def run(self, context):
        found = context.transport.exchange(b"x" * 40_000)
        return [len(notice) for notice in found], int(self.values[-1]), np.arange(30_000) + context.rank


class ActsOnLink(Command):
    """Close a leader's link, and wait at a barrier."""

    title = "acts on link"

    def __init__(self, rank):
        self.rank = rank

    def run(self, context):
        if context.rank == self.rank:
            (link,) = context.leading._links.values()
            link._socket.shutdown(socket.SHUT_RDWR)
        context.barrier.wait()


class TellsLate(Command):
    """Make a leader forward every message with a delay of 0.2 s from now on."""

    title = "tells late"

    def run(self, context):
        if context.rank == 2:
            tell = context.leading.forward

            def late(*arguments):
                time.sleep(0.2)
                tell(*arguments)

            context.leading.forward = late


class Exchanges(Command):
    """Promise an answer for the case of a commit, and exchange long notices at the last barrier."""

    title = "exchanges"

    def __init__(self, payload=b""):
        self.payload = payload

    def run(self, context):
        context.transaction.promise(None)
        context.transport.exchange(b"x" * 1_000_000)


class Asked(Command):
    """Return the number of a rank's requests for memory of other hosts."""

    title = "asked"

    def run(self, context):
        return int(context.barrier.block.fetch_asked[context.rank])


class FailsAfterMeeting(Command):
    """Reduce a variable on all ranks; one rank fails after it has received the others' values."""

    title = "fails after meeting"

    def __init__(self, rank, number):
        self.rank, self.number = rank, number

    def run(self, context):
        keys, arrays = context.bind([self.number])
        results = context.transport.all_reduce(keys, arrays, Reduction(ReduceOp("sum")), str)
        if context.rank == self.rank:
            raise KeyError("after all have met")
        context.transaction.commit_values(context.entries([self.number]), results)


class Reduces(Command):
    """Make reductions fail on one rank from now on; if `failing` is None, make them succeed again."""

    title = "reduces"

    def __init__(self, failing):
        self.failing = failing

    def run(self, context):
        if context.rank == self.failing:
            Portion.combine = raise_error
        elif self.failing is None:
            Portion.combine = COMBINE


def raise_error(*arguments):
    raise KeyError("while reducing")


def fail():
    raise KeyError("of this rank")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    stand_still()  # until the loss is detected


def print_to(what):
    fd = os.pipe()[1] if what == "pipe" else os.open(__file__, os.O_RDONLY)
    os.dup2(fd, 1)


def stand_still(gate=None):
    if gate is not None:
        gate.reach()
    time.sleep(1000)


def nothing():
    pass


@pytest.fixture
def session():
    """Return a session with two ranks on each of two hosts."""
    yield opened()
    synk.close()


@pytest.fixture
def world():
    """Return a world with two ranks on each of two hosts."""
    yield World("2 hosts", 4, 1)
    synk.close()


def opened(**options):
    Meeting.begin(2)
    return PROGRAM.open(4, 0, hosts=Hosts.of_counts(("here", "there"), (2, 2)), **options)


@pytest.fixture(autouse=True)
def whole():
    """Shut down the hosts after a test that lost one of them, so that the next test starts all of them again."""
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
    with reports(WorkerError, "on host there", "KeyError: 'of this rank'", rank=3, command="act") as caught:
        session.run(Act(3, fail))
    assert "in fail" in str(caught.value.__cause__)
    del caught
    assert len(everywhere(session)) == 4


def test_a_death_elsewhere(session):
    pid = everywhere(session)[2][1]
    with reports(WorkerDied, "on host there", "SIGKILL", rank=2, pid=pid, command="act") as caught:
        session.run(Act(2, die))
    assert (caught.value.rank, caught.value.pid, caught.value.exitcode) == (2, pid, -signal.SIGKILL)
    del caught
    assert not PROGRAM.session.block.words[COMMAND_NUMBER] < 0
    again = opened()
    assert len(everywhere(again)) == 4
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("when", ["before a command", "in a command"])
def test_a_host_that_is_lost(session, when):
    ranks = [pid for _, pid, _ in everywhere(session)]
    deputy, keeper = PROGRAM.all_hosts()[1].processes
    if when == "before a command":
        os.kill(deputy, signal.SIGKILL)
        until(lambda: session.block.words[DEATHS])
    with reports(WorkerDied, "on host there", "lost") as caught:
        session.run(Act(1, kill, deputy))
    assert not lacks(str(caught.value.__cause__), "host1", "lost")
    del caught
    until(lambda: not any(map(psutil.pid_exists, [*ranks[1:], keeper])))
    assert [host.name for host in PROGRAM.all_hosts()][1:] == ["host2"]
    left = PROGRAM.open(3, 0, hosts=Hosts.of_counts(("here", "left"), (2, 1)))  # with the remaining hosts
    assert len(everywhere(left)) == 3


@pytest.mark.parametrize("what", ["rank", "host"])
def test_an_end_while_the_master_fetches_results(session, what):
    """If a host is lost after all ranks have answered, the session fails; a dead rank's results may still arrive."""
    assert session.run(Handles(nothing)) == [0, 1, 2, 3]
    pid = everywhere(session)[3][1] if what == "rank" else PROGRAM.all_hosts()[1].processes[0]

    def end():
        os.kill(pid, signal.SIGKILL)
        until(lambda: session.block.words[DEATHS])

    found = None
    try:
        found = session.run(Handles(end))
    except WorkerDied as error:
        assert (
            not lacks(str(error), "SIGKILL" if what == "rank" else "lost", "on host there")
            and error.command == "handles"
        )
        assert session.closed
    assert found in ([None, [0, 1, 2, 3]] if what == "rank" else [None])
    with pytest.raises((WorkerDied, synk.StateError)):
        everywhere(session)


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_a_host_that_is_lost_before_its_ranks_are_started(whole, seconds):
    Meeting.begin(2)
    deputy, _ = PROGRAM.all_hosts()[1].processes
    os.kill(deputy, signal.SIGKILL)
    time.sleep(seconds)  # its loss may or may not have been detected; the result is the same
    with reports(SynkhronosError, "host1", "lost"):
        PROGRAM.open(4, 0, hosts=Hosts.of_counts(("here", "there"), (2, 2)))
    assert PROGRAM.session is None
    assert [host.name for host in PROGRAM.all_hosts()][1:] == ["host2"]


def test_the_bridge_is_killed(session):
    ranks = [pid for _, pid, _ in everywhere(session)]
    deputy, keeper = PROGRAM.all_hosts()[1].processes
    bridge = PROGRAM._bridge.pid
    with reports(SynkhronosError, "bridge", f"pid {bridge}", "signal 9"):
        session.run(Act(1, kill, bridge))
    until(lambda: not any(map(psutil.pid_exists, [*ranks[1:], keeper, deputy])))
    PROGRAM._bridge = None


@pytest.fixture
def clock(monkeypatch):
    """Return the clock that sessions use to detect late commands."""
    clock = Clock()
    monkeypatch.setattr(session_module, "time", clock)
    monkeypatch.setattr(session_module, "STACKS_TIMEOUT_S", 30.0)
    return clock


def test_a_rank_that_stands_still_elsewhere(whole, clock, tmp_path):
    session, gate = opened(), Gate(tmp_path / "gate")
    clock.when(gate.is_reached, lambda: clock.advance(1.0))
    with reports(WorkerTimeout, "rank 3", "in stand_still"):
        session.run(Act(3, stand_still, gate), timeout=0.5)
    del session


@pytest.mark.parametrize("end", ["the master's", "the leader's"])
def test_a_link_that_is_lost_while_its_host_is_not(session, end):
    """If a connection is lost, as by a firewall, a command fails although the host still runs."""
    everywhere(session)
    with reports(WorkerDied, "on host there", rank=2) as caught:
        if end == "the master's":
            (link,) = session.context.leading._links.values()
            link._socket.shutdown(socket.SHUT_RDWR)
            everywhere(session)
        else:
            session.run(ActsOnLink(2))
    assert not lacks(str(caught.value.__cause__), "connection", "lost")
    del caught
    assert len(everywhere(opened())) == 4


def test_ranks_whose_ends_are_told_before_their_answers_have_stopped(session):
    session.run(TellsLate())
    synk.close()
    assert list(session.block.ended[1:]) == [1, 1, 1] and list(session.block.status[1:]) == [0, 0, 0]


@pytest.mark.parametrize("what", ["command", "notices", "decided"])
def test_a_host_that_takes_long_to_take_what_it_is_told(session, what):
    """Commands succeed if one host receives a message late and others have already finished or advanced."""
    leader = everywhere(session)[2][1]
    goes_on = []

    def go_on():
        goes_on.append(leader)
        os.kill(leader, signal.SIGCONT)

    def stop():
        os.kill(leader, signal.SIGSTOP)
        threading.Timer(0.5, go_on).start()

    (link,) = session.context.leading._links.values()
    send = link.send

    def stops(message, watch):
        if message[0] == what:
            stop()
            if what == "command":  # like a late rank at the end of the previous command
                session.block.commands[1].release()
        send(message, watch)

    link.send = stops
    try:
        session.run(Exchanges(b"x" * 3_000_000 * (what == "command")))
    finally:
        del link.send
    until(lambda: goes_on)
    assert len(everywhere(session)) == 4


def test_long_messages_of_all_kinds(session):
    """Commands, ranks' notices at a barrier, and answers may be longer than their slots."""
    sizes = session.run(Long(np.arange(50_000)))
    assert [(size, last) for size, last, _ in sizes] == [([40_000] * 4, 49_999)] * 4
    assert all(np.array_equal(answer, np.arange(30_000) + rank) for rank, (_, _, answer) in enumerate(sizes))


def test_what_ranks_print_elsewhere(session, capfd):
    session.run(Act(2, print, "said there"))
    printed = []

    def has_come():
        everywhere(session)
        printed.append(capfd.readouterr().out)
        return "said there" in "".join(printed)

    until(has_come)
    assert "[rank 2] said there\n" in "".join(printed)


SMALL = {
    "all_reduce": lambda v: synk.all_reduce(v, "sum"),
    "all_reduce of groups": lambda v: synk.all_reduce(v, groups=[[0, 2], [1, 3]]),
    "all_gather": synk.all_gather,
    "broadcast": synk.broadcast,
    "reduce": synk.reduce,
    "gather": synk.gather,
}


@pytest.mark.parametrize("what", ["pipe", "file"])
def test_a_rank_elsewhere_whose_output_goes_somewhere_else(session, what, monkeypatch):
    """Output that a rank redirects need not arrive, and a pipe, which has no length, is no error."""
    monkeypatch.setattr(hosts_launcher, "PRINTS_TIMEOUT_S", 1000.0)
    session.run(Act(3, print_to, what))
    assert len(everywhere(session)) == 4


@pytest.mark.parametrize("name", SMALL)
def test_small_values_need_not_be_fetched(world, name):
    small, medium, large = world.shareds([np.zeros(n, "float32") for n in (1024, 8000, 20_000)])
    for variable, n, is_fetched in ((small, 1024, False), (medium, 8000, False), (large, 20_000, True)):
        for i in range(3):
            values = [np.full(n, 10.0 * i + rank, "float32") for rank in range(4)]
            world.set_values(variable, values)
            before = sum(world.session.run(Asked()))
            SMALL[name](variable)
            assert (sum(world.session.run(Asked())) > before) == is_fetched


@pytest.mark.parametrize("counts", [(1, 1), (2, 1), (1, 2, 1)])
@pytest.mark.parametrize("nbytes", [1 << 13, (1 << 13) + 8, (1 << 16) - 8, 1 << 16, (1 << 16) + 8])
def test_values_of_all_sizes(counts, nbytes):
    """The results do not depend on how values travel, and no rank sees those of an earlier collective."""
    Meeting.begin(len(counts))
    size = sum(counts)
    with contextlib.ExitStack() as ends:
        ends.callback(synk.close)
        PROGRAM.open(size, 0, hosts=Hosts.of_counts(tuple("abc"[: len(counts)]), counts))
        v, w = (engine.shared(np.zeros(nbytes // 8), name) for name in "vw")
        x = engine.variable("x", "float64", 1)
        f = synk.function(
            [x], (engine.apply(np.add, v, engine.sum(x)), "avg"), updates=[(w, synk.ops.all_reduce(v, "sum"))]
        )
        for i in range(4):
            values = np.random.RandomState(i).randint(-99, 99, (size, nbytes // 8)).astype(float)
            for rank in range(size):
                synk.set_value(v, values[rank], rank=rank)
            np.testing.assert_array_equal(synk.gather(v), values)
            np.testing.assert_array_equal(synk.reduce(v, "max", in_place=False), values.max(axis=0))
            mean = f(np.ones(2 * size))
            np.testing.assert_allclose(mean, values.mean(axis=0) + 2, rtol=1e-12)
            assert_all(w, [values.sum(axis=0)] * size)
            pair = [size - 2, size - 1]
            synk.all_reduce(v, groups=[*([rank] for rank in range(size - 2)), pair])
            assert_all(v, [*values[: size - 2], *[values[-2:].mean(axis=0)] * 2])
            synk.all_reduce(v, "sum")
            assert_all(v, [values.sum(axis=0)] * size)
            synk.broadcast(w, values[0])
            assert_all(w, [values[0]] * size)


def assert_all(variable, expected):
    """Check the values of a variable on all ranks."""
    for rank, value in enumerate(expected):
        np.testing.assert_array_equal(synk.get_value(variable, rank=rank), value)


def test_answers_that_are_known_at_the_last_barrier_do_not_travel_again(world):
    """In a collective, and in a call in slices that commits updates, ranks send no answers after the last barrier."""
    (v,) = world.shareds([np.zeros(1)])
    x = engine.variable("x", "float64", 1)
    step = synk.function([x], engine.mean(x), updates=[(v, v + engine.mean(x))])
    step(np.arange(8.0), num_slices=2)
    world.set_values(v, [np.full(1, float(rank)) for rank in range(4)])
    calls = {
        "all_reduce": lambda: synk.all_reduce(v, "sum"),
        "step": lambda: step(np.arange(8.0), num_slices=2),
        "gather": lambda: synk.gather(v),
    }
    block, answered = world.session.block, {}
    for name, call in calls.items():
        call()
        answered[name] = [block.finished[rank] == block.words[COMMAND_NUMBER] for rank in (2, 3)]
    assert answered == {"all_reduce": [False] * 2, "step": [False] * 2, "gather": [True] * 2}
    np.testing.assert_array_equal(synk.gather(v)[:, 0], 6 + np.arange(0.5, 8, 2))


@pytest.mark.parametrize("n, barriers", [(1024, 1), (16_000, 1), (20_000, 2)])
def test_ranks_arrive_once_for_an_all_reduce_of_small_values(world, n, barriers):
    """For small values, the root decides on the commit at the barrier that also delivers the values."""
    (v,) = world.shareds([np.zeros(n, "float32")])
    block = world.session.block
    for i in range(5):
        values = [np.full(n, 10.0 * i + rank, "float32") for rank in range(4)]
        world.set_values(v, values)
        synk.all_reduce(v, "sum")
        first = block.words[COMMAND_NUMBER] * BARRIERS_PER_COMMAND
        assert block.words[DECIDED] == first + 2
        assert [block.arrived[rank] for rank in (0, 2, 3)] == [first + barriers] * 3
        for value in world.values(v):
            np.testing.assert_array_equal(value, np.full(n, 40.0 * i + 6, "float32"))


def test_nothing_has_changed_if_the_root_fails_when_all_small_values_have_come(world):
    (v,) = world.shareds([np.zeros(3)])
    world.set_values(v, [np.full(3, float(rank)) for rank in range(4)])
    try:
        for _ in range(3):
            world.session.run(Reduces(world.session.root))
            with reports(KeyError, "while reducing"):
                synk.all_reduce(v, "sum")
            world.session.run(Reduces(None))
            assert [value.tolist() for value in world.values(v)] == [[rank] * 3 for rank in range(4)]
    finally:
        Portion.combine = COMBINE
    synk.all_reduce(v, "sum")
    assert [value.tolist() for value in world.values(v)] == [[6.0] * 3] * 4


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_fails_where_nothing_can_ends(world, rank):
    (v,) = world.shareds([np.zeros(3)])
    world.set_values(v, [np.full(3, float(rank)) for rank in range(4)])
    world.session.run(Reduces(rank))
    synk.all_reduce(v, "sum")  # the other ranks have the result
    assert v.get_value().tolist() == [6.0] * 3
    with reports(WorkerDied, f"rank {rank}", rank=rank) as caught:
        world.values(v)
    assert "KeyError: 'while reducing'" in str(caught.value.__cause__)
    assert v.get_value().tolist() == [6.0] * 3


GIVEN = {
    "set_value": lambda v, value: synk.set_value(3, v, value),
    "broadcast of values": synk.broadcast,
    "scatter": synk.scatter,
}


@pytest.mark.parametrize("name", GIVEN)
def test_small_values_of_the_program_need_not_be_fetched(world, name):
    small, large = world.shareds([np.zeros((4, 16)), np.zeros((4, 4000))])
    for variable, shape, is_fetched in ((small, (4, 16), False), (large, (4, 4000), True)):
        for i in range(3):
            value = np.random.RandomState(i).randint(-9, 9, shape).astype(float)
            before = sum(world.session.run(Asked()))
            GIVEN[name](variable, value)
            assert (sum(world.session.run(Asked())) > before) == is_fetched
            expected = list(value.reshape(4, 1, -1)) if name == "scatter" else [value] * 4
            for rank in (3,) if name == "set_value" else range(4):
                np.testing.assert_array_equal(world.values(variable)[rank], expected[rank])


def test_small_arguments_need_not_be_fetched(world):
    """Small arrays and indices need no fetch, and are not mistaken for those of other calls, even of failed ones."""
    x, y = engine.variable("x", "float64", 1), engine.variable("y", "float64", 1)
    dot = synk.function([x, y], (engine.apply(positive_product, x, y), "gather"))
    random = np.random.RandomState(5)
    dot(np.ones(8), np.ones(8), batch=[0, 1, 2, 3])
    before = sum(world.session.run(Asked()))
    for i in range(30):
        a, b = random.randint(1, 99, (2, 40)).astype(float)
        batch = random.permutation(40)[:8]
        if i % 3 == 2:
            with reports(WorkerError, "negative"):
                dot(a, np.where(np.arange(40) == batch[7], -1, b), batch=batch)
        np.testing.assert_array_equal(dot(a, b, batch=batch), (a * b)[batch])
    assert sum(world.session.run(Asked())) == before
    large = random.rand(2, 4000)
    np.testing.assert_array_equal(dot(*large), large[0] * large[1])
    assert sum(world.session.run(Asked())) > before


def positive_product(x, y):
    """Return the product; raise an error if `y` contains a negative number."""
    if (y < 0).any():
        raise ValueError("negative")
    return x * y


@pytest.mark.parametrize("n_steps, fetched", [(5, 0), (40, 1)])
def test_the_rows_of_many_steps_travel_with_the_command_or_together(world, n_steps, fetched):
    """Rows of few steps need no fetch, those of many need one; in any case, there is one request for argument space."""
    (total,) = world.shareds([np.zeros(())])
    values = np.arange(2000.0)
    x, data = engine.variable("x", "float64", 1), synk.data(values, constant=True)
    step = synk.function([x], [], updates=[(total, total + engine.apply(np.sum, x))])
    for seed in range(3):
        order = np.random.RandomState(seed)
        batches = [order.permutation(2000)[:200] for _ in range(n_steps)]
        world.set_values(total, [np.zeros(())] * 4)
        before = np.array(world.session.run(Asked()))
        step.steps(data, batches=batches)
        asked = np.array(world.session.run(Asked())) - before
        assert sum(value.item() for value in world.values(total)) == sum(values[batch].sum() for batch in batches)
        if seed:
            assert asked.tolist() == [0, 0, 1 + fetched, 1 + fetched]


def test_small_values_after_a_collective_that_was_given_up(world):
    """Values that came with the notices of a failed collective are not mistaken for the current ones."""
    (v,) = world.shareds([np.zeros(100, "float32")])
    for i in range(20):
        values = np.random.RandomState(i).randint(-9, 9, (4, 100)).astype("float32")
        world.set_values(v, list(values))
        with reports((KeyError, WorkerError), "after all have met"):
            world.session.run(FailsAfterMeeting(i % 4, world._number(v)))
        for rank, value in enumerate(world.values(v)):
            np.testing.assert_array_equal(value, values[rank])
        world.set_values(v, list(values + i))
        synk.all_reduce(v, "sum")
        for value in world.values(v):
            np.testing.assert_array_equal(value, (values + i).sum(axis=0))


def test_all_ranks_count_the_same_after_a_call_without_rows(world):
    (w,) = world.shareds([np.zeros(4000)])
    world.set_values(w, [np.full(4000, 2.0**rank) for rank in range(4)])
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.apply(np.sum, x), "sum"))
    f(np.zeros(0))
    assert f.last_rows == [0, 0, 0, 0]
    synk.all_reduce(w, weights=f)
    for value in world.values(w):
        np.testing.assert_array_equal(value, np.full(4000, 15 / 4))


def test_what_ranks_print_elsewhere_comes_once():
    """Output of remote ranks is printed by the program only, not also by the process that serves their host."""
    program = (
        "import synkhronos as synk; from test_sessions import Act; from worlds import over_hosts\n"
        "session = over_hosts((1, 1))\n"
        "session.run(Act(1, print, 'said there'))\n"
        "synk.close()"
    )
    here = Path(__file__)
    folders = [str(here.parent), str(here.parents[1]), str(here.parents[2])]
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        universal_newlines=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert not done.returncode and done.stdout == "[rank 1] said there\n"


def test_ctrl_c(session, monkeypatch, tmp_path):
    gate, abort = Gate(tmp_path / "gate"), RankContext.abort
    monkeypatch.setattr(session_module, "GRACE_S", 60.0)
    monkeypatch.setattr(RankContext, "abort", lambda context: (abort(context), gate.open())[0])
    user = threading.Thread(target=lambda: (gate.until_reached(), os.kill(os.getpid(), signal.SIGINT)))
    user.start()
    with pytest.raises(KeyboardInterrupt):
        session.run(Act(3, gate.wait))
    user.join()
    assert len(everywhere(session)) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt may occur in a finalizer
def test_ctrl_c_at_any_moment_of_a_collective(world, monkeypatch):
    """After an interrupt, the session continues, and all ranks have the old values or all have the new ones."""
    monkeypatch.setattr(session_module, "GRACE_S", 60.0)
    variables, choices = world.shareds([np.zeros(100), np.zeros(3000)]), random.Random(7)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for i in range(100):
            variable = variables[i % 2]
            old = [np.full(variable.get_value().shape, choices.uniform(-9, 9)) for _ in range(4)]
            world.set_values(variable, old)
            with pytest.raises(KeyboardInterrupt):
                # (repeated, because Python discards interrupts in finalizers)
                signal.setitimer(signal.ITIMER_REAL, choices.uniform(1e-5, 2e-3), 1.0)
                synk.all_reduce(variable)
                synk.all_reduce(variable, "max")
                while True:
                    time.sleep(0.01)
            signal.setitimer(signal.ITIMER_REAL, 0)
            values = world.values(variable)
            if not all(np.array_equal(value, each) for value, each in zip(values, old)):
                np.testing.assert_allclose(values, [np.mean(old, axis=0)] * 4, rtol=1e-12)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_fork_counts_ranks_per_host():
    Meeting.begin(3)
    assert synk.fork(2) == 6
    assert synk.size() == 6
    assert [host.ranks for host in synk.hosts()] == [(0, 1), (2, 3), (4, 5)]
    with refuses(ValueError, "master_rank"):
        synk.close()
        synk.fork(1, master_rank=1)
    cores = [host.cores for host in PROGRAM.all_hosts()]
    assert synk.fork() == sum(cores)
    synk.close()


def test_hosts_that_do_not_go_together():
    here = HostFacts("here", 2, {"Python": "3.11.7", "NumPy": "1.23.5"}, (1,))
    there = HostFacts("there", 2, {"Python": "3.11.7", "NumPy": "2.0.0"}, (1,))
    assert differences([here, here]) == []
    assert differences([here, there]) == ["NumPy is 1.23.5 on here, but 2.0.0 on there"]


def files_of(process):
    """Return the names and sizes of the memory files that a process has open."""
    found = []
    for fd in Path(f"/proc/{process}/fd").iterdir():
        try:
            found.append((os.readlink(fd), os.stat(fd).st_blocks * 512))
        except FileNotFoundError:  # it was closed meanwhile
            pass
    return [(name, nbytes) for name, nbytes in found if "memfd:" in name]


def test_nothing_of_a_session_stays_open_elsewhere():
    counts = []
    for _ in range(3):
        everywhere(opened())
        synk.close()
        counts.append(len(files_of(PROGRAM.all_hosts()[1].processes[0])))
    assert counts[0] == counts[1] == counts[2]


def test_what_ranks_have_printed_elsewhere_takes_no_memory_there(session, capfd):
    for _ in range(20):
        session.run(Act(2, print, "x" * 200_000))
    deputy = PROGRAM.all_hosts()[1].processes[0]
    until(
        lambda: (
            everywhere(session) and max(nbytes for name, nbytes in files_of(deputy) if "stdout" in name) <= 1_000_000
        )
    )
    printed = capfd.readouterr().out.count("x")
    assert printed == 4_000_000


def test_late_answers_of_hosts_are_not_those_of_later_questions():
    bridge = _Bridge.__new__(_Bridge)
    bridge._asked, bridge._processes, bridge.lines, bridge.lost = 0, [1, 2], {}, {}
    late = [(1, 1, "late"), (2, 1, "late"), (1, 2, "new"), (2, LOST, "lost")]
    bridge.answers = deque()
    assert list(bridge._ask("inspect", lambda own: None, 0.0)) == []
    bridge.answers = deque(late)
    assert list(bridge._ask("inspect", lambda own: None, 0.0)) == ["new", "lost"]


@pytest.mark.parametrize("error", ["ArgumentValueError('SYNK_HOSTS_INTERFACE', 'one', 'none')", "KeyError('a bug')"])
def test_a_process_that_cannot_serve_says_why(error):
    program = (
        "from synkhronos.errors import ArgumentValueError; from synkhronos.program.hosts import serve\n"
        "class World:\n"
        f"    def recv_address(self): raise {error}\n"
        "serve(World())"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last in ("synkhronos: SYNK_HOSTS_INTERFACE: expected one, got none", "KeyError: 'a bug'")


def test_an_interface_that_the_first_host_has_not(monkeypatch):
    PROGRAM.shut_down()
    monkeypatch.setenv("SYNK_HOSTS_INTERFACE", "eth77")
    PROGRAM.meet(StartedWorld(["host0", "host1"]))
    try:
        with reports(SynkhronosError, "SYNK_HOSTS_INTERFACE", "'eth77'"):
            synk.fork(1)
    finally:
        PROGRAM.shut_down()


def test_strangers_at_the_door_do_not_delay_fork(monkeypatch):
    """Silent connections are open during all of `fork`, and none of them is ever given up."""
    PROGRAM.shut_down()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("SYNK_HOSTS_INTERFACE", "lo")
    monkeypatch.setenv("SYNK_HOSTS_PORTS", f"{port}-{port + 1}")
    monkeypatch.setattr(rendezvous, "ANSWER_TIMEOUT_S", 1000.0)
    accepted, done = [], threading.Event()

    def come():
        while not done.is_set():
            try:
                accepted.append(socket.create_connection(("127.0.0.1", port)))
            except OSError:  # nobody listens now
                pass
            time.sleep(0.001)

    stranger = threading.Thread(target=come)
    stranger.start()
    PROGRAM.meet(StartedWorld(["host0", "host1"]))
    try:
        for _ in range(2):  # the first time, the other host connects too
            synk.fork(1)
            assert synk.size() == 2
            synk.close()
        assert accepted
    finally:
        done.set()
        stranger.join()
        PROGRAM.shut_down()
        for sock in accepted:
            sock.close()


def test_mpi_says_how_many_hosts_there_are_when_it_has_begun(monkeypatch):
    told = []
    world = cluster_world.World(ProcessPlace(0, None, None, "prterun"))

    def begin():
        world.n = 3
        return SimpleNamespace(bcast=lambda meeting, root: told.append(meeting))

    monkeypatch.setattr(world, "_begin", begin)
    assert world.n == 0 and world.send_address("meeting") == 2 and told == ["meeting"]
