"""A bell wakes a process that waits for it and for sockets at once, in ``poll``: Linux's eventfd."""

from __future__ import annotations

import ctypes
import os
import sys

_ONE = (1).to_bytes(8, sys.byteorder)


class Bell:
    """What one process waits for, and any that have its descriptor ring.

    Parameters
    ----------
    fd : int, optional
        The descriptor of a bell, which the caller may close afterwards; a new one by default.
    """

    def __init__(self, fd: int = -1) -> None:
        if fd >= 0:
            self._fd = os.dup(fd)
            return
        self._fd = ctypes.CDLL(None, use_errno=True).eventfd(0, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "eventfd: " + os.strerror(ctypes.get_errno()))

    def __del__(self) -> None:
        if self.__dict__.get("_fd", -1) >= 0:
            os.close(self._fd)

    def fileno(self) -> int:
        """Return the descriptor; there is something to read as long as it has rung."""
        return self._fd

    def release(self) -> None:
        """Ring; named as of a `Semaphore`, whose place it takes."""
        os.write(self._fd, _ONE)

    def drain(self) -> None:
        """Have it not have rung; named likewise."""
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            pass
