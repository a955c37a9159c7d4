"""Byte ranges in pools, for transfers between hosts."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from .handles import Handle, extent


class Ranges(NamedTuple):
    """Byte ranges in one pool."""

    pool: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    constant: int = 0  # the array's number if the ranges cover a whole array that is never written; else 0

    @property
    def nbytes(self) -> int:
        return int((self.stops - self.starts).sum())

    def of(self, memory: Any) -> List[Any]:
        """Return these ranges as slices of a buffer over the pool."""
        return [memory[start:stop] for start, stop in zip(self.starts.tolist(), self.stops.tolist())]

    def __hash__(self) -> int:
        return hash((self.pool, self.starts.tobytes(), self.stops.tobytes()))

    def __eq__(self, other: Any) -> bool:
        return (
            type(other) is Ranges
            and self.pool == other.pool
            and np.array_equal(self.starts, other.starts)
            and np.array_equal(self.stops, other.stops)
        )

    def __ne__(self, other: Any) -> bool:
        return not self == other


def ranges_of(handle: Handle, rows: Optional[NDArray[np.int64]] = None) -> Ranges:
    """Return the byte ranges of an array, or of ``rows`` (indices >= 0, in any order) unless the array is constant.

    >>> ranges_of(Handle(3, 800, (100, 2), None, np.dtype("f8")), np.array([7, 5, 4, 5]))
    Ranges(pool=3, starts=array([864, 912]), stops=array([896, 928]), constant=0)
    """
    if 0 in handle.shape or (rows is not None and not len(rows)):
        return Ranges(handle.pool, np.zeros(0, np.int64), np.zeros(0, np.int64))
    if rows is None or handle.constant:
        low, high = extent(handle.shape, handle.strides, handle.dtype.itemsize)
        starts, stops = np.array([handle.offset + low]), np.array([handle.offset + high])
        return Ranges(handle.pool, starts, stops, handle.constant)
    of_row = handle._replace(shape=handle.shape[1:], strides=None if handle.strides is None else handle.strides[1:])
    low, high = extent(of_row.shape, of_row.strides, handle.dtype.itemsize)
    step = high if handle.strides is None else handle.strides[0]
    starts = np.unique(rows).astype(np.int64) * step + handle.offset + low
    starts.sort()
    stops = starts + (high - low)
    apart = np.flatnonzero(starts[1:] > stops[:-1])
    ends = np.append(apart, len(starts) - 1)
    return Ranges(handle.pool, starts[np.insert(apart + 1, 0, 0)], np.maximum.accumulate(stops)[ends])


def by_pool(parts: Iterable[Ranges]) -> List[Ranges]:
    """Merge the ranges of each pool, and of each constant in it; return them sorted and without duplicates."""
    found: Dict[Tuple[int, int], List[Ranges]] = {}
    for part in parts:
        if len(part.starts):
            found.setdefault((part.pool, part.constant), []).append(part)
    return [_together(of_one) for _, of_one in sorted(found.items())]


def _together(parts: Sequence[Ranges]) -> Ranges:
    if len(parts) == 1:
        return parts[0]
    pairs = np.unique(
        np.stack([np.concatenate([part.starts for part in parts]), np.concatenate([part.stops for part in parts])]),
        axis=1,
    )
    return Ranges(parts[0].pool, pairs[0].copy(), pairs[1].copy(), parts[0].constant)
