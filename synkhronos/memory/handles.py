"""Handles: where an array lies in memory that several processes map; they travel in commands by value."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import numpy as np


class Handle(NamedTuple):
    """Where an array lies in a pool; `strides` is None for a C-contiguous one."""

    pool: int
    offset: int
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    dtype: np.dtype[Any]

    def __reduce__(self) -> Any:
        # NumPy pickles even float32 as a class and a state, which takes most of a command's time.
        dtype = self.dtype.str if self.dtype.isbuiltin == 1 else self.dtype
        return _handle, (self.pool, self.offset, self.shape, self.strides, dtype)


def _handle(pool: int, offset: int, shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], dtype: Any) -> Handle:
    return Handle(pool, offset, shape, strides, np.dtype(dtype))


class FileHandle(NamedTuple):
    """Where an array lies in a file; travels in commands.

    `identity` is device and inode, so that a file put in its place later is not taken for it; `length` is that of the
    file, for to touch what was cut off since would end the process.
    """

    path: str
    offset: int
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    dtype: np.dtype[Any]
    mode: str
    identity: Tuple[int, int]
    length: int


class NameHandle(NamedTuple):
    """A C-contiguous array at the start of a named segment; travels in commands.

    `identity` is device and inode, so that a segment made later under the same name is not taken for it.
    """

    name: str
    shape: Tuple[int, ...]
    dtype: np.dtype[Any]
    identity: Tuple[int, int]


def address(array: np.ndarray) -> int:
    """Return the address of an array's first element."""
    start: int = array.__array_interface__["data"][0]
    return start


def extent(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], itemsize: int) -> Tuple[int, int]:
    """Return where the memory of an array starts and stops, in bytes from its first element."""
    low, high = 0, itemsize
    if strides is None:
        for size in shape:
            high *= size
        return 0, high
    for size, stride in zip(shape, strides):
        if stride < 0:
            low += stride * (size - 1)
        else:
            high += stride * (size - 1)
    return low, high
