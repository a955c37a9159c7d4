"""Copies between control blocks and connections by the bridge, deputies and stand-ins, without real peers.

Modules: `bridge`, `deputy`, `host_memory`, `messages`, `requests`, `stand_in`, `synkhronos.memory.ranges`.
"""

import pickle
import select
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import reports

from synkhronos.cluster import copying, stand_in, wire
from synkhronos.cluster.bridge import _Bridge
from synkhronos.cluster.bulk_transfers import BulkTransfers
from synkhronos.cluster.copying import LOOK_AGAIN_S, LOOK_EVERY_S
from synkhronos.cluster.deputy import Deputy
from synkhronos.cluster.host_memory import HostMemory
from synkhronos.cluster.loop import EventLoop
from synkhronos.cluster.messages import CommandAborted, FetchMemory, FinishReduction, RanksEnded, Reply, StepCounts
from synkhronos.cluster.operation import Ticket
from synkhronos.cluster.requests import Requests
from synkhronos.cluster.stand_in import StandIn
from synkhronos.errors import SynkhronosError
from synkhronos.memory.handles import Handle
from synkhronos.memory.memfd import nameless_file
from synkhronos.memory.ranges import Ranges
from synkhronos.reductions import ReduceOp
from synkhronos.runtime.exit_status import LOST, WAITS
from synkhronos.sync.barrier import BARRIERS_PER_COMMAND
from synkhronos.sync.block_over_hosts import BlockOverHosts
from synkhronos.sync.control_block import ABORTED, COMMAND_NUMBER, DECIDED, LET_GO
from synkhronos.sync.event_fd import EventFd
from synkhronos.sync.fetching import HostReduction
from synkhronos.sync.hosts import Hosts


class Line:
    """Connection that records the messages sent."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)


class Courier:
    """Courier that records the tickets of its operations, which end when a test finishes them."""

    host, hosts, last_tag, error = 0, 2, 32767, None

    def __init__(self):
        self.tickets, self.reduced = [], []

    def send(self, host, number, buffers, done):
        self.tickets.append(Ticket(done))
        return self.tickets[-1]

    receive = send

    def all_reduce(self, number, reduction, done, is_abandoned):
        self.reduced.append(reduction)
        self.tickets.append(Ticket(done, is_abandoned))
        return self.tickets[-1]


def bulk():
    return BulkTransfers(Courier())


@pytest.fixture
def make():
    """Return a function that makes the process of a host; everything is closed after the test."""
    made = []

    def make(counts, own=0, carrier=None):
        names = tuple(f"host{i}" for i in range(len(counts)))
        places = None if carrier is None else tuple(range(len(counts)))
        hosts, loop = Hosts.of_counts(names, counts, own, places), EventLoop()
        block = BlockOverHosts(hosts)
        shadows = {rank: nameless_file("shadow", 1 << 20) for rank in hosts.far}
        if own:
            launcher = SimpleNamespace(outputs=lambda: {rank: () for rank in hosts.near}, is_alive=lambda: True)
            process = Deputy(Requests(hosts, block, shadows, [Line()] * len(counts), carrier), loop, launcher)
            process._printed = {(rank, i): 0 for rank in hosts.near for i in range(2)}
            process._forward = lambda: None
        else:
            lines = [None, *[Line() for _ in counts[1:]]]
            process = StandIn(Requests(hosts, block, shadows, lines, carrier), loop, [])
        made.append(block)
        return process

    yield make
    for block in made:
        block.close()


def ask(process, rank, number, kind, *request, command=1, says=None):
    """Write a rank's request into its slot; with `says`, the slot already contains the request of this number."""
    block = process.block
    payload = pickle.dumps((number if says is None else says, command * BARRIERS_PER_COMMAND, kind, *request))
    block.fetch_length[rank] = len(payload)
    block.fetch_slots[rank][: len(payload)] = payload
    block.fetch_asked[rank] = number


def wanted(rank, nbytes):
    """Return a request for the first bytes of a rank's memory."""
    return [tuple(Ranges(rank, np.array([0]), np.array([nbytes])))]


