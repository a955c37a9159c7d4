"""The shared memory of a host, as the process that speaks for it has it: pools of its ranks, and shadows of others."""

from __future__ import annotations

import mmap
import os
from typing import List, Tuple

from ...memory import memfd
from ...memory.pool import WINDOW_BYTES
from ...memory.ranges import Ranges

#: Bytes that are reserved without a look at the machine's memory.
CHECK_FROM_BYTES = 1 << 20


class HostMemory:
    """A pool or a shadow as bytes, mapped as far as was needed."""

    def __init__(self, fd: int) -> None:
        self._fd, self._map = os.dup(fd), memoryview(b"")

    def __del__(self) -> None:
        os.close(self._fd)

    def write(self, content: memoryview, start: int) -> None:
        """Write bytes, whose pages need not be there.

        Raises
        ------
        OSError
            There is no memory for them. (Through the mapping that would end the process.)
        """
        while len(content):
            written = os.pwrite(self._fd, content, start)
            content, start = content[written:], start + written

    def missing(self, ranges: Ranges) -> int:
        """Return how many bytes of ranges have no page yet, about."""
        return sum(stop - start for start, stop in self._holes(ranges))

    def check_free(self, nbytes: int) -> None:
        """Raise `SharedMemoryError` if this host has no memory for so many more bytes."""
        memfd.check_free(self._fd, nbytes)

    def reserve(self, ranges: Ranges) -> None:
        """Have pages for ranges, so that they can be written to.

        Raises
        ------
        OSError, SharedMemoryError
            There is no memory for them.
        """
        holes = self._holes(ranges)
        nbytes = sum(stop - start for start, stop in holes)
        if nbytes >= CHECK_FROM_BYTES:
            self.check_free(nbytes)
        for start, stop in holes:
            os.posix_fallocate(self._fd, start, stop - start)

    def _holes(self, ranges: Ranges) -> List[Tuple[int, int]]:
        """Return the ranges without what they have pages for at their beginning."""
        found = []
        for start, stop in zip(ranges.starts.tolist(), ranges.stops.tolist()):
            hole = os.lseek(self._fd, start, os.SEEK_HOLE)
            if hole < stop:
                found.append((hole, stop))
        return found

    def up_to(self, stop: int) -> memoryview:
        """Return its bytes, at least so many."""
        if stop > len(self._map):
            size = os.fstat(self._fd).st_size
            self._map = memoryview(mmap.mmap(self._fd, min(size, max(1 << 30, 1 << stop.bit_length()))))
        return self._map


def shadow(fd: int) -> int:
    """Make a nameless file one that has the places of a pool; return it."""
    size = WINDOW_BYTES
    while True:
        try:
            os.ftruncate(fd, size)
            return fd
        except OSError:  # a limit of this process (ulimit -f)
            size //= 2
            if not size:
                raise
