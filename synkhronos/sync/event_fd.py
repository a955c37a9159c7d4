"""Linux eventfds. A process can wait for them and for sockets in one ``poll``."""

from __future__ import annotations

import ctypes
import os
import sys

_ONE = (1).to_bytes(8, sys.byteorder)


class EventFd:
    """An eventfd that any process with the descriptor can signal; an existing descriptor ``fd`` is duplicated."""

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
        """Return the descriptor, which is readable while the eventfd is signaled."""
        return self._fd

    def release(self) -> None:
        """Signal the eventfd (see `Semaphore.release`)."""
        os.write(self._fd, _ONE)

    def drain(self) -> None:
        """Reset the eventfd (see `Semaphore.drain`)."""
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            pass
