"""Ranks that speak for their hosts copy data between control blocks and links; here, all run in one thread.

Modules: `barrier_over_hosts`, `hosts`.
"""

import socket
import threading
import time

import pytest
from refusals import reports

from synkhronos.errors import Aborted, SynkhronosError
from synkhronos.memory import messages
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.pool import Pool
from synkhronos.runtime import prefetch
from synkhronos.runtime.channel import RankEnd
from synkhronos.sync.barrier import BARRIERS_PER_COMMAND, Barrier, turn_of
from synkhronos.sync.barrier_over_hosts import BarrierOverHosts
from synkhronos.sync.block_over_hosts import BlockOverHosts
from synkhronos.sync.control_block import (
    ABORTED,
    ANNOUNCED,
    COMMAND_LENGTH,
    COMMAND_NUMBER,
    DEATHS,
    DECIDED,
    LET_GO,
    STOP_REQUESTED,
)
from synkhronos.sync.host_relay import EARLY_BYTES, LeaderRelay, RootRelay
from synkhronos.sync.hosts import Hosts
from synkhronos.sync.link import Link
from synkhronos.sync.semaphore import WaitPolicy

LONG = 40_000  # bytes; exceeds a slot for answers
FIRST = BARRIERS_PER_COMMAND + 1


class World:
    """Hosts with these numbers of ranks, and their first ranks' relays."""

    def __init__(self, *counts):
        names = tuple(f"host{i}" for i in range(len(counts)))
        self.hosts = [Hosts.of_counts(names, counts, own) for own in range(len(counts))]
        self.blocks = [BlockOverHosts(hosts) for hosts in self.hosts]
        self.pools = [Pool(hosts.near[0]) for hosts in self.hosts]
        self.known = [PoolMap() for _ in counts]
        for known, pool in zip(self.known, self.pools):
            known.add(pool.ident, pool)
        self.keep = []
        pairs = [self.pair() for _ in counts[1:]]
        self.links = [link for pair in pairs for link in pair]
        self.root = RootRelay(
            0, self.hosts[0], self.blocks[0], self.pools[0], self.known[0], [pair[0] for pair in pairs]
        )
        self.leaders = [
            LeaderRelay(hosts.near[0], hosts, block, pool, known, [pair[1]])
            for hosts, block, pool, known, pair in zip(
                self.hosts[1:], self.blocks[1:], self.pools[1:], self.known[1:], pairs
            )
        ]

    @staticmethod
    def pair():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
        for end in ends:  # as `rendezvous` does
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Link(ends[0]), Link(ends[1])

    def close(self):
        for each in (self.root, *self.leaders):
            each.close()
        for block in self.blocks:
            block.close()
        for pool in self.pools:
            pool.close()

    def command(self, number, payload=b"words"):
        """Publish a command as the master does; the leaders forward it."""
        words = self.blocks[0].words
        self.blocks[0].command_slot[: len(payload)] = payload
        words[COMMAND_LENGTH], words[COMMAND_NUMBER] = len(payload), number
        self.root.forward(nothing)
        self.leaders_hear()

    def leaders_hear(self):
        for leader in self.leaders:
            until(leader.receive)
            leader.forward(nothing)

    def arrive(self, rank, number, notice=None, promise=None):
        """Record a rank's arrival at a barrier, on its host."""
        host = self.hosts[0].of(rank)
        block, turn = self.blocks[host], (number // BARRIERS_PER_COMMAND + number) % 2
        if notice is not None:
            slot = block.notice_slots[turn][rank]
            block.notice_length[turn][rank], keep = messages.put(notice, slot, self.pools[host])
            self.keep.append(keep)
            block.noticed[turn][rank] = number
        if promise is not None:
            self.answer(rank, None, promise[1])
            block.promised[rank] = promise[0]
        block.arrived[rank] = number

    def answer(self, rank, number, payload):
        host = self.hosts[0].of(rank)
        block = self.blocks[host]
        block.answer_length[rank], self.kept = messages.put(payload, block.answer_slots[rank], self.pools[host])
        if number is not None:
            block.finished[rank] = number

    def answer_of(self, rank):
        """Return a rank's answer on the master."""
        block = self.blocks[0]
        return bytes(messages.get(block.answer_length[rank], block.answer_slots[rank], self.known[0]))


def until(receive, tries=200):
    """Receive repeatedly, so that all messages pass the loopback interface."""
    for _ in range(tries):
        receive()


def hears(leader, condition):
    """Receive until a condition is true: the kernel may delay long messages."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        leader.receive()


def nothing():
    pass


@pytest.fixture
def make():
    made = []

    def make(*counts):
        made.append(World(*counts))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.mark.parametrize("nbytes", [10, 60_000, 300_000])
def test_a_command_reaches_all_hosts(make, nbytes):
    world = make(1, 2, 1)
    payload = bytes(range(256)) * (nbytes // 256 + 1)
    length, keep = messages.put(payload, world.blocks[0].command_slot, world.pools[0])
    words = world.blocks[0].words
    words[COMMAND_LENGTH], words[COMMAND_NUMBER] = length, 1
    world.root.forward(nothing)
    world.leaders_hear()
    for block, known in zip(world.blocks[1:], world.known[1:]):
        assert block.words[COMMAND_NUMBER] == 1
        assert bytes(messages.get(block.words[COMMAND_LENGTH], block.command_slot, known)) == payload
    assert world.blocks[1].commands[2].try_acquire()  # a rank that is not the leader is woken
    del keep


def test_a_command_is_told_once(make):
    world = make(1, 2)
    for _ in range(3):
        world.command(1)
    assert world.blocks[1].commands[2].try_acquire() and not world.blocks[1].commands[2].try_acquire()


def test_no_command_before_an_earlier_one_has_let_go(make):
    world = make(1, 1)
    block, words = world.blocks[1], world.blocks[0].words
    words[ABORTED] = 1
    world.command(2)
    assert block.words[COMMAND_NUMBER] == 0
    block.words[LET_GO] = 1
    world.leaders_hear()
    assert block.words[COMMAND_NUMBER] == 2


def test_arrivals_of_a_host_are_told_together_with_what_ranks_tell(make):
    world = make(1, 2, 1)
    world.command(1)
    world.arrive(1, FIRST, b"one")
    world.leaders_hear()
    until(world.root.receive)
    assert [world.blocks[0].arrived[rank] for rank in (1, 2, 3)] == [0, 0, 0]
    world.arrive(2, FIRST, b"x" * LONG)
    world.arrive(3, FIRST)
    world.leaders_hear()
    until(world.root.receive)
    assert [world.blocks[0].arrived[rank] for rank in (1, 2, 3)] == [FIRST] * 3
    assert [world.root.notice_of(rank, FIRST) for rank in (1, 2, 3)] == [b"one", b"x" * LONG, None]


def test_what_is_incomplete_is_told_when_it_is_overdue(make):
    world = make(1, 2)
    world.command(1)
    world.arrive(1, FIRST)
    world.answer(2, 1, b"an error")
    world.leaders[0].forward(nothing, True)
    until(world.root.receive)
    block = world.blocks[0]
    assert (block.arrived[1], block.finished[2]) == (FIRST, 1) and world.answer_of(2) == b"an error"


def test_answers_of_a_host_are_told_though_not_all_have_come_as_far(make):
    """After an aborted command, answers need not wait for all arrivals."""
    world = make(1, 2)
    world.command(1)
    world.arrive(1, FIRST)
    world.answer(1, 1, b"given up")
    world.leaders_hear()
    until(world.root.receive)
    assert world.blocks[0].finished[1] == 0
    world.answer(2, 1, b"given up")
    world.leaders_hear()
    until(world.root.receive)
    assert [world.blocks[0].finished[rank] for rank in (1, 2)] == [1, 1]


def test_what_ranks_of_a_host_that_live_have_reached_is_told(make):
    world = make(1, 2)
    world.command(1)
    world.arrive(1, FIRST)
    world.blocks[1].ended[2] = world.blocks[1].words[DEATHS] = 1
    world.leaders_hear()
    until(world.root.receive)
    assert world.blocks[0].arrived[1] == FIRST


def test_what_a_rank_has_answered_before_it_ended_is_told(make):
    world = make(1, 2)
    world.command(1)
    world.answer(2, 1, b"goodbye")
    world.blocks[1].ended[2] = world.blocks[1].words[DEATHS] = 1
    world.answer(1, 1, b"goodbye")
    world.leaders_hear()
    until(world.root.receive)
    assert [world.blocks[0].finished[rank] for rank in (1, 2)] == [1, 1]


def test_a_leader_ends_after_it_has_told_all_answers(make):
    """The last answer is sent even if it arrives just after the leader's check."""
    world = make(1, 2)
    world.command(1)
    leader = world.leaders[0]
    end = RankEnd(world.blocks[1], 1, world.pools[1], world.known[1], WaitPolicy(1, False), leader)
    end.send(1, b"goodbye")
    have_answered = leader.have_answered

    def answers():
        world.answer(2, 1, b"goodbye")
        return have_answered()

    leader.have_answered = answers
    end.end(nothing)
    until(world.root.receive)
    assert [world.blocks[0].finished[rank] for rank in (1, 2)] == [1, 1]


def test_what_comes_while_a_leader_looks_is_told_at_once(make):
    """Arrivals during a leader's check are sent immediately, though no other wake-up follows."""
    world = make(1, 2)
    world.command(1)
    leader, told = world.leaders[0], []
    leader.receive()
    receive, tell = leader.receive, leader.forward

    def arrives():
        if not told or told == [False]:
            for rank in (1, 2):
                world.arrive(rank, FIRST)
            world.blocks[1].lead.release()
        return receive()

    def note(watch, is_overdue=False):
        told.append(is_overdue)
        tell(watch, is_overdue)

    leader.receive, leader.forward = arrives, note
    while leader._arrived[2] != FIRST:
        leader.wait(nothing, WaitPolicy(1, False))
    assert True not in told


def test_a_leader_that_loads_modules_meanwhile_sees_that_a_command_comes(make, monkeypatch):
    """The leader notices the command after loading one module at most."""
    world = make(1, 1)
    (leader,), block = world.leaders, world.blocks[1]
    end = RankEnd(block, 1, world.pools[1], world.known[1], WaitPolicy(1, False), leader)
    words = b"numpy a\nnumpy b\nnumpy c\n"
    block.announcements[: len(words)] = words
    block.words[ANNOUNCED] = len(words)
    loaded = []

    def preload(line):
        loaded.append(line)
        world.blocks[0].words[COMMAND_NUMBER] = 1
        world.root.forward(nothing)
        time.sleep(0.01)

    monkeypatch.setattr(prefetch, "_preload", preload)
    assert end.wait(prefetch.Preloader(block, nothing, end.may_be_called)) == 1
    assert loaded == ["numpy a"]


def test_a_decision_reaches_all_hosts_with_what_others_have_told(make):
    world = make(2, 2, 1)
    world.command(1)
    said = [bytes([rank]) * (LONG if rank == 3 else 10) for rank in range(5)]
    for rank in range(5):
        world.arrive(rank, FIRST, said[rank])
    world.leaders_hear()
    until(world.root.receive)
    world.blocks[0].words[STOP_REQUESTED] = 1
    world.blocks[0].words[DECIDED] = FIRST
    world.root.forward(nothing)
    world.leaders_hear()
    for leader, block in zip(world.leaders, world.blocks[1:]):
        assert (block.words[DECIDED], block.words[STOP_REQUESTED]) == (FIRST, 1)
        assert [leader.notice_of(rank, FIRST) for rank in range(5)] == said
    assert world.blocks[1].releases[3].try_acquire()


@pytest.mark.parametrize("is_long", [False, True])
def test_long_notices_of_the_roots_host_do_not_wait_for_the_decision(make, is_long):
    world = make(2, 2, 1)
    world.command(1)
    said = [bytes([rank]) * (EARLY_BYTES if is_long and rank == 0 else 10) for rank in range(5)]
    (first, _), blocks = world.leaders, world.blocks
    root = BarrierOverHosts(world.root, 0, nothing, WaitPolicy(1, False))
    root.begin(1)
    world.arrive(1, FIRST, said[1])
    world.arrive(0, FIRST, said[0])
    root.current, blocks[0].words[DEATHS] = FIRST, 1
    with pytest.raises(Aborted):  # so that it does not wait for the other hosts
        root._decide()
    blocks[0].words[DEATHS] = 0
    for leader in world.leaders if is_long else ():
        hears(leader, lambda leader=leader: leader.notice_of(1, FIRST))
    assert [first.notice_of(rank, FIRST) for rank in range(5)] == [*(said[:2] if is_long else [None] * 2), *[None] * 3]
    assert blocks[1].words[DECIDED] == 0 and not blocks[1].releases[3].try_acquire()
    for rank in (2, 3, 4):
        world.arrive(rank, FIRST, said[rank])
    world.leaders_hear()
    until(world.root.receive)
    blocks[0].words[DECIDED] = FIRST
    sizes = []
    for link in world.links[::2]:
        send = link.send
        link.send = lambda message, watch, send=send: (sizes.append(len(message[4])), send(message, watch))
    world.root.forward(nothing)
    for leader in world.leaders:
        hears(leader, lambda leader=leader: leader.block.words[DECIDED] == FIRST)
    assert sizes == ([1, 2] if is_long else [3, 4])  # early notices are not sent again
    for leader, block in zip(world.leaders, blocks[1:]):
        assert block.words[DECIDED] == FIRST
        assert [leader.notice_of(rank, FIRST) for rank in range(5)] == said


def test_what_ranks_of_a_host_write_while_their_leader_sends_is_told_at_once(make):
    world = make(1, 2)
    world.command(1)
    leader, block = world.leaders[0], world.blocks[1]
    leader.receive()
    assert not leader.has_news()
    block.lead.release()  # a rank has arrived, and the leader cannot send yet
    leader._link.on_wait()
    assert leader.has_news()


def test_early_notices_wait_for_all_ranks_of_the_host_and_are_forgotten_with_their_command(make):
    world = make(2, 1)
    world.command(1)
    world.root.early = FIRST
    world.arrive(0, FIRST, b"x" * LONG)
    world.root.forward(nothing)
    world.leaders_hear()
    assert world.leaders[0].notice_of(0, FIRST) is None
    world.command(2)  # after an abort
    world.arrive(1, FIRST + BARRIERS_PER_COMMAND, b"of the next command")
    world.root.forward(nothing)
    world.leaders_hear()
    assert world.root.early == 0 and world.leaders[0].notice_of(0, FIRST) is None


def test_early_notices_of_two_barriers_decided_at_once(make):
    world = make(1, 1)
    world.command(1)
    for rank in range(2):
        world.arrive(rank, FIRST, bytes([rank]) * LONG, promise=(FIRST + 1, b"answer"))
    (leader,), words = world.leaders, world.blocks[1].words
    leader.forward(nothing)
    hears(world.root, lambda: world.blocks[0].arrived[1] == FIRST)
    root = BarrierOverHosts(world.root, 0, nothing, WaitPolicy(1, False))
    root.begin(1)
    root.wait()
    hears(leader, lambda: leader.notice_of(0, FIRST))
    assert words[DECIDED] == 0
    root.wait()
    hears(leader, lambda: words[DECIDED])
    assert words[DECIDED] == FIRST + 1 and leader.notice_of(0, FIRST) == b"\0" * LONG


def test_two_barriers_decided_at_once(make):
    """One message reports both barriers to the leaders, with the ranks' notices at the first one."""
    world = make(1, 1)
    world.command(1)
    for rank in range(2):
        world.arrive(rank, FIRST, bytes([rank]), promise=(FIRST + 1, b"answer"))
    world.leaders_hear()
    until(world.root.receive)
    assert world.blocks[0].promised[1] == FIRST + 1 and world.answer_of(1) == b"answer"
    root = BarrierOverHosts(world.root, 0, nothing, WaitPolicy(1, False))
    root.begin(1)
    root.wait()
    assert world.blocks[0].words[DECIDED] == 0
    root.wait()
    assert world.blocks[0].words[DECIDED] == FIRST + 1
    world.leaders_hear()
    assert world.blocks[1].words[DECIDED] == FIRST + 1 and world.leaders[0].notice_of(0, FIRST) == b"\0"
    leader = BarrierOverHosts(world.leaders[0], 0, nothing, WaitPolicy(1, False))
    leader.begin(1)
    for _ in range(2):
        leader.wait()


@pytest.mark.parametrize("end", ["decided together", "decided apart", "aborted"])
def test_a_leader_with_all_notices_does_not_wait_for_a_decision_that_only_the_next_barrier_needs(make, end):
    """Between two hosts, the root also sends short notices before its decision if nothing can fail until the next."""
    world, deadline = make(1, 1), time.monotonic() + 60
    world.command(1)
    for rank in range(2):
        world.arrive(rank, FIRST, bytes([rank]), promise=(FIRST + 1, b"answer"))
    (leader,), (at_root, words) = world.leaders, [block.words for block in world.blocks]
    leader.forward(nothing)
    hears(world.root, lambda: world.blocks[0].arrived[1] == FIRST)
    root = BarrierOverHosts(world.root, 0, nothing, WaitPolicy(1, False))
    root.begin(1)
    root.wait()

    def watch():
        assert time.monotonic() < deadline, "waits for a decision"

    barrier = BarrierOverHosts(leader, 0, watch, WaitPolicy(1, False))
    barrier.begin(1)
    barrier.wait()
    assert words[DECIDED] == 0 and leader.notice_of(0, FIRST) == b"\0"
    world.blocks[1].arrived[1] = FIRST + 1
    leader.forward(nothing)
    until(world.root.receive)
    assert world.blocks[0].arrived[1] == FIRST
    if end == "decided together":
        root.wait()
    elif end == "decided apart":  # the root needs the next arrival
        at_root[DECIDED] = FIRST
        world.root.forward(nothing)
        hears(leader, lambda: words[DECIDED] == FIRST)
        leader.forward(nothing)
        hears(world.root, lambda: world.blocks[0].arrived[1] == FIRST + 1)
        at_root[DECIDED] = FIRST + 1
        world.root.forward(nothing)
    else:
        words[ABORTED] = 1
        with pytest.raises(Aborted):
            barrier.wait()
        return
    barrier.wait()
    assert words[DECIDED] == FIRST + 1


def test_a_leader_first_sends_the_arrivals_of_its_host(make):
    """Ranks write their notices before they arrive."""
    world = make(1, 2)
    world.command(1)
    (leader,), block = world.leaders, world.blocks[1]
    for rank in (0, 2):
        world.blocks[1].noticed[turn_of(FIRST)][rank] = FIRST
    world.arrive(1, FIRST, b"notice", promise=(FIRST + 1, b"answer"))
    leader.forward(nothing)
    assert not leader.has_all(FIRST)
    block.arrived[2] = FIRST
    leader.forward(nothing)
    assert leader.has_all(FIRST)


def test_between_three_hosts_short_notices_come_with_the_decision(make):
    """A leader needs the other leader's notices, too, which the root sends with its decision."""
    world = make(1, 1, 1)
    world.command(1)
    for rank in range(3):
        world.arrive(rank, FIRST, bytes([rank]), promise=(FIRST + 1, b"answer"))
    world.leaders_hear()
    until(world.root.receive)
    root = BarrierOverHosts(world.root, 0, nothing, WaitPolicy(1, False))
    root.begin(1)
    root.wait()
    world.leaders_hear()
    assert world.leaders[0].notice_of(0, FIRST) is None


def test_an_answer_that_is_due_is_not_told_again(make):
    world = make(1, 1)
    world.command(1)
    world.arrive(1, FIRST, promise=(FIRST, b"promised"))
    world.leaders_hear()
    until(world.root.receive)
    world.blocks[0].words[DECIDED] = FIRST
    world.root.forward(nothing)
    world.leaders_hear()
    world.blocks[1].finished[1] = 1
    world.leaders_hear()
    until(world.root.receive)
    assert world.blocks[0].finished[1] == 0 and world.answer_of(1) == b"promised"
    world.answer(1, 2, b"x" * LONG)
    world.leaders_hear()
    until(world.root.receive)
    assert world.blocks[0].finished[1] == 2 and world.answer_of(1) == b"x" * LONG


def test_steps_and_what_was_printed_come_with_answers(make):
    world = make(1, 2)
    block = world.blocks[1]
    block.steps[2], block.undone[2], block.steps_command[2], block.printed[1] = 7, 2, 1, 30
    world.answer(1, 1, b"")
    world.answer(2, 1, b"")
    world.leaders_hear()
    until(world.root.receive)
    assert world.blocks[0].steps_of(2) == (1, 7, 2) and world.blocks[0].printed[1] == 30
    world.blocks[0].note_steps({2: (1, 6, 2)})  # older counts, by another route
    assert world.blocks[0].steps_of(2) == (1, 7, 2)
    world.blocks[0].note_steps({2: (2, 0, 0)})
    assert world.blocks[0].steps_of(2) == (2, 0, 0)


def test_a_leader_ends_when_all_ranks_of_its_host_have_answered(make):
    world = make(1, 3)
    world.command(1)
    leader, block = world.leaders[0], world.blocks[1]
    for rank in (1, 3):
        block.finished[rank] = 1
    assert not leader.have_answered()
    block.ended[2] = 1
    assert leader.have_answered()


def test_a_leader_gives_up(make):
    world = make(1, 1)
    leader = BarrierOverHosts(world.leaders[0], 0, nothing, WaitPolicy(1, False))
    leader.begin(1)
    world.blocks[1].words[ABORTED] = 1
    with pytest.raises(Aborted):
        leader.wait()


def test_a_barrier_that_was_decided_is_complete_though_its_command_was_given_up(make):
    world = make(1, 1)
    leader = BarrierOverHosts(world.leaders[0], 0, nothing, WaitPolicy(1, False))
    leader.begin(1)
    world.blocks[1].words[DECIDED], world.blocks[1].words[ABORTED] = FIRST, 1
    leader.wait()
    with pytest.raises(Aborted):
        leader.wait()


def test_a_host_that_is_gone_does_not_keep_the_root_from_waiting(make):
    """The root, which is informed separately, keeps waiting."""
    world = make(1, 1, 1)
    world.leaders.pop(0).close()
    watched = []

    def watch():
        watched.append(1)
        return len(watched) > 2

    while not watched:
        world.root.wait(watch, WaitPolicy(1, False))
    world.command(1)
    assert len(watched) == 3 and world.blocks[2].words[COMMAND_NUMBER] == 1


def test_a_leader_that_has_lost_its_link_does_not_wait(make):
    """The leader raises an error, because it could receive nothing."""
    world = make(1, 1)
    world.root.close()
    for _ in range(2):
        with reports(SynkhronosError, "connection", "lost"):
            world.leaders[0].wait(nothing, WaitPolicy(1, False))


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (1, 3, 1)])
def test_nobody_passes_before_the_ranks_of_all_hosts_have_arrived(make, counts):
    """Ranks are threads that run several commands; each receives the notices of all others."""
    world = make(*counts)
    n, n_commands, n_barriers = sum(counts), 20, 5
    passed, found, deadline = [0] * n, {}, time.monotonic() + 60
    policy = WaitPolicy.of_threads()

    def watch():
        assert time.monotonic() < deadline, "hangs"

    def live(rank):
        host = world.hosts[0].of(rank)
        leading = ([world.root, *world.leaders])[host]
        if rank == leading.rank:
            barrier = BarrierOverHosts(leading, 0, watch, policy)
        else:
            barrier = Barrier(world.blocks[host], rank, 0, watch, policy)
        block = world.blocks[host]
        for command in range(1, n_commands + 1):
            if rank == 0:
                block.words[COMMAND_NUMBER] = command
                world.root.forward(watch)
            elif rank == leading.rank:
                while block.words[COMMAND_NUMBER] < command:
                    leading.wait(watch, policy)
            barrier.begin(command)
            for i in range(n_barriers):
                passed[rank] += 1
                size = (1, EARLY_BYTES, BlockOverHosts.notice_bytes + 1)[(command + i) % 3]
                said = barrier.exchange(bytes([command, i, rank]) * size, world.pools[host], world.known[host])
                assert said == tuple(bytes([command, i, each]) * size for each in range(n))
                assert min(passed) >= passed[rank]
        found[rank] = passed[rank]

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(n), n_commands * n_barriers)
