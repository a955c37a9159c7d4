"""Messages in shared memory: bytes in a slot, or in the sender's pool if they do not fit."""

from __future__ import annotations

import pickle
from typing import Any, Optional, Tuple

import numpy as np

from .attach import PoolMap
from .handles import Handle
from .pool import Pool


def put(payload: bytes, slot: memoryview, pool: Pool) -> Tuple[int, Any]:
    """Write a message; return its length in the slot, and an object to keep alive until the message has been read.

    A long message is written to the pool, and its handle to the slot. The length is then negative.
    """
    if len(payload) <= len(slot):
        slot[: len(payload)] = payload
        return len(payload), None
    array = pool.allocate((len(payload),), np.dtype(np.uint8))
    array[:] = np.frombuffer(payload, np.uint8)
    handle = pickle.dumps(pool.handle(array), pickle.HIGHEST_PROTOCOL)
    slot[: len(handle)] = handle
    return -len(handle), array


def handle(length: int, slot: memoryview) -> Optional[Handle]:
    """Return the handle of a long message; None if the message is in its slot."""
    found: Optional[Handle] = pickle.loads(slot[:-length]) if length < 0 else None
    return found


def get(length: int, slot: memoryview, pools: PoolMap) -> Any:
    """Return a buffer with the message written by `put`."""
    if length >= 0:
        return slot[:length]
    array: Any = pools.attach(pickle.loads(slot[:-length]))
    return memoryview(array)
