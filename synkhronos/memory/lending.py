"""Lending shared memory: it is used again once nothing refers to what was lent."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pool import Pool


class Lender:
    """A range of a pool that is lent again and again.

    Parameters
    ----------
    pool : Pool
    nbytes : int

    Attributes
    ----------
    block : np.ndarray of uint8
        The memory itself: what is read and written through it is not counted.

    Examples
    --------
    >>> lender = Lender(Pool(0), 80)
    >>> x = lender.lend()[:10]
    >>> lender.is_lent
    True
    >>> del x
    >>> lender.is_lent
    False
    """

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self.block: NDArray[Any] = pool.allocate((max(1, nbytes),), np.uint8)
        # NumPy makes the last array before another kind of buffer the base of all views: this is that buffer.
        self._buffer: Any = (ctypes.c_ubyte * self.block.nbytes).from_buffer(self.block.data)
        self._lent: Any = None

    @property
    def is_lent(self) -> bool:
        """Whether anything refers to what `lend` has returned."""
        return self._lent is not None and self._lent() is not None

    def lend(self) -> NDArray[Any]:
        """Return the memory as a new array, which, and whose views, count as lent as long as they live."""
        lent: NDArray[Any] = np.ndarray((self.block.nbytes,), np.uint8, self._buffer)
        self._lent = weakref.ref(lent)
        return lent
