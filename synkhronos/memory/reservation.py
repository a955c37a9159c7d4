"""Pages of a memory file, reserved before they are touched.

A memory file that is longer than the memory behind it can be mapped without
an error, and the first touch of a page that cannot be had ends the process
with SIGBUS. So every range is reserved before anybody sees it.
"""

from __future__ import annotations

import errno
import os
from typing import Optional

from ..errors import SharedMemoryError
from ..host import machine

_PIECE = 8 << 20  # one system call reserves this much: a signal undoes the call it interrupts, never the earlier ones
_SPARE = 32 << 20  # left to the rest of the program: the kernel kills for the last pages instead of refusing them
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT)


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


def in_words(nbytes: int) -> str:
    """Return a number of bytes for people.

    Examples
    --------
    >>> in_words(100), in_words(3 << 30)
    ('100 bytes', '3.0 GiB (3221225472 bytes)')
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {unit} ({nbytes} bytes)"
    return f"{nbytes} bytes"


def _free(fd: int) -> int:
    free = max(0, machine.available_memory() - _SPARE)
    file_system = os.fstatvfs(fd)
    if file_system.f_blocks:  # 0 where the file system has no limit of its own, as for nameless files
        free = min(free, file_system.f_bavail * file_system.f_frsize)
    return free


def _shortage(fd: int, size: int, error: Optional[OSError] = None) -> SharedMemoryError:
    reason = f" ({error.strerror})" if error else ""
    return SharedMemoryError(
        f"shared memory: needed {in_words(size)}, free {in_words(_free(fd))}{reason}: use fewer rows or a smaller "
        "dtype, give other memory back (del, Data.free_memory()), map a file instead of copying it (np.memmap, or the "
        "path of a .npy file), or raise the limit of the container"
    )
