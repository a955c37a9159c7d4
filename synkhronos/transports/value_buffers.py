"""Where the values of one collective inside a function lie in this rank's shared memory, from call to call.

::

    a few bytes   sources, twice, in turn          every rank reads all sources and makes its own result
    more          sources | results                every rank works out its share of all ranks' results

A source of the first kind is written again at the next collective but one; by then all ranks have read it, as they come
to the collective in between after that. A result of the second kind is what the function goes on with, without a copy:
its memory is used again once nothing refers to it any more.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from ..memory.lending import Lender
from ..memory.pool import Pool
from ..trace import point
from .layouts import Placed

#: The most bytes of which every rank makes its own result: sharing the work would take another barrier.
EACH_REDUCES_BELOW_BYTES = 1 << 16

#: Where arrays begin in a region: at multiples of a cache line.
ALIGNMENT_BYTES = 64


class Region:
    """Arrays one after another in one piece of shared memory.

    Attributes
    ----------
    arrays : list of ndarray
    placed : list of Placed
        The same, as other ranks are told of them.
    """

    def __init__(self, pool: Pool, kinds: Sequence[Tuple[Tuple[int, ...], np.dtype[Any]]]) -> None:
        self._places, nbytes = [], 0
        for shape, dtype in kinds:
            self._places.append((shape, dtype, nbytes))
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            nbytes += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._memory = Lender(pool, nbytes)
        self.arrays = self._views(self._memory.block)
        self.placed = [Placed.at(array, pool.handle(array)) for array in self.arrays]

    def _views(self, block: np.ndarray[Any, Any]) -> List[np.ndarray[Any, Any]]:
        return [np.ndarray(shape, dtype, block, offset) for shape, dtype, offset in self._places]

    @property
    def is_lent(self) -> bool:
        """Whether anything refers to what `lend` has returned."""
        return self._memory.is_lent

    def lend(self) -> List[np.ndarray[Any, Any]]:
        """Return the arrays as new objects, which, and whose views, count as lent as long as they live."""
        return self._views(self._memory.lend())


class ValueBuffers:
    """The memory of one collective on this rank.

    Parameters
    ----------
    pool : Pool
    kinds : list of (shape, dtype)
        Of its arrays.
    label : str
        How messages call it.
    """

    def __init__(self, pool: Pool, kinds: Sequence[Tuple[Tuple[int, ...], np.dtype[Any]]], label: str) -> None:
        self.kinds, self.label, self._pool = kinds, label, pool
        self._sources = [Region(pool, kinds)]
        nbytes = sum(array.nbytes for array in self._sources[0].arrays)
        #: Whether every rank makes its own result.
        self.is_small = nbytes <= EACH_REDUCES_BELOW_BYTES
        self._results: List[Region] = []
        self._turn = 0
        if self.is_small:
            self._sources.append(Region(pool, kinds))

    @point("transport")
    def stage(self, arrays: Sequence[np.ndarray[Any, Any]]) -> List[Placed]:
        """Copy the arrays to where other ranks can read them; return where that is."""
        self._turn = (self._turn + 1) % len(self._sources)
        region = self._sources[self._turn]
        for target, array in zip(region.arrays, arrays):
            np.copyto(target, array)
        return region.placed

    def result(self) -> Region:
        """Return memory for the results, to which nothing refers."""
        free = [region for region in self._results if not region.is_lent]
        if not free:
            free.append(Region(self._pool, self.kinds))
        # Those that were lent may come back, but a program that kept many for a while must not keep their memory.
        self._results = [region for region in self._results if region.is_lent] + free[:1]
        return free[0]


def kinds_of(arrays: Sequence[Any]) -> List[Tuple[Tuple[int, ...], np.dtype[Any]]]:
    """Return shape and dtype of every array."""
    return [(array.shape, array.dtype) for array in arrays]


def participants(weights: Optional[Sequence[float]]) -> Optional[Tuple[bool, ...]]:
    """Return which ranks count in a reduction of any op: those whose weight is not 0; None if all do."""
    return None if weights is None or all(weights) or not any(weights) else tuple([weight > 0 for weight in weights])
