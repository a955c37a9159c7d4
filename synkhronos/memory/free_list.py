"""Which ranges of an address window are free."""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import Iterator, List, Optional, Tuple


class FreeList:
    """The free ranges of ``[0, size)``, sorted, none empty and no two of them touching.

    Parameters
    ----------
    size : int
        Length of the window; all of it is free at the start.

    Examples
    --------
    >>> free = FreeList(100)
    >>> free.take(60), free.take(60), free.take(40)
    (0, None, 60)
    >>> free.give(0, 60)
    (0, 60)
    >>> list(free)
    [(0, 60)]
    """

    def __init__(self, size: int) -> None:
        self._ranges: List[Tuple[int, int]] = [(0, size)]

    def __iter__(self) -> Iterator[Tuple[int, int]]:
        """Iterate over the free ranges as ``(start, stop)``, lowest first."""
        return iter(list(self._ranges))

    def take(self, size: int) -> Optional[int]:
        """Take `size` out of the lowest range that is long enough (first fit, so that the window stays compact).

        Parameters
        ----------
        size : int
            Length to take, at least 1.

        Returns
        -------
        int or None
            Where it starts; None if no range is long enough.
        """
        for index, (start, stop) in enumerate(self._ranges):
            if stop - start >= size:
                self._replace(index, index + 1, (start + size, stop))
                return start
        return None

    def take_at(self, start: int, size: int) -> None:
        """Take a range that is free.

        Parameters
        ----------
        start, size : int

        Raises
        ------
        ValueError
            Some of it is taken, or it is not in the window.
        """
        index = bisect_right(self._ranges, (start, inf)) - 1
        if index < 0 or self._ranges[index][1] < start + size:
            raise ValueError(f"the range of {size} from {start} on is not free")
        low, high = self._ranges[index]
        self._replace(index, index + 1, (low, start), (start + size, high))

    def give(self, start: int, size: int) -> Tuple[int, int]:
        """Give a taken range back and join it with the free ranges that it touches.

        Parameters
        ----------
        start, size : int
            The range, as it was taken.

        Returns
        -------
        (int, int)
            Start and stop of the free range that it is now part of.
        """
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
        """Put other ranges, those that are not empty, in the place of some: in one step, as Ctrl-C may come at any."""
        self._ranges[first:last] = [each for each in ranges if each[0] < each[1]]
