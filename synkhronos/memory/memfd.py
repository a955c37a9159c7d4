"""Unnamed shared memory: a file that exists only through its descriptors, with reserved pages.

A name in /dev/shm would outlive a ``kill -9``, and containers limit /dev/shm to 64 MB by default. A memory file longer
than the available memory can be mapped without an error, but the first access to an unavailable page kills the process
with SIGBUS. So every range is reserved before use.
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

_PIECE_BYTES = 8 << 20  # bytes reserved by one system call; a signal undoes only the call that it interrupts
#: Memory left for the rest of the program: near the limit, the kernel kills processes instead of reporting an error.
_SPARE_BYTES = 32 << 20
_FULL_ERRNOS = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT)


def nameless_file(label: str, size: int = 0) -> int:
    """Create an unnamed file in memory, with mode 0600 and all pages reserved; return its descriptor.

    ``label`` is shown by ``ls -l /proc/<pid>/fd`` and need not be unique. If the file is extended, call `reserve`
    before using a new range. Raise `SharedMemoryError` if memory is short.
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
    """Reserve the pages of a range of a memory file; pages shared with neighboring ranges may already be reserved.

    With ``check``, first compare the size with the available memory. An unnamed file has no size limit, so the
    kernel would reserve memory that the machine or container lacks, and later kill the process. After a
    `SharedMemoryError`, some pages may stay reserved, and the caller must release them.
    """
    if check:
        check_free(fd, size)
    for piece in range(start, start + size, _PIECE_BYTES):
        try:
            os.posix_fallocate(fd, piece, min(_PIECE_BYTES, start + size - piece))  # Python retries this after a signal
        except OSError as error:
            if error.errno in _FULL_ERRNOS:
                raise _shortage(fd, size, error) from None
            raise


def give_back(fd: int, start: int, stop: int) -> None:
    """Release the memory of a range that is no longer read, including the start of its first page.

    The file keeps its length; the page that contains ``stop`` stays.
    """
    first, last = start // mmap.PAGESIZE * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        with mmap.mmap(fd, last - first, offset=first) as mapping:
            mapping.madvise(mmap.MADV_REMOVE)


def check_free(fd: int, size: int) -> None:
    """Raise `SharedMemoryError` if the machine lacks memory for ``size`` more bytes of a memory file."""
    if size > _free(fd):
        raise _shortage(fd, size)


def _free(fd: int) -> int:
    free = max(0, machine.available_memory() - _SPARE_BYTES)
    file_system = os.fstatvfs(fd)
    if file_system.f_blocks:  # 0 if the file system has no size limit, as for unnamed files
        free = min(free, file_system.f_bavail * file_system.f_frsize)
    return free


def _shortage(fd: int, size: int, error: Optional[OSError] = None) -> SharedMemoryError:
    reason = f" ({error.strerror})" if error else ""
    return SharedMemoryError(
        f"shared memory: needed {readable_bytes(size)}, free {readable_bytes(_free(fd))}{reason}: use fewer rows or a "
        "smaller dtype, free other memory (del, Data.free_memory()), map a file instead of copying it "
        "(np.memmap, or the path of a .npy file), or raise the container's memory limit"
    )
