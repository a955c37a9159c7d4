"""Arrays in files, which every rank maps and none copies."""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentTypeError, ArgumentValueError
from .handles import FileHandle, address

#: Pages whose content is compared between hosts, and their size.
_SAMPLED_PAGES, _PAGE_BYTES = 16, 4096

_TO_OTHER_HOSTS = "put it where all hosts see it, or a copy at the same path on each"


def is_mapped(array: NDArray[Any]) -> bool:
    """Return whether an array is a ``np.memmap`` with elements, or a view of one, not the result of a computation.

    Examples
    --------
    >>> is_mapped(np.zeros(3))
    False
    """
    return isinstance(array, np.memmap) and array.size > 0 and _root(array) is not None


def describe(array: NDArray[Any]) -> FileHandle:
    """Return the handle of a ``np.memmap`` or of a view of one.

    Parameters
    ----------
    array : np.ndarray
        One for which `is_mapped` is true; any slice, any order.

    Raises
    ------
    ArgumentTypeError
        The array is not mapped.
    ArgumentValueError
        Another process cannot map the same: the mapping is private (mode "c"), or its file has no name (any more).
    """
    root = _root(array)
    if root is None:
        raise ArgumentTypeError("value", "an np.memmap or a view of one", "an array with memory of its own")
    if root.mode == "c":
        raise ArgumentValueError(
            "value",
            "an np.memmap that the other ranks can map",
            "one of mode 'c', whose changes no other process can see",
            "open it with mode 'r' or 'r+', or pass np.array(value), which copies it",
        )
    path = "" if root.filename is None else os.path.abspath(os.fspath(root.filename))
    if not os.path.exists(path) or _deleted(address(root), path):
        raise ArgumentValueError(
            "value",
            "an np.memmap that the other ranks can map",
            f"one of a file that cannot be found any more ({root.filename})",
            "keep the file, or pass np.array(value), which copies it",
        )
    # A view has the `offset` attribute of the array that it was taken from, so its place follows from the addresses.
    offset = root.offset + address(array) - address(root)
    strides = None if array.flags.c_contiguous else array.strides
    mode = "r+" if array.flags.writeable else "r"
    stat = os.stat(path)
    sample = b""
    if mode == "r":
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sample = _sample(fd, stat.st_size)
        finally:
            os.close(fd)
    identity = (stat.st_dev, stat.st_ino)
    return FileHandle(path, offset, array.shape, strides, array.dtype, mode, identity, stat.st_size, sample)


def check(handle: FileHandle) -> None:
    """Check that the file is still the one that was mapped.

    Raises
    ------
    ValueError
        It was deleted, replaced or shortened.
    """
    try:
        stat = os.stat(handle.path)
    except OSError as error:
        raise ValueError(f"cannot reach the mapped file {handle.path}: {error.strerror}; keep it in place") from None
    _compare(handle, stat)


def open_mapping(handle: FileHandle, elsewhere: bool = False) -> mmap.mmap:
    """Map the whole file of a handle.

    Parameters
    ----------
    handle : FileHandle
    elsewhere : bool
        Whether the handle comes from another host, which knows the same file, or a copy, by other numbers.

    Raises
    ------
    ValueError
        It was deleted, replaced or shortened, or may not be opened; elsewhere, it is not the same.
    """
    writes = handle.mode == "r+"
    try:
        fd = os.open(handle.path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError as error:
        what = _TO_OTHER_HOSTS if elsewhere else "keep it in place"
        raise ValueError(f"cannot map the file {handle.path}: {error.strerror}; {what}") from None
    try:
        stat = os.fstat(fd)
        if not elsewhere:
            _compare(handle, stat)
        elif stat.st_size < handle.length or handle.sample not in (b"", _sample(fd, handle.length)):
            raise ValueError(
                f"the file {handle.path} is not the same as on the program's host ({stat.st_size} bytes here, "
                f"{handle.length} there): {_TO_OTHER_HOSTS}"
            )
        return mmap.mmap(fd, 0, access=mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ)
    finally:
        os.close(fd)


def _sample(fd: int, length: int) -> bytes:
    """Return a hash of pages all over the first bytes of a file."""
    last = max(0, length - _PAGE_BYTES)
    found = hashlib.blake2b(digest_size=16)
    for i in range(_SAMPLED_PAGES):
        found.update(os.pread(fd, _PAGE_BYTES, last * i // (_SAMPLED_PAGES - 1)))
    return found.digest()


def _compare(handle: FileHandle, stat: os.stat_result) -> None:
    if (stat.st_dev, stat.st_ino) != handle.identity:
        raise ValueError(f"the file {handle.path} was replaced after it was mapped: make the Data again")
    if stat.st_size < handle.length:
        raise ValueError(
            f"the file {handle.path} had {handle.length} bytes when it was mapped and has {stat.st_size} now: "
            "make the Data again"
        )


def _root(array: NDArray[Any]) -> Optional[np.memmap[Any, Any]]:
    """Return the array that np.memmap itself made; None if the memory is not that of a file."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) else None


def _deleted(position: int, path: str) -> bool:
    """Return whether the file mapped at an address has lost its name, by the kernel's account (False if it has none).

    A look at the path is not enough: another file may have that path now.
    """
    mark = " (deleted)"
    if path.endswith(mark):  # part of the name, even before it is lost
        mark += mark
    try:
        with open("/proc/self/maps", errors="replace") as lines:
            for line in lines:
                start, _, stop = line.split(" ", 1)[0].partition("-")
                if int(start, 16) <= position < int(stop, 16):
                    return line.rstrip("\n").endswith(mark)
    except OSError:
        pass
    return False