def rings(process):
    """Return whether the bell has rung, and reset it."""
    rung = bool(select.select([process.block.bridge], [], [], 0)[0])
    process.block.bridge.drain()
    return rung


def test_ranks_get_no_command_while_an_earlier_one_may_still_write(make):
    """Their leader waits for a word of the control block: see tests/sync/test_leading.py."""
    carrier = bulk()
    process = make((1, 1), own=1, carrier=carrier)
    ask(process, 1, 1, "fetch", wanted(0, 1 << 18))
    process.look(False)
    process.requests.look()
    (ticket,) = carrier.courier.tickets
    assert not ticket.is_abandoned
    process.receive(CommandAborted(1, 0, 0))
    process.receive(CommandAborted(2, 0, 0))
    process.look(True)
    words, lead = process.block.words, process.block.lead
    assert (words[ABORTED], words[LET_GO]) == (2, 0) and not rings(process) and ticket.is_abandoned
    carrier.courier.error = OSError("MPI has failed")  # which does not stop other hosts
    process.look(False)
    assert words[LET_GO] == 0
    lead.drain()  # the abort woke the leader
    ticket.finish()
    assert rings(process) and not process.block.fetch_done[1]
    process.look(False)
    assert words[LET_GO] == 2 and select.select([lead], [], [], 0)[0]


def test_ranks_give_up_when_they_know_what_was_decided_before(make):
    process = make((1, 2), own=1)
    words, decided = process.block.words, BARRIERS_PER_COMMAND + 3
    process.receive(CommandAborted(1, decided, 0))
    assert words[ABORTED] == 0 and process.keep_time() <= LOOK_AGAIN_S
    words[DECIDED] = decided  # the leader learns this by another route
    assert process.look(False) is False
    assert words[ABORTED] == 1 and process.block.releases[2].try_acquire()


def test_other_hosts_are_told_of_a_command_given_up_and_of_what_was_decided_in_it(make):
    process = make((1, 1, 1))
    process.block.words[DECIDED], process.block.words[ABORTED] = BARRIERS_PER_COMMAND + 2, 1
    process.look(False)
    process.look(True)
    assert [line.sent for line in process.requests.lines[1:]] == [[CommandAborted(1, BARRIERS_PER_COMMAND + 2, 0)]] * 2
    assert {type(message) for line in process.requests.lines[1:] for message in line.sent} == {CommandAborted}


def test_a_lost_host_does_not_hide_an_abort_from_the_others(make):
    process = make((1, 1, 1))

    def is_lost(message):
        raise ConnectionError

    process.requests.lines[1].send = is_lost
    process.block.words[ABORTED] = 1
    process.look(False)
    assert process.requests.lines[2].sent == [CommandAborted(1, 0, 0)]


def test_bells_do_not_keep_a_process_from_looking_at_the_rest(make, monkeypatch):
    process = make((1, 1), own=1)
    looks, now = [], [100.0]
    process.look = looks.append
    monkeypatch.setattr(copying.time, "monotonic", lambda: now[0])
    for _ in range(10):
        process._on_bell()
        now[0] += 0.34 * LOOK_EVERY_S
    assert looks == [True, False, False] * 3 + [True]


def test_nothing_small_is_asked_for_while_the_courier_may_still_write(make):
    carrier = bulk()
    process = make((1, 1), carrier=carrier)
    line = process.requests.lines[1]
    ask(process, 0, 1, "fetch", wanted(1, 1 << 18))
    process.requests.look()
    process.block.words[ABORTED] = 1
    ask(process, 0, 2, "fetch", wanted(1, 1 << 10), command=2)
    process.requests.look()  # not yet, because the abort comes first
    process.look(False)
    process.requests.look()
    assert [type(message) for message in line.sent] == [FetchMemory, CommandAborted]
    carrier.courier.tickets[0].finish()
    assert rings(process)
    process.requests.look()
    assert [type(message) for message in line.sent] == [FetchMemory, CommandAborted, FetchMemory]


