"""Shared memory with a POSIX name that unrelated programs can open."""

from __future__ import annotations

import mmap
import os
import re
import weakref
from typing import Any, Tuple

import numpy as np
import posix_ipc
from numpy.typing import NDArray

from ..errors import ArgumentTypeError, ArgumentValueError
from .handles import NameHandle
from .memfd import reserve


class NamedMemory:
    """A new segment of shared memory, mode 0600, named until `unlink`, garbage collection or exit.

    ``memory`` (its bytes, initially 0) exists while any process has an array that uses it. The size is fixed because
    other processes may have mapped the segment. Raise `SharedMemoryError`, without side effects, if memory is short.
    """

    def __init__(self, name: str, nbytes: int) -> None:
        if not isinstance(name, str):
            raise ArgumentTypeError("share_as", "a str like '/name'", repr(name))
        if not re.fullmatch(r"/[^/\0]{1,254}", name):
            raise ArgumentValueError("share_as", "'/' followed by 1 to 254 characters other than '/'", repr(name))
        try:
            segment = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
        except posix_ipc.ExistentialError:
            raise ArgumentValueError(
                "share_as",
                "a name that is not in use",
                f"{name!r}, which already exists",
                "choose another name, or end the program that created it; if it has died, remove the name: "
                f"posix_ipc.unlink_shared_memory({name!r})",
            ) from None
        self.name = name
        try:
            size = max(1, nbytes)  # a length of 0 cannot be mapped
            os.ftruncate(segment.fd, size)
            reserve(segment.fd, 0, size)
            self.memory: NDArray[Any] = np.ndarray((nbytes,), np.uint8, mmap.mmap(segment.fd, size))
            self._identity = _identity(segment.fd)
            self._unlink = weakref.finalize(self, _unlink, name, self._identity, os.getpid())
        except BaseException:
            segment.unlink()
            raise
        finally:
            segment.close_fd()

    @property
    def linked(self) -> bool:
        return self._unlink.alive

    def handle(self, array: NDArray[Any]) -> NameHandle:
        """Return the handle of a C-contiguous array at the start of the segment."""
        return NameHandle(self.name, array.shape, array.dtype, self._identity)

    def unlink(self) -> None:
        """Remove the name; idempotent."""
        self._unlink()


def open_mapping(handle: NameHandle) -> mmap.mmap:
    """Map the segment of a handle; raise `ValueError` if its name was removed or belongs to another segment."""
    try:
        segment = posix_ipc.SharedMemory(handle.name)
    except (posix_ipc.Error, OSError) as error:
        raise ValueError(f"cannot map the shared memory {handle.name}: {error}") from None
    try:
        if _identity(segment.fd) != handle.identity:
            raise ValueError(f"the shared memory {handle.name} was replaced by another segment: create the Data again")
        return mmap.mmap(segment.fd, 0)
    finally:
        segment.close_fd()


def _identity(fd: int) -> Tuple[int, int]:
    stat = os.fstat(fd)
    return stat.st_dev, stat.st_ino


def _unlink(name: str, identity: Tuple[int, int], owner: int) -> None:
    if os.getpid() != owner:  # a forked child drops its copy of the object, not the name
        return
    try:
        segment = posix_ipc.SharedMemory(name)
    except (posix_ipc.Error, OSError):
        return
    try:
        if _identity(segment.fd) == identity:  # another program may have removed the name and created its own segment
            segment.unlink()
    finally:
        segment.close_fd()
