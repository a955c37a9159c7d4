"""Memory for large results on the master, which is reused after the program has dropped a result of the same size.

The kernel zeroes new memory, which takes longer than copying values there. It may take free memory back at any time.
"""

from __future__ import annotations

import math
import mmap
import weakref
from typing import Any, ClassVar, Dict, Tuple

import numpy as np
from numpy.typing import NDArray

from ..runtime.context import Kept

REUSED_FROM_BYTES = 32 << 20  #: Minimum size of results whose memory is reused; malloc itself reuses smaller memory.


class ResultMemory(Kept):
    """Allocates arrays for results; ``free`` maps the size of the only free block to the block."""

    of: ClassVar[str] = "results"

    def __init__(self) -> None:
        self.free: Dict[int, mmap.mmap] = {}

    def empty(self, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an uninitialized array; its memory is reused once no view of it lives."""
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
