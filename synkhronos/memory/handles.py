"""Handles: the locations of arrays in shared memory or files, sent by value in commands."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import numpy as np
from numpy.typing import NDArray


class Handle(NamedTuple):
    """The location of an array in a pool."""

    pool: int
    offset: int  # of the first element, in bytes
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]  # in bytes; None if the array is C-contiguous
    dtype: np.dtype[Any]
    constant: int = 0  # number of an array that is never written, so that fetched copies stay valid; else 0
    on_device: bool = False  # whether ranks on JAX's devices keep a copy of the constant array there


def with_axis_first(handle: Any, axis: int) -> Any:
    """Return the handle (of any type) of a view with one axis moved to the front."""
    shape, strides = list(handle.shape), handle.strides
    if strides is None:
        steps = [handle.dtype.itemsize]
        for length in shape[:0:-1]:
            steps.insert(0, steps[0] * length)
        strides = steps
    order = [axis, *(other for other in range(len(shape)) if other != axis)]
    return handle._replace(shape=tuple(shape[i] for i in order), strides=tuple(strides[i] for i in order))


class FileHandle(NamedTuple):
    """The location of an array in a file."""

    path: str  # absolute
    offset: int  # from the start of the file
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    dtype: np.dtype[Any]
    mode: str  # "r" or "r+"
    identity: Tuple[int, int]  # device and inode, to detect a replaced file
    length: int  # of the file in bytes, because accessing a part that was cut off would kill the process
    sample: bytes = b""  # a hash of some pages, to compare with another host's file; empty for mode "r+"


class NameHandle(NamedTuple):
    """The location of a C-contiguous array at the start of shared memory with a POSIX name."""

    name: str
    shape: Tuple[int, ...]
    dtype: np.dtype[Any]
    identity: Tuple[int, int]  # device and inode, to detect newer memory with the same name


def address(array: NDArray[Any]) -> int:
    start: int = array.__array_interface__["data"][0]
    return start


def extent(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], itemsize: int) -> Tuple[int, int]:
    """Return the start and stop of an array's memory, in bytes relative to its first element.

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
