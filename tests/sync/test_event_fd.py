"""An event descriptor wakes a process that waits in ``poll``."""

import os
import select

import pytest

from synkhronos.sync.barrier import Barrier
from synkhronos.sync.block_over_hosts import BlockOverHosts
from synkhronos.sync.event_fd import EventFd
from synkhronos.sync.hosts import Hosts
from synkhronos.sync.semaphore import WaitPolicy


def has_rung(bell, seconds=0.0):
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


@pytest.mark.slow
def test_it_rings_until_it_is_cleared():
    bell = EventFd()
    assert not has_rung(bell)
    bell.drain()  # does not wait
    for _ in range(3):
        bell.release()
    assert has_rung(bell) and has_rung(bell)
    bell.drain()
    assert not has_rung(bell)


def test_another_process_rings():
    bell = EventFd()
    pid = os.fork()
    if pid == 0:
        EventFd(bell.fileno()).release()
        os._exit(0)
    try:
        assert has_rung(bell, 30)
    finally:
        assert os.waitpid(pid, 0)[1] == 0


def test_it_holds_a_descriptor_of_its_own():
    bell = EventFd()
    other = EventFd(bell.fileno())
    fds = bell.fileno(), other.fileno()
    assert len(set(fds)) == 2 and not any(os.get_inheritable(fd) for fd in fds)
    identity = os.readlink(f"/proc/self/fd/{fds[1]}")
    assert "eventfd" in identity
    other.release()
    assert has_rung(bell)
    del other
    assert not os.path.exists(f"/proc/self/fd/{fds[1]}")


def test_what_is_meant_for_another_host_rings():
    hosts = Hosts.of_counts(("a", "b"), (2, 1))
    block = BlockOverHosts(hosts)
    seen_elsewhere = BlockOverHosts(hosts, os.dup(block.fd), block.bells())
    block.releases[1].release()
    assert not has_rung(block.bridge)
    seen_elsewhere.commands[2].release()
    assert has_rung(block.bridge) and not has_rung(block.lead)


@pytest.mark.parametrize("own", [0, 1])
def test_what_is_meant_for_the_rank_that_speaks_for_its_host_rings_for_it(own):
    block = BlockOverHosts(Hosts.of_counts(("a", "b"), (2, 2), own))
    woken = [block.arrivals, *block.answers]
    woken += [] if own == 0 else [block.releases[2], block.commands[2]]  # no rank releases the root
    for each in woken:
        each.release()
        assert has_rung(block.lead) and not has_rung(block.bridge)
        block.lead.drain()
    for each in (block.releases[1], block.commands[1], block.releases[3], block.commands[3]):
        each.release()
    assert not has_rung(block.lead)
    block.call_root()
    assert has_rung(block.lead) and has_rung(block.bridge)


def test_clearing_a_barrier_leaves_what_has_rung_to_the_bridge():
    hosts = Hosts.of_counts(("a", "b"), (2, 1))
    block = BlockOverHosts(hosts)
    root = Barrier(block, 0, 0, lambda: None, WaitPolicy.of_hosts())
    root.begin(1)
    root.abort()
    root.clear()
    assert has_rung(block.bridge)
    assert not block.releases[1].try_acquire()
