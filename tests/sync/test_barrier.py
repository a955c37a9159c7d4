"""The barrier, with threads as ranks, in Python alone and with the kernel that processes use."""

import random
import threading
import time

import numpy as np
import pytest

from synkhronos.errors import Aborted
from synkhronos.kernels import copy
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.pool import Pool
from synkhronos.sync.barrier import BARRIERS_PER_COMMAND, Barrier
from synkhronos.sync.barrier_over_hosts import BarrierOverHosts
from synkhronos.sync.block_over_hosts import BlockOverHosts
from synkhronos.sync.control_block import DEATHS, DECIDED, NOTICE_BYTES, ControlBlock
from synkhronos.sync.host_relay import RootRelay
from synkhronos.sync.hosts import Hosts
from synkhronos.sync.semaphore import WaitPolicy


@pytest.fixture(params=["Python", "kernel"], autouse=True)
def way(request, monkeypatch):
    if request.param == "kernel":
        if copy.kernels is None:
            pytest.skip("needs the kernels in C: make install, with a compiler")
        monkeypatch.setattr(Ranks, "policy", WaitPolicy(60, True))
    return request.param


class Died(Exception):
    """Raised to end a rank."""


class Ranks:
    """Ranks that run in one thread each.

    If the root speaks for its host, which is the only one, it can decide two barriers together.
    """

    policy = WaitPolicy.of_threads()

    def __init__(self, n, root=0, speaks=False):
        hosts = Hosts.of_counts(("here",), (n,))
        self.block = BlockOverHosts(hosts) if speaks else ControlBlock(n)
        self.block.close()
        self.deadline = time.monotonic() + 60
        self.ranks = [Barrier(self.block, rank, root, self.watch, self.policy) for rank in range(n)]
        if speaks:
            leading = RootRelay(root, hosts, self.block, None, None, [])
            self.ranks[root] = BarrierOverHosts(leading, root, self.watch, self.policy)
        self.root = root

    def watch(self):
        assert time.monotonic() < self.deadline, "hangs"

    def run(self, command, work):
        """Run ``work(barrier)`` on every rank for the command; return results or exceptions."""
        results = [None] * len(self.ranks)

        def live(rank):
            barrier = self.ranks[rank]
            barrier.begin(command)
            try:
                results[rank] = work(barrier)
            except (Aborted, Died, AssertionError) as error:
                results[rank] = error
                if isinstance(error, AssertionError):
                    self.deadline = 0  # otherwise, other ranks would wait for it

        threads = [threading.Thread(target=live, args=(rank,)) for rank in range(len(self.ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("root", [0, -1])
def test_nobody_passes_before_all_have_arrived(n, root):
    ranks = Ranks(n, root % n)
    counts = [0] * n

    def work(barrier):
        for i in range(50):
            counts[barrier.rank] += 1
            barrier.wait()
            assert min(counts) >= i + 1
            barrier.wait()
            assert max(counts) <= i + 2  # the fastest rank may have continued already
        return "done"

    for command in (1, 2, 7):
        counts[:] = [0] * n
        assert ranks.run(command, work) == ["done"] * n
        assert ranks.block.words[DECIDED] == command * BARRIERS_PER_COMMAND + 100
    assert not ranks.block.arrivals.try_acquire()
    assert not any(gate.try_acquire() for gate in ranks.block.releases)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_exchange_returns_the_notices_of_all_ranks(n, way):
    """Notices change their contents and lengths between and within rounds; some are too long for their slots."""
    ranks, random = Ranks(n, n - 1), np.random.RandomState(n)
    assert [each._meeting is not None for each in ranks.ranks] == [way == "kernel"] * n
    lengths = [0, 1, 100, 100, NOTICE_BYTES - 1, NOTICE_BYTES, NOTICE_BYTES + 1, 3 * NOTICE_BYTES]
    rounds = [[random.bytes(random.choice(lengths)) for _ in range(n)] for _ in range(40)]
    rounds = [given for given in rounds for _ in range(random.randint(1, 5))]  # some are repeated
    own = [Pool(rank) for rank in range(n)]
    pools = PoolMap()
    for pool in own:
        pools.add(pool.ident, pool)

    def work(barrier):
        return [barrier.exchange(given[barrier.rank], own[barrier.rank], pools) for given in rounds]

    for command in (1, 2, 5):
        assert ranks.run(command, work) == [[tuple(given) for given in rounds]] * n


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("failing", [0, 1, -1])
@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("root", [0, 1])
def test_abort_frees_everybody(n, failing, place, root):
    ranks = Ranks(n, root)
    failing %= n
    passed = [0] * n

    def work(barrier):
        for i in range(4):
            if barrier.rank == failing and i == place:
                barrier.abort()
                return "failed"
            try:
                barrier.wait()
            except Aborted:
                barrier.abort()  # as `execute` does
                raise
            passed[barrier.rank] += 1

    for command in (1, 3, 5):
        passed[:] = [0] * n
        results = ranks.run(command, work)
        assert results[failing] == "failed"
        assert all(isinstance(result, Aborted) for rank, result in enumerate(results) if rank != failing)
        assert passed == [place] * n
        ranks.ranks[root].clear()
        # The next command is not affected.
        assert ranks.run(command + 1, lambda barrier: [barrier.wait() for _ in range(3)]) == [[None] * 3] * n


@pytest.mark.parametrize("late, root", [(0, 0), (1, 0), (2, 1)])
@pytest.mark.parametrize("fails", [False, True])
def test_work_during_a_wait_ends_with_the_wait(late, root, fails):
    """Ranks that wait do pieces of work until the late rank arrives or fails; it arrives after a few pieces."""
    ranks = Ranks(3, root)
    pieces, is_done = [[], [], []], threading.Event()

    def work(barrier):
        own = pieces[barrier.rank]

        def piece():
            own.append(barrier.current)
            if min(map(len, pieces[:late] + pieces[late + 1 :])) >= 3:
                is_done.set()
            return True  # so that work remains

        barrier.meanwhile = piece
        if barrier.rank == late:
            assert is_done.wait(60)
            if fails:
                barrier.abort()
                raise Died
        try:
            barrier.wait()
        except Aborted:
            barrier.abort()  # as `execute` does
            raise
        return len(own)

    results = ranks.run(1, work)
    if fails:
        assert [type(each) for each in results] == [Died if rank == late else Aborted for rank in range(3)]
    else:
        assert all(results[rank] >= 3 for rank in range(3) if rank != late)


def test_a_rank_without_work_waits():
    ranks, pieces = Ranks(2), []

    def work(barrier):
        barrier.meanwhile = lambda: bool(pieces.append(barrier.rank))
        for _ in range(5):
            barrier.wait()
        return "done"

    assert ranks.run(1, work) == ["done"] * 2
    assert len(pieces) <= 2 * 5


def test_tokens_of_the_past_never_count():
    """Wake-ups that were not requested have no effect."""
    ranks = Ranks(3)
    for _ in range(7):
        ranks.block.arrivals.release()
        for gate in ranks.block.releases:
            gate.release()
    counts = [0, 0, 0]

    def work(barrier):
        for i in range(20):
            time.sleep(random.random() * 0.003)
            counts[barrier.rank] += 1
            barrier.wait()
            assert min(counts) >= i + 1, "passed alone"
        return "done"

    assert ranks.run(1, work) == ["done"] * 3


def test_a_rank_that_has_arrived_need_not_wake_the_root():
    """A rank that was stopped between its two actions does not hold up the barrier (schedule 1522)."""
    ranks = Ranks(3)

    def work(barrier):
        if barrier.rank == 2:
            ranks.block.arrived[2] = barrier.current + 1
        else:
            barrier.wait()

    assert ranks.run(1, work) == [None] * 3


def test_words_of_the_past_never_count():
    """An abort of an earlier command does not affect a later one, even if it was not cleared."""
    ranks = Ranks(2)

    def fail(barrier):
        if barrier.rank == 1:
            barrier.abort()
        else:
            barrier.wait()

    assert isinstance(ranks.run(1, fail)[0], Aborted)
    ranks.ranks[0].abort()
    assert ranks.run(2, lambda barrier: barrier.wait()) == [None, None]


def test_root_that_could_not_wake_everybody(way):
    """If the root is interrupted after its decision, its abort wakes the ranks, and the decision stands."""
    if way == "kernel":
        pytest.skip("nothing interrupts the kernel between the decision and the wake-ups")
    ranks = Ranks(3)
    original = ranks.block.releases

    class Interrupting(list):
        def __getitem__(self, rank):
            if rank == 2 and threading.current_thread().name == "root":
                raise Died
            return original[rank]

    def work(barrier):
        if barrier.rank == 0:
            threading.current_thread().name = "root"
            ranks.block.releases = Interrupting(original)
            try:
                barrier.wait()
            except Died:
                ranks.block.releases = original
                barrier.abort()
                return "interrupted"
        barrier.wait()
        try:
            barrier.wait()
        except Aborted:
            return "passed the first"

    assert ranks.run(1, work) == ["interrupted", "passed the first", "passed the first"]


def test_death_is_noticed_by_the_root():
    ranks = Ranks(3)

    def work(barrier):
        if barrier.rank == 2:
            time.sleep(0.02)
            ranks.block.words[DEATHS] = 1
            ranks.block.arrivals.release()
            raise Died
        try:
            barrier.wait()
        except Aborted:
            barrier.abort()
            raise

    results = ranks.run(1, work)
    assert [type(result) for result in results] == [Aborted, Aborted, Died]


@pytest.mark.parametrize("n", [2, 3, 4])
def test_survivors_agree_on_what_took_place(n):
    """If ranks abort, die or are late anywhere, the survivors agree on the number of complete barriers."""
    rng = random.Random(n)
    ranks = Ranks(n, root=n - 1)
    for command in range(1, 120):
        plans = [(rng.choice(["fine", "fine", "abort", "die"]), rng.randrange(5)) for _ in range(n)]
        plans[ranks.root] = (rng.choice(["fine", "abort"]), rng.randrange(5))
        delays = [[rng.random() * 0.001 * (rng.random() < 0.3) for _ in range(5)] for _ in range(n)]
        passed = [0] * n

        def work(barrier, plans=plans, delays=delays, passed=passed):
            rank, (what, place) = barrier.rank, plans[barrier.rank]
            try:
                for i in range(5):
                    time.sleep(delays[rank][i])
                    if i == place and what == "die":
                        ranks.block.words[DEATHS] = 1
                        ranks.block.arrivals.release()
                        raise Died
                    if i == place and what == "abort":
                        raise Aborted
                    barrier.wait()
                    passed[rank] += 1
            except Aborted:
                barrier.abort()
                raise

        results = ranks.run(command, work)
        assert not any(isinstance(result, AssertionError) for result in results), results
        survivors = [rank for rank in range(n) if not isinstance(results[rank], Died)]
        decided = max(0, ranks.block.words[DECIDED] - command * BARRIERS_PER_COMMAND)
        for rank in survivors:
            assert passed[rank] == decided, (plans, passed, decided)
            assert ranks.ranks[rank].is_complete(command * BARRIERS_PER_COMMAND + passed[rank]) == (decided > 0)
            assert not ranks.ranks[rank].is_complete(command * BARRIERS_PER_COMMAND + passed[rank] + 1)
        earliest = min([place for what, place in plans if what != "fine"], default=5)
        assert decided == earliest
        ranks.block.words[DEATHS] = 0
        ranks.ranks[ranks.root].clear()


def promise(barrier):
    """Promise to reach the barrier after the next, as ranks do that cannot fail before it."""
    barrier.block.promised[barrier.rank] = barrier.current + 2


@pytest.mark.parametrize("n, root", [(1, 0), (2, 0), (3, 1), (5, 4)])
def test_two_barriers_that_are_decided_at_once(n, root):
    """Ranks run commands without waiting for each other, and some read their notices late."""
    ranks, rng = Ranks(n, root, True), random.Random(n)
    delays = [[rng.random() * 0.002 * (rng.random() < 0.5) for _ in range(n)] for _ in range(60)]

    def work(barrier):
        pass_barrier, found = barrier.wait, []
        for command in range(1, 60):
            barrier.begin(command)
            promise(barrier)
            barrier.wait = lambda command=command: (pass_barrier(), time.sleep(delays[command][barrier.rank]))
            found.append(barrier.exchange(bytes([command, barrier.rank]), None, None))
            if barrier.rank == root:
                assert barrier.block.words[DECIDED] < command * BARRIERS_PER_COMMAND, (
                    "decided before it knew what it will do"
                )
            barrier.wait = pass_barrier
            barrier.wait()
            assert barrier.is_complete(command * BARRIERS_PER_COMMAND + 2)
            assert barrier.rank == root or barrier.block.arrived[barrier.rank] == command * BARRIERS_PER_COMMAND + 1
        return found

    expected = [tuple(bytes([command, rank]) for rank in range(n)) for command in range(1, 60)]
    assert ranks.run(1, work) == [expected] * n


@pytest.mark.parametrize("hesitant", [0, 1, 2])
def test_two_barriers_are_decided_one_by_one_unless_all_have_agreed(hesitant):
    ranks = Ranks(3, speaks=True)

    def work(barrier):
        if barrier.rank != hesitant:
            promise(barrier)
        barrier.exchange(b"", None, None)
        assert barrier.is_complete(barrier.current) and not barrier.is_complete(barrier.current + 1)
        if barrier.rank == hesitant:
            barrier.abort()
            raise Died
        try:
            barrier.wait()
        except Aborted:
            barrier.abort()
            raise

    results = ranks.run(1, work)
    assert [type(result) for result in results] == [Died if rank == hesitant else Aborted for rank in range(3)]
    assert ranks.block.words[DECIDED] == BARRIERS_PER_COMMAND + 1


@pytest.mark.parametrize("what", ["the root fails", "a rank dies"])
def test_of_two_barriers_at_once_neither_is_decided_before_the_root_has_come_to_the_second(what):
    ranks = Ranks(3, speaks=True)

    def work(barrier):
        promise(barrier)
        try:
            barrier.exchange(b"", None, None)
            if what == "a rank dies":
                ranks.block.words[DEATHS] = 1
                barrier.wait()
            raise Aborted
        except Aborted:
            barrier.abort()
            raise

    assert [type(result) for result in ranks.run(1, work)] == [Aborted] * 3
    assert ranks.block.words[DECIDED] == 0
