"""Locks that a death cannot leave locked: the kernel's, on a byte of a file that all ranks have.

They belong to an open file description (``F_OFD_SETLK``), of which every rank opens its own. The kernel releases a lock
when its description is closed, at the latest when the process ends, however that comes about. So no rank needs to find
out whether the holder of a lock still lives. See ``fcntl(2)``, "Open file description locks".
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

#: Linux's number, the same for all processors; Python has a name for it from version 3.9 on.
_F_OFD_SETLK = 37


class FileLock:
    """A lock that one holder at a time has, in this process or in others.

    Parameters
    ----------
    fd : int
        A descriptor of an open file description that nobody else has; it belongs to the lock from now on.
    position : int
        The byte of the file: locks of different bytes are different locks. The byte itself is not touched.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     one, other = (FileLock(os.open(file.name, os.O_RDWR), 0) for _ in range(2))
    ...     print(one.try_acquire(), other.try_acquire())
    ...     one.close()                             # as the end of its process would
    ...     print(other.try_acquire())
    ...     other.close()
    True False
    True
    """

    def __init__(self, fd: int, position: int) -> None:
        self._fd, self._position = fd, position

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; return whether this one has it now."""
        try:
            self._set(fcntl.F_WRLCK)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def release(self) -> None:
        """Give the lock back; if it is not held, nothing happens."""
        self._set(fcntl.F_UNLCK)

    def close(self) -> None:
        """Give the lock back, for good. May be called again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _set(self, kind: int) -> None:
        fcntl.fcntl(self._fd, _F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, self._position, 1, 0))
