"""Lent memory: shared memory that is reused once nothing refers to the lent array."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pool import Pool


class Lender:
    """A range of a pool that is lent repeatedly; references to ``block``, the memory itself, do not count as loans."""

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self.block: NDArray[Any] = pool.allocate((max(1, nbytes),), np.uint8)
        # The base of a view is the last array before a foreign buffer. Because of this buffer, it is the lent array.
        self._buffer: Any = (ctypes.c_ubyte * self.block.nbytes).from_buffer(self.block.data)
        self._lent: Any = None

    @property
    def is_lent(self) -> bool:
        """Whether anything refers to the result of `lend`."""
        return self._lent is not None and self._lent() is not None

    def lend(self) -> NDArray[Any]:
        """Return the memory as a new array, lent as long as the array or any of its views lives."""
        lent: NDArray[Any] = np.ndarray((self.block.nbytes,), np.uint8, self._buffer)
        self._lent = weakref.ref(lent)
        return lent
