"""The free ranges of an address window."""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import Iterator, List, Optional, Tuple


class FreeList:
    """The free ranges of ``[0, size)``: sorted, non-empty and never adjacent."""

    def __init__(self, size: int) -> None:
        self._ranges: List[Tuple[int, int]] = [(0, size)]

    def __iter__(self) -> Iterator[Tuple[int, int]]:
        """Iterate over the free ranges as ``(start, stop)``, lowest first."""
        return iter(list(self._ranges))

    def allocate(self, size: int) -> Optional[int]:
        """Allocate from the lowest sufficient range, to stay compact; return its start, or None if there is none."""
        for index, (start, stop) in enumerate(self._ranges):
            if stop - start >= size:
                self._replace(index, index + 1, (start + size, stop))
                return start
        return None

    def take_at(self, start: int, size: int) -> None:
        """Remove a given range; raise `ValueError` if it is not completely free."""
        index = bisect_right(self._ranges, (start, inf)) - 1
        if index < 0 or self._ranges[index][1] < start + size:
            raise ValueError(f"the range of size {size} at {start} is not free")
        low, high = self._ranges[index]
        self._replace(index, index + 1, (low, start), (start + size, high))

    def free(self, start: int, size: int) -> Tuple[int, int]:
        """Add a range and merge it with adjacent free ranges; return the start and stop of the merged range."""
        low, high = start, start + size
        first = last = bisect_right(self._ranges, (start, inf))
        if last < len(self._ranges) and self._ranges[last][0] == high:
            high = self._ranges[last][1]
            last += 1
        if first > 0 and self._ranges[first - 1][1] == low:
            first -= 1
            low = self._ranges[first][0]
        self._replace(first, last, (low, high))
        return low, high

    def _replace(self, first: int, last: int, *ranges: Tuple[int, int]) -> None:
        """Replace free ranges with the nonempty ``ranges`` in a single step, which Ctrl-C cannot interrupt."""
        self._ranges[first:last] = [each for each in ranges if each[0] < each[1]]
