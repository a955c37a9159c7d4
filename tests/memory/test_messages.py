"""Messages in slots, and long messages in pools."""

import gc

import pytest

from synkhronos.errors import SharedMemoryError
from synkhronos.memory import messages
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.pool import Pool

SLOT = 256


@pytest.fixture
def ends():
    """A slot, the sender's pool, and the receiver's `PoolMap` with this pool."""
    pool, pools = Pool(4), PoolMap()
    pools.add(4, pool.fileno())
    return memoryview(bytearray(SLOT)), pool, pools


@pytest.mark.parametrize("length", [0, 1, SLOT - 1, SLOT, SLOT + 1, 5000, 3 << 20])
def test_arrives(length, ends):
    slot, pool, pools = ends
    payload = bytes(i * 7 % 251 for i in range(min(length, 5000))) * max(1, length // 5000)
    n, keep = messages.put(payload, slot, pool)
    assert (n >= 0) == (len(payload) <= SLOT)
    assert bytes(messages.get(n, slot, pools)) == payload
    assert (keep is None) == (len(payload) <= SLOT)
    assert (pool.used > 0) == (len(payload) > SLOT)


def test_memory_goes_back_with_what_is_kept(ends):
    slot, pool, pools = ends
    n, keep = messages.put(b"x" * 10000, slot, pool)
    assert pool.used >= 10000
    received = messages.get(n, slot, pools)
    assert bytes(received[:1]) == b"x"
    del keep, received
    gc.collect()
    assert pool.used == 0


def test_no_memory(ends):
    slot, pool, pools = ends
    slot[:] = b"s" * SLOT
    small = Pool(5, window=64 << 20)
    with pytest.raises(SharedMemoryError):
        messages.put(b"x" * (65 << 20), slot, small)
    assert bytes(slot) == b"s" * SLOT and small.used == 0
    n, keep = messages.put(b"fits", slot, small)
    assert bytes(messages.get(n, slot, pools)) == b"fits"
