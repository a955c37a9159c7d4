"""Buffers for the values of one collective inside a function, in this rank's shared memory.

::

    small   two sources, used in turn     every rank reads all sources and computes its own result
    large   sources | results             every rank computes its share of all ranks' results

A small source is overwritten two runs of the collective later. By then, all ranks have read it, because they took part
in the run in between. Of a large array, a rank copies only what other ranks reduce. A large result is not copied; its
memory is reused once nothing refers to it.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence, Tuple

import numpy as np

from ..kernels.copy import copy_outside
from ..memory.lending import Lender
from ..memory.pool import Pool
from ..trace import point
from .layouts import PooledArray

ALIGNMENT_BYTES = 64  #: Size of a cache line; arrays in a block begin at multiples of it.


class ArrayBlock:
    """Consecutive arrays in one block of shared memory; ``placed`` describes them for other ranks."""

    def __init__(self, pool: Pool, kinds: Sequence[Tuple[Tuple[int, ...], np.dtype[Any]]]) -> None:
        self._places, nbytes = [], 0
        for shape, dtype in kinds:
            self._places.append((shape, dtype, nbytes))
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            nbytes += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._memory = Lender(pool, nbytes)
        self.arrays = self._views(self._memory.block)
        self.placed = [PooledArray.at(array, pool.handle(array)) for array in self.arrays]

    def _views(self, block: np.ndarray[Any, Any]) -> List[np.ndarray[Any, Any]]:
        return [np.ndarray(shape, dtype, block, offset) for shape, dtype, offset in self._places]

    @property
    def is_lent(self) -> bool:
        """Whether anything refers to the arrays that `lend` has returned."""
        return self._memory.is_lent

    def lend(self) -> List[np.ndarray[Any, Any]]:
        """Return the arrays as new objects. They count as lent as long as they or their views are alive."""
        return self._views(self._memory.lend())


class ValueBuffers:
    """One rank's memory for one collective; if it ``is_small``, ranks compute their own results (`Algorithm.OWN`)."""

    def __init__(
        self, pool: Pool, kinds: Sequence[Tuple[Tuple[int, ...], np.dtype[Any]]], label: str, is_small: bool
    ) -> None:
        self.kinds, self.label, self.is_small, self._pool = kinds, label, is_small, pool
        self._sources = [ArrayBlock(pool, kinds) for _ in range(2 if is_small else 1)]
        self._results: List[ArrayBlock] = []
        self._turn = 0

    def name(self, i: int) -> str:
        return f"array {i} of {self.label}"

    @point("transport")
    def stage(self, arrays: Sequence[np.ndarray[Any, Any]], own: Mapping[int, Tuple[int, int]]) -> List[PooledArray]:
        """Copy the arrays into memory that other ranks can read; return the locations.

        ``own`` maps positions of arrays to ranges of elements (begin, end) that no other rank reads.
        """
        self._turn = (self._turn + 1) % len(self._sources)
        block = self._sources[self._turn]
        for i, (target, array) in enumerate(zip(block.arrays, arrays)):
            if i in own:
                copy_outside(*own[i], target, array)
            else:
                target[...] = array  # (`numpy.copyto` would first run Python code)
        return block.placed

    def result(self) -> ArrayBlock:
        free = [block for block in self._results if not block.is_lent]
        if not free:
            free.append(ArrayBlock(self._pool, self.kinds))
        # Keep the lent blocks and one free block. Keeping all would retain the memory of a brief peak.
        self._results = [block for block in self._results if block.is_lent] + free[:1]
        return free[0]


def kinds_of(arrays: Sequence[Any]) -> List[Tuple[Tuple[int, ...], np.dtype[Any]]]:
    return [(array.shape, array.dtype) for array in arrays]
