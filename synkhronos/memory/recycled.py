"""Memory for large results that leave the library: taken again once the user has dropped the arrays that had it.

Fresh memory is zeroed by the kernel page by page when it is first written, which takes longer than writing the result.
"""

from __future__ import annotations

import math
import mmap
import weakref
from typing import Any, List, Sequence

import numpy as np

#: Bytes below which the C library keeps memory by itself.
MIN_BYTES = 1 << 20

#: Bytes that are kept, at most, while nobody uses them.
MAX_IDLE_BYTES = 256 << 20


class Recycler:
    """Makes arrays; keeps the memory of one that is dead for the next.

    Examples
    --------
    >>> recycler = Recycler()
    >>> first = recycler.empty((1000, 1000), "float32")
    >>> address = first.ctypes.data
    >>> del first
    >>> recycler.empty((1000, 999), "float32").ctypes.data == address
    True
    """

    def __init__(self) -> None:
        self._idle: List[mmap.mmap] = []

    def __repr__(self) -> str:
        return f"<Recycler: {sum(map(len, self._idle))} bytes idle>"

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Make an array, as `np.empty` does; the memory is its own as long as it, or a view of it, lives."""
        dtype = np.dtype(dtype)
        nbytes = dtype.itemsize * math.prod(shape)
        if nbytes < MIN_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        try:
            memory = self._take(nbytes)
        except (OSError, OverflowError):  # no such memory is left: NumPy says so as everybody expects
            return np.empty(shape, dtype)
        # All views have this array as their base, for NumPy keeps the last array before the mapping.
        block: np.ndarray = np.ndarray((nbytes,), np.uint8, memory)
        weakref.finalize(block, self._give, memory).atexit = False
        return np.ndarray(shape, dtype, block)

    def _take(self, nbytes: int) -> mmap.mmap:
        try:
            memory = self._idle.pop()  # garbage may be collected in any thread: this is one step
        except IndexError:
            pass
        else:
            if nbytes <= len(memory) <= 2 * nbytes:
                return memory
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except (AttributeError, OSError):
            pass  # not on this system
        return memory

    def _give(self, memory: mmap.mmap) -> None:
        if len(memory) <= MAX_IDLE_BYTES:
            self._idle[:] = [memory]
