"""Memory for large results on the master, which is reused once nothing refers to the last result of the same size.

The kernel fills new memory with zeros, page by page, which takes longer than copying the ranks' values there. Memory
without a result remains mapped, but the kernel may take its pages whenever it needs them (``MADV_FREE``)::

    gather  ---> [ result ]   referenced by the program
    dropped ---> [ free   ]   pages may be taken; one block, of the last size
    gather  ---> [ result ]   no page is zeroed, unless it was taken
"""

from __future__ import annotations

import math
import mmap
import weakref
from typing import Any, ClassVar, Dict, Tuple

import numpy as np
from numpy.typing import NDArray

from ..runtime.context import Kept

REUSED_FROM_BYTES = 1 << 20  #: Minimum size of results whose memory is reused; malloc itself reuses smaller memory.


class ResultMemory(Kept):
    """Allocates arrays for results; ``free`` maps the size of the only free block to the block."""

    of: ClassVar[str] = "results"

    def __init__(self) -> None:
        self.free: Dict[int, mmap.mmap] = {}

    def empty(self, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialized array, whose memory belongs to the caller as long as any view of it lives."""
        nbytes = dtype.itemsize * math.prod(shape)
        if nbytes < REUSED_FROM_BYTES:
            return np.empty(shape, dtype)
        block = self.free.pop(nbytes, None)
        self.free.clear()
        if block is None:
            try:
                block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                block.madvise(mmap.MADV_HUGEPAGE)
            except (OSError, AttributeError):  # no memory, or not supported by this system
                return np.empty(shape, dtype)
        memory: NDArray[Any] = np.ndarray((nbytes,), np.uint8, block)  # the base of all views
        weakref.finalize(memory, self._put_back, self.free, block).atexit = False
        return memory.view(dtype).reshape(shape)

    @staticmethod
    def _put_back(free: Dict[int, mmap.mmap], block: mmap.mmap) -> None:
        try:
            block.madvise(mmap.MADV_FREE)
        except (OSError, AttributeError):
            return
        free.clear()
        free[len(block)] = block