def parts_of(*ranks):
    """Return a reduction over the hosts 0 and 1 of arrays of these ranks: first the values, then the results."""
    partial, result = [Handle(rank, 64, (100,), None, np.dtype("float32")) for rank in ranks]
    return [HostReduction(partial, result, ReduceOp("sum"), None, (0, 1), (0, 1))]


def test_hosts_take_part_in_reductions_that_only_others_have_begun(make):
    """The first host has begun one before an abort, the second has not; both continue with the same number."""
    first, second = make((1, 1), carrier=bulk()), make((1, 1), own=1, carrier=bulk())
    ask(first, 0, 1, "reduce", parts_of(1, 1), False)
    first.requests.look()
    (ticket,) = first.requests.bulk.courier.tickets
    first.block.words[ABORTED] = 1
    first.look(False)
    aborted, finish = first.requests.lines[1].sent
    assert aborted == CommandAborted(1, 0, first.requests.bulk.reductions) and ticket.is_abandoned
    assert finish == FinishReduction(1, 0, parts_of(1, 1)) and first.requests.is_draining
    for message in (aborted, finish, finish):  # the last is from a third host
        second.receive(message)
    (joined,) = second.requests.bulk.courier.tickets
    assert joined.is_abandoned and second.requests.bulk.courier.reduced[0].result.nbytes == 400
    assert second.requests.bulk.reductions == first.requests.bulk.reductions > 2
    joined.finish()
    ticket.finish()
    assert rings(first) and rings(second) and not first.requests.is_draining
    assert not first.block.fetch_done[0]  # the result is dropped


def test_a_host_does_not_begin_a_reduction_twice(make):
    process = make((1, 1), own=1, carrier=bulk())
    ask(process, 1, 1, "reduce", parts_of(0, 0), False)
    process.requests.look()
    for message in (CommandAborted(1, 0, 4), FinishReduction(1, 0, parts_of(0, 0))):
        process.receive(message)
    assert len(process.requests.bulk.courier.tickets) == 1


def test_ranks_do_not_hear_of_what_another_host_has_given_up(make):
    """The abort is on its way; until then, they wait."""
    process = make((1, 1), carrier=bulk())
    ask(process, 0, 1, "reduce", parts_of(1, 1), False)
    process.requests.look()
    (ticket,) = process.requests.bulk.courier.tickets
    ticket.is_abandoned = True
    ticket.finish()
    assert process.block.fetch_done[0] == 0
    process.block.words[ABORTED] = 1
    process.look(False)
    assert process.block.fetch_done[0] == 0 and not process.requests.is_draining


def test_data_of_aborted_commands_is_not_sent(make):
    process = make((1, 1), own=1, carrier=bulk())
    process.requests.pools.add(1, fd := nameless_file("pool", 1 << 20))
    process.requests.memory[1] = HostMemory(fd)
    ranges = [1, np.array([0]), np.array([1 << 18])]
    process.receive(FetchMemory(1, 0, 1, 2 * BARRIERS_PER_COMMAND, 5, *ranges))
    process.receive(CommandAborted(2, 0, 0))
    process.receive(FetchMemory(1, 0, 2, 2 * BARRIERS_PER_COMMAND + 1, 7, *ranges))
    process.receive(FetchMemory(1, 0, 3, 3 * BARRIERS_PER_COMMAND, 9, *ranges))
    assert [ticket.is_abandoned for ticket in process.requests.bulk.courier.tickets] == [True, True, False]


def test_a_lost_host_is_not_hidden_by_what_follows_from_it(make, monkeypatch):
    """MPI then fails on all hosts, often earlier. The limit ends while this process pauses."""
    monkeypatch.setattr(stand_in, "LOSS_TIMEOUT_S", 0.0)
    process = make((1, 1, 1), carrier=bulk())
    process.receive(RanksEnded({1: (LOST, 0, b"MPI failed")}))
    process.requests.bulk.courier.error = ZeroDivisionError("planted")
    process._on_bell()
    cable = EventFd()
    process.loop.watch(cable, lambda: process.lose(2, "cut"))
    cable.release()
    assert list(process.block.ended) == [0, 0, 0]
    process.loop.turn(30)
    process._on_bell()
    process.loop.turn(0)
    assert list(process.block.ended) == [0, 0, 1]
    process.receive(RanksEnded({1: (3, 0, b"")}))
    assert (process.block.ended[1], process.block.status[1]) == (1, 3)


