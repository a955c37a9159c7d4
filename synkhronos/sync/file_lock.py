"""File locks that the kernel releases when their owner dies.

A lock belongs to an open file description (``F_OFD_SETLK`` in ``fcntl(2)``), and every owner opens its own
description. The kernel releases the lock when the description is closed, at the latest when the process ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_F_OFD_SETLK = 37  # Linux's constant on all processors; available in the fcntl module since Python 3.9


class FileLock:
    """An exclusive lock on the byte of a file at ``position``, between threads or processes.

    The byte is not accessed. The lock owns ``fd``; its open file description must be used for nothing else.
    """

    def __init__(self, fd: int, position: int) -> None:
        self._fd, self._position = fd, position

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether this object now owns it."""
        try:
            self._set(fcntl.F_WRLCK)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def release(self) -> None:
        self._set(fcntl.F_UNLCK)

    def close(self) -> None:
        """Release the lock permanently; idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _set(self, kind: int) -> None:
        fcntl.fcntl(self._fd, _F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, self._position, 1, 0))
