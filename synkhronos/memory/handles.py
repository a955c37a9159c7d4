"""Handles: where an array lies in memory that several processes map; they travel in commands by value."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import numpy as np
from numpy.typing import NDArray


class Handle(NamedTuple):
    """Where an array lies in a pool.

    Attributes
    ----------
    pool : int
        The pool's number.
    offset : int
        Of the first element, in bytes from the start of the pool.
    shape : tuple of int
    strides : tuple of int or None
        In bytes; None if the array is C-contiguous.
    dtype : dtype
    constant : int
        The number, in its pool, of an array that is never written; 0 for others. What a host has fetched of it stays
        right.
    """

    pool: int
    offset: int
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    dtype: np.dtype[Any]
    constant: int = 0


def with_axis_first(handle: Any, axis: int) -> Any:
    """Return the handle, of any kind, of a view with one axis before all others.

    Examples
    --------
    >>> with_axis_first(Handle(0, 0, (2, 3), None, np.dtype("f8")), 1)
    Handle(pool=0, offset=0, shape=(3, 2), strides=(8, 24), dtype=dtype('float64'), constant=0)
    """
    shape, strides = list(handle.shape), handle.strides
    if strides is None:
        steps = [handle.dtype.itemsize]
        for length in shape[:0:-1]:
            steps.insert(0, steps[0] * length)
        strides = steps
    order = [axis, *(other for other in range(len(shape)) if other != axis)]
    return handle._replace(shape=tuple(shape[i] for i in order), strides=tuple(strides[i] for i in order))


class FileHandle(NamedTuple):
    """Where an array lies in a file.

    Attributes
    ----------
    path : str
        Absolute.
    offset, shape, strides, dtype
        As in a `Handle`; the offset is from the start of the file.
    mode : {"r", "r+"}
        How to open the file.
    identity : (int, int)
        Device and inode, so that a file put in its place later is not taken for it.
    length : int
        Of the file, in bytes: touching what was cut off since would end the process.
    sample : bytes
        A hash of some of its pages, by which other hosts know whether theirs is the same; empty if the file is opened
        for writing.
    """

    path: str
    offset: int
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    dtype: np.dtype[Any]
    mode: str
    identity: Tuple[int, int]
    length: int
    sample: bytes = b""


class NameHandle(NamedTuple):
    """A C-contiguous array at the start of shared memory with a POSIX name.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : dtype
    identity : (int, int)
        Device and inode, so that memory made later under the same name is not taken for it.
    """

    name: str
    shape: Tuple[int, ...]
    dtype: np.dtype[Any]
    identity: Tuple[int, int]


def address(array: NDArray[Any]) -> int:
    """Return the address of an array's first element."""
    start: int = array.__array_interface__["data"][0]
    return start


def extent(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], itemsize: int) -> Tuple[int, int]:
    """Return where the memory of an array starts and stops, in bytes from its first element.

    Examples
    --------
    >>> extent((2, 3), None, 4)
    (0, 24)
    >>> extent((3,), (-8,), 8)     # backwards: x[::-1]
    (-16, 8)
    """
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
