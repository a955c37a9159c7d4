"""Messages in shared memory: bytes in a slot, or in the sender's pool if they do not fit."""

from __future__ import annotations

import pickle
from typing import Any, Tuple

import numpy as np

from .attach import PoolMap
from .pool import Pool


def put(payload: bytes, slot: memoryview, pool: Pool) -> Tuple[int, Any]:
    """Write a message.

    Returns
    -------
    length : int
        Bytes in the slot; negative if they are the handle of the message.
    keep : object
        Must live until the message has been read.

    Raises
    ------
    SharedMemoryError
        There is no memory for a long message.
    """
    if len(payload) <= len(slot):
        slot[: len(payload)] = payload
        return len(payload), None
    array = pool.allocate((len(payload),), np.dtype(np.uint8))
    array[:] = np.frombuffer(payload, np.uint8)
    handle = pickle.dumps(pool.handle(array), pickle.HIGHEST_PROTOCOL)
    slot[: len(handle)] = handle
    return -len(handle), array


def get(length: int, slot: memoryview, pools: PoolMap) -> Any:
    """Return a buffer over the message that `put` wrote."""
    if length >= 0:
        return slot[:length]
    array: Any = pools.attach(pickle.loads(slot[:-length]))
    return memoryview(array)
