"""A serving process's access to shared memory: the pools of its host, and shadows (partial copies) of remote pools."""

from __future__ import annotations

import mmap
import os
from typing import List, Tuple

from ..memory import memfd
from ..memory.pool import WINDOW_BYTES
from ..memory.ranges import Ranges

CHECK_FROM_BYTES = 1 << 20  # minimum size of a reservation that first checks the host's free memory


class HostMemory:
    """Memory of a pool, or of a partial copy of another host's pool, as bytes, mapped on demand."""

    def __init__(self, fd: int) -> None:
        self._fd, self._map = os.dup(fd), memoryview(b"")

    def __del__(self) -> None:
        os.close(self._fd)

    def write(self, content: memoryview, start: int) -> None:
        """Write bytes with system calls, which raise `OSError` if memory is full; the mapping would raise SIGBUS."""
        while len(content):
            written = os.pwrite(self._fd, content, start)
            content, start = content[written:], start + written

    def missing(self, ranges: Ranges) -> int:
        """Return approximately how many bytes of the ranges have no allocated page."""
        return sum(stop - start for start, stop in self._holes(ranges))

    def check_free(self, nbytes: int) -> None:
        """Raise `SharedMemoryError` if this host has too little memory for ``nbytes`` more bytes."""
        memfd.check_free(self._fd, nbytes)

    def reserve(self, ranges: Ranges) -> None:
        """Allocate pages for the ranges; raise `OSError` or `SharedMemoryError` if there is too little memory."""
        holes = self._holes(ranges)
        nbytes = sum(stop - start for start, stop in holes)
        if nbytes >= CHECK_FROM_BYTES:
            self.check_free(nbytes)
        for start, stop in holes:
            os.posix_fallocate(self._fd, start, stop - start)

    def _holes(self, ranges: Ranges) -> List[Tuple[int, int]]:
        """Return the ranges that are not fully allocated, each without the allocated part at its start."""
        found = []
        for start, stop in zip(ranges.starts.tolist(), ranges.stops.tolist()):
            hole = os.lseek(self._fd, start, os.SEEK_HOLE)
            if hole < stop:
                found.append((hole, stop))
        return found

    def up_to(self, stop: int) -> memoryview:
        """Return a view of the memory's bytes, from the start to at least ``stop``."""
        if stop > len(self._map):
            size = os.fstat(self._fd).st_size
            self._map = memoryview(mmap.mmap(self._fd, min(size, max(1 << 30, 1 << stop.bit_length()))))
        return self._map


def shadow(fd: int) -> int:
    """Resize an unnamed file to `WINDOW_BYTES`, or to less if a limit requires it; return its descriptor."""
    size = WINDOW_BYTES
    while True:
        try:
            os.ftruncate(fd, size)
            return fd
        except OSError:  # a limit of this process (ulimit -f)
            size //= 2
            if not size:
                raise