@pytest.mark.parametrize("own", [0, 1])
def test_an_error_of_the_mpi_thread_is_reported(make, monkeypatch, own):
    """All ranks of the other host, or of this one, count as lost, with the cause."""
    monkeypatch.setattr(stand_in, "LOSS_TIMEOUT_S", 0.0)
    process = make((1, 1), own=own, carrier=bulk())
    process.requests.bulk.courier.error = ZeroDivisionError("planted")
    process._on_bell()
    process._on_bell()
    process.loop.turn(0)
    if own:
        ((ranks,),) = [message for message in process.line.sent if isinstance(message, RanksEnded)]
        (status, _, reason) = ranks[1]
    else:
        status, reason = process.block.status[1], bytes(process.block.fatal_error[1])
    assert status == LOST and b"ZeroDivisionError: planted" in reason and b"failed" in reason


def test_a_failure_after_the_loss_of_the_first_host_is_not_raised(make):
    """The serving process then ends its ranks (seed 720722 of the simulation)."""
    process = make((1, 1), own=1, carrier=bulk())
    process.requests.bulk.courier.error = ZeroDivisionError("planted")

    def is_lost(message):
        raise ConnectionError

    process.line.send = is_lost
    process.end()
    assert process.ended


def test_ranks_that_wait_for_others_are_not_late(make):
    """After an abort, they no longer wait for the answers to their requests."""
    process = make((1, 2), own=1, carrier=bulk())
    process.launcher.inspect = lambda ranks, seconds: dict.fromkeys(ranks, "here")
    process.block.words[COMMAND_NUMBER] = 1
    ask(process, 1, 1, "reduce", parts_of(0, 0), False)
    process.requests.look()
    assert process.inspect([1, 2], 0.0) == {1: WAITS, 2: "here"}
    process.receive(CommandAborted(1, 0, 0))
    process.block.finished[2] = 1
    assert process.inspect([1, 2], 0.0) == {1: "here", 2: WAITS}


def test_a_request_is_not_taken_for_the_one_before(make):
    process = make((1, 1))
    line = process.requests.lines[1]
    ask(process, 0, 1, "fetch", wanted(1, 1 << 10), says=2)  # the slot contains the rank's next request
    process.requests.look()
    assert line.sent == []
    process.block.fetch_asked[0] = 2
    process.requests.look()
    process.requests.look()
    assert [type(message) for message in line.sent] == [FetchMemory]


def test_what_a_host_says_of_an_earlier_session_is_not_of_this_one():
    said = []
    bridge = _Bridge.__new__(_Bridge)
    bridge._asked, bridge._behind, bridge.answers = 4, {1, 2}, deque()
    bridge.stand_in = SimpleNamespace(receive=said.append)
    bridge._listen(1, SimpleNamespace(messages=lambda: [StepCounts(1), Reply(3, "killed"), StepCounts(2)]))
    assert said == []
    bridge._listen(1, SimpleNamespace(messages=lambda: [Reply(4, "begun"), StepCounts(3)]))
    bridge._listen(2, SimpleNamespace(messages=lambda: [StepCounts(4)]))
    assert said == [StepCounts(3)]


def test_hosts_that_could_not_meet_are_not_told_again(monkeypatch):
    told = []

    def tell(meeting):
        told.append(meeting)
        return 1

    def gone(*arguments):
        raise EOFError("the connection was closed")

    monkeypatch.setattr(
        wire, "host", lambda meets, tell: [meets.close(), tell(meets), SimpleNamespace(receive=gone)][2:]
    )
    bridge = _Bridge(None, 0, SimpleNamespace(send_address=tell))
    for _ in range(2):
        with reports(SynkhronosError, "EOFError: the connection was closed"):
            bridge.hosts(())
    assert len(told) == 1
