"""Shared memory without a name: a file that exists only through its descriptors.

A name in /dev/shm would outlive a ``kill -9``, and containers limit /dev/shm
to 64 MB; a file of `os.memfd_create` has neither fault. Where there is none, a
POSIX shared memory object is opened and unlinked at once.
"""

from __future__ import annotations

import errno
import os
import secrets
from typing import Optional

from ..errors import SharedMemoryError
from ..host import machine
from ..host.units import readable_bytes

_PIECE = 8 << 20  # one system call reserves this much: a signal undoes the call it interrupts, never the earlier ones
_SPARE = 32 << 20  # left to the rest of the program: the kernel kills for the last pages instead of refusing them
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT)


def nameless_file(label: str, size: int) -> int:
    """Create a file of ``size`` bytes in memory, readable and writable by its owner alone.

    Nothing is reserved yet: use `os.posix_fallocate` before a range is touched.

    Parameters
    ----------
    label : str
        Shown by ``ls -l /proc/<pid>/fd``; need not be unique.
    size : int
        Bytes.

    Returns
    -------
    int
        A descriptor, which executed programs do not inherit.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("synkhronos-" + label, os.MFD_CLOEXEC)
    else:
        import posix_ipc

        memory = posix_ipc.SharedMemory("/synkhronos-" + secrets.token_hex(8), posix_ipc.O_CREX, mode=0o600)
        memory.unlink()
        fd = memory.fd
        os.set_inheritable(fd, False)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def reserve(fd: int, start: int, size: int, check: bool = True) -> None:
    """Reserve the pages of a range of a memory file.

    Parameters
    ----------
    fd : int
        The memory file.
    start, size : int
        The range, in bytes. The pages it shares with neighbours may be reserved already.
    check : bool
        Compare with the memory of the machine first. A memory file without a name knows no limit of its own: what
        exceeds the memory (or the container's) is not refused by the kernel but ends in a kill.

    Raises
    ------
    SharedMemoryError
        The memory cannot be had. Pages of the range may stay reserved: the caller gives them back.
    """
    if check and size > _free(fd):
        raise _shortage(fd, size)
    for piece in range(start, start + size, _PIECE):
        try:
            os.posix_fallocate(fd, piece, min(_PIECE, start + size - piece))  # repeats by itself after a signal
        except OSError as error:
            if error.errno in _FULL:
                raise _shortage(fd, size, error) from None
            raise


def _free(fd: int) -> int:
    free = max(0, machine.available_memory() - _SPARE)
    file_system = os.fstatvfs(fd)
    if file_system.f_blocks:  # 0 where the file system has no limit of its own, as for nameless files
        free = min(free, file_system.f_bavail * file_system.f_frsize)
    return free


def _shortage(fd: int, size: int, error: Optional[OSError] = None) -> SharedMemoryError:
    reason = f" ({error.strerror})" if error else ""
    return SharedMemoryError(
        f"shared memory: needed {readable_bytes(size)}, free {readable_bytes(_free(fd))}{reason}: use fewer rows or a "
        "smaller dtype, give other memory back (del, Data.free_memory()), map a file instead of copying it "
        "(np.memmap, or the path of a .npy file), or raise the limit of the container"
    )
