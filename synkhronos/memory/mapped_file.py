"""Arrays in files that every rank maps without a copy."""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentTypeError, ArgumentValueError
from .handles import FileHandle, address

_SAMPLED_PAGES, _PAGE_BYTES = 16, 4096  # number and size of the pages that hosts compare

_TO_OTHER_HOSTS = "put the file on a file system shared by all hosts, or copy it to the same path on each host"


def is_mapped(array: NDArray[Any]) -> bool:
    """Return whether an array is a non-empty ``np.memmap`` or a view of one, not the result of a computation."""
    return isinstance(array, np.memmap) and array.size > 0 and _root(array) is not None


def describe(array: NDArray[Any]) -> FileHandle:
    """Return the handle of an ``np.memmap`` or of any view of one (see `is_mapped`).

    Raise `ArgumentValueError` if other processes cannot map the same memory: the mapping is private (mode "c"), or its
    file was deleted.
    """
    root = _root(array)
    if root is None:
        raise ArgumentTypeError("value", "an np.memmap or a view of one", "an array that is not mapped")
    if root.mode == "c":
        raise ArgumentValueError(
            "value",
            "an np.memmap that the other ranks can map",
            "an np.memmap in mode 'c', whose changes are private to this process",
            "open it with mode 'r' or 'r+', or pass np.array(value), which copies it",
        )
    path = "" if root.filename is None else os.path.abspath(os.fspath(root.filename))
    if not os.path.exists(path) or _deleted(address(root), path):
        raise ArgumentValueError(
            "value",
            "an np.memmap that the other ranks can map",
            f"an np.memmap whose file can no longer be found ({root.filename or 'unknown path'})",
            "keep the file, or pass np.array(value), which copies it",
        )
    # A view inherits the `offset` attribute of its base, so its position is computed from the addresses.
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
    """Raise `ValueError` if the mapped file was deleted, replaced or shortened."""
    try:
        stat = os.stat(handle.path)
    except OSError as error:
        raise ValueError(f"cannot find the mapped file {handle.path}: {error.strerror}; restore it") from None
    _compare(handle, stat)


def open_mapping(handle: FileHandle, elsewhere: bool = False) -> mmap.mmap:
    """Map the whole file of a handle; raise `ValueError` if it was deleted, replaced or shortened, or cannot be opened.

    ``elsewhere``: the handle is from another host, where device and inode differ, so the content is compared instead.
    """
    writes = handle.mode == "r+"
    try:
        fd = os.open(handle.path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError as error:
        what = _TO_OTHER_HOSTS if elsewhere else "restore access to it"
        raise ValueError(f"cannot map the file {handle.path}: {error.strerror}; {what}") from None
    try:
        stat = os.fstat(fd)
        if not elsewhere:
            _compare(handle, stat)
        elif stat.st_size < handle.length or handle.sample not in (b"", _sample(fd, handle.length)):
            raise ValueError(
                f"the file {handle.path} differs from the one on the program's host ({stat.st_size} bytes here, "
                f"{handle.length} there): {_TO_OTHER_HOSTS}"
            )
        return mmap.mmap(fd, 0, access=mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ)
    finally:
        os.close(fd)


def _sample(fd: int, length: int) -> bytes:
    """Return a hash of pages spread over the first ``length`` bytes of a file."""
    last = max(0, length - _PAGE_BYTES)
    found = hashlib.blake2b(digest_size=16)
    for i in range(_SAMPLED_PAGES):
        found.update(os.pread(fd, _PAGE_BYTES, last * i // (_SAMPLED_PAGES - 1)))
    return found.digest()


def _compare(handle: FileHandle, stat: os.stat_result) -> None:
    if (stat.st_dev, stat.st_ino) != handle.identity:
        raise ValueError(f"the file {handle.path} was replaced after it was mapped: create the Data again")
    if stat.st_size < handle.length:
        raise ValueError(
            f"the file {handle.path} had {handle.length} bytes when it was mapped and has {stat.st_size} now: "
            "create the Data again"
        )


def _root(array: NDArray[Any]) -> Optional[np.memmap[Any, Any]]:
    """Return the array that np.memmap itself created; None if the memory is not in a file."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) else None


def _deleted(position: int, path: str) -> bool:
    """Return whether the file mapped at an address was unlinked (False if unknown); its path may name a new file."""
    mark = " (deleted)"
    if path.endswith(mark):  # part of the original name
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
