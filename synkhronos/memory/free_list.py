"""Which ranges of an address window are free."""

from __future__ import annotations

from bisect import bisect_right
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
        self._starts: List[int] = [0]
        self._stops: List[int] = [size]

    def __iter__(self) -> Iterator[Tuple[int, int]]:
        """Iterate over the free ranges as ``(start, stop)``, lowest first."""
        return iter(list(zip(self._starts, self._stops)))

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
        for index, (start, stop) in enumerate(zip(self._starts, self._stops)):
            if stop - start >= size:
                if stop - start == size:
                    del self._starts[index], self._stops[index]
                else:
                    self._starts[index] = start + size
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
        index = bisect_right(self._starts, start) - 1
        if index < 0 or self._stops[index] < start + size:
            raise ValueError(f"the range of {size} from {start} on is not free")
        low, high = self._starts[index], self._stops[index]
        pieces = [(low, start), (start + size, high)]
        self._starts[index : index + 1] = [begin for begin, end in pieces if begin < end]
        self._stops[index : index + 1] = [end for begin, end in pieces if begin < end]

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
        index = bisect_right(self._starts, start)
        if index < len(self._starts) and self._starts[index] == high:
            high = self._stops[index]
            del self._starts[index], self._stops[index]
        if index > 0 and self._stops[index - 1] == low:
            low = self._starts[index - 1]
            self._stops[index - 1] = high
        else:
            self._starts.insert(index, low)
            self._stops.insert(index, high)
        return low, high
