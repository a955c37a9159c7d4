"""One host answers as several do. Modules: `synkhronos.sync.block_over_hosts`."""

import socket

import numpy as np
import pytest

from synkhronos.host.machine import core_budget
from synkhronos.memory.attach import CHECK_FROM_BYTES, PoolMap
from synkhronos.memory.handles import NameHandle
from synkhronos.memory.pool import Pool
from synkhronos.sync.block_over_hosts import BlockOverHosts, block_of
from synkhronos.sync.control_block import ControlBlock
from synkhronos.sync.host_relay import NO_RELAY
from synkhronos.sync.hosts import Hosts


def test_one_host():
    hosts = Hosts.alone(3)
    assert hosts == ((socket.gethostname(),), ((0, 1, 2),), 0, None, (core_budget(),))
    assert (hosts.size, hosts.near, hosts.far, hosts.are_several) == (3, (0, 1, 2), (), False)
    assert [hosts.led_by(rank) for rank in range(3)] == [()] * 3
    assert not any(map(hosts.is_far, (-2, -1, 0, 1, 2)))


@pytest.mark.parametrize("own, near, far", [(0, (0, 1), (2, 3, 4)), (1, (2,), (0, 1, 3, 4)), (2, (3, 4), (0, 1, 2))])
def test_several_hosts(own, near, far):
    hosts = Hosts.of_counts(("a", "b", "c"), (2, 1, 2), own)
    assert (hosts.size, hosts.near, hosts.far, hosts.are_several) == (5, near, far, True)
    assert [hosts.led_by(rank) for rank in range(5)] == [(), (), (2,), (3, 4), ()]
    assert [pool for pool in range(-1, 5) if hosts.is_far(pool)] == [*[-1] * (own > 0), *far]


@pytest.mark.parametrize(
    "counts, places, link", [((2,), None, "shared_memory"), ((1, 1), None, "tcp"), ((1, 1), (0, 1), "mpi")]
)
def test_links(counts, places, link):
    assert Hosts.of_counts(tuple("ab"[: len(counts)]), counts, places=places).link == link


@pytest.mark.parametrize("counts, kind, n_bells", [((2,), ControlBlock, 0), ((1, 1), BlockOverHosts, 2)])
def test_a_block_for_the_hosts(counts, kind, n_bells):
    hosts = Hosts.of_counts(tuple("ab"[: len(counts)]), counts)
    block = block_of(hosts, span_bytes=64)
    assert type(block) is kind and len(block.bells()) == n_bells
    again = block_of(hosts, block.fd, block.bells())
    block.notice_slots[1][1][-3:], block.spans[1][-3:] = b"one", b"two"
    assert bytes(again.notice_slots[1][1][-3:]) == b"one" and bytes(again.spans[1][-3:]) == b"two"
    block.close()


def test_a_rank_that_leads_no_host_waits_for_semaphores():
    block = ControlBlock(1)
    assert NO_RELAY.waiting_for(block.commands[0]) is block.commands[0]
    assert not NO_RELAY.receive() and not NO_RELAY.has_news()
    block.close()


@pytest.mark.parametrize("fetcher, may_lack", [(None, False), (object(), True)])
def test_only_another_host_may_lack_memory_or_files(fetcher, may_lack):
    pools, pool = PoolMap(), Pool(0, 2 * CHECK_FROM_BYTES)
    pools.add(0, pool)
    large, small = (pool.handle(pool.allocate((n,), "uint8")) for n in (CHECK_FROM_BYTES, 8))
    if fetcher is not None:
        pools.reach((), fetcher, False)
    name = NameHandle("name", (1,), np.dtype("f8"), (0, 0))
    assert [pools.may_lack([7, each]) for each in (large, small, name)] == [may_lack, False, may_lack]
    pool.close()
