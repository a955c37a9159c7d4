"""Shared memory without a name: a file that exists only through its descriptors, and the reservation of its pages.

A name in /dev/shm would outlive a ``kill -9``, and containers limit /dev/shm to 64 MB; a file of `os.memfd_create` has
neither fault. If the system has none, a POSIX shared memory object is opened and unlinked at once.

A memory file that is longer than the memory behind it can be mapped without an error, and the first touch of a page
that is not available ends the process with SIGBUS. So every range is reserved before it is used.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from typing import Optional

from ..errors import SharedMemoryError
from ..host import machine
from ..host.units import readable_bytes

#: Bytes reserved by one system call: a signal undoes the call that it interrupts, but none of the earlier ones.
_PIECE_BYTES = 8 << 20
#: Bytes left to the rest of the program: the kernel kills for the last pages instead of refusing them.
_SPARE_BYTES = 32 << 20
_FULL_ERRNOS = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT)


def nameless_file(label: str, size: int = 0) -> int:
    """Create a file in memory, readable and writable by its owner alone, with all its pages reserved.

    Parameters
    ----------
    label : str
        Shown by ``ls -l /proc/<pid>/fd``; need not be unique.
    size : int
        Bytes. A file may be made longer later; call `reserve` before a range beyond `size` is touched.

    Returns
    -------
    int
        A descriptor, which executed programs do not inherit.

    Raises
    ------
    SharedMemoryError
        The memory cannot be allocated.
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
        if size:
            reserve(fd, 0, size)
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
        The range, in bytes. The pages that it shares with its neighbours may be reserved already.
    check : bool
        Compare with the memory of the machine first. A memory file without a name has no limit of its own: the kernel
        does not refuse what exceeds the memory (or the container's) but kills the process later.

    Raises
    ------
    SharedMemoryError
        The memory cannot be allocated. Pages of the range may stay reserved: the caller gives them back.
    """
    if check:
        check_free(fd, size)
    for piece in range(start, start + size, _PIECE_BYTES):
        try:
            os.posix_fallocate(fd, piece, min(_PIECE_BYTES, start + size - piece))  # repeats itself after a signal
        except OSError as error:
            if error.errno in _FULL_ERRNOS:
                raise _shortage(fd, size, error) from None
            raise


def give_back(fd: int, start: int, stop: int) -> None:
    """Give the memory of a range back, which nobody reads any more, nor what is before it on the same page.

    The file keeps its length; the page that the range ends on stays.
    """
    first, last = start // mmap.PAGESIZE * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        with mmap.mmap(fd, last - first, offset=first) as mapping:
            mapping.madvise(mmap.MADV_REMOVE)


def check_free(fd: int, size: int) -> None:
    """Raise `SharedMemoryError` if the machine has no memory for so many more bytes of a memory file."""
    if size > _free(fd):
        raise _shortage(fd, size)


def _free(fd: int) -> int:
    free = max(0, machine.available_memory() - _SPARE_BYTES)
    file_system = os.fstatvfs(fd)
    if file_system.f_blocks:  # 0 if the file system has no limit of its own, as for files without a name
        free = min(free, file_system.f_bavail * file_system.f_frsize)
    return free


def _shortage(fd: int, size: int, error: Optional[OSError] = None) -> SharedMemoryError:
    reason = f" ({error.strerror})" if error else ""
    return SharedMemoryError(
        f"shared memory: needed {readable_bytes(size)}, free {readable_bytes(_free(fd))}{reason}: use fewer rows or a "
        "smaller dtype, give other memory back (del, Data.free_memory()), map a file instead of copying it "
        "(np.memmap, or the path of a .npy file), or raise the limit of the container"
    )
