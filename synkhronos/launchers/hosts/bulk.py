"""What the process that speaks for a host keeps of its courier from session to session: above all, its numbers.

The courier tells operations apart by their numbers, modulo as many as MPI has tags. The lower half is for what hosts
fetch of each other: every host counts what it asks for, in numbers of its own. The upper half is for reductions, of
which all hosts have come to the same number; where they were when a command was given up is not the same on all, so the
first one says from which number they go on.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from ...transports.over_hosts import MAX_DTYPES
from .all_reduce import Reduction
from .courier import Courier
from .operation import STREAMS, Done, Ticket

#: Fetches of fewer bytes travel with the words, which takes one message less.
CARRIED_BYTES = 1 << 16

#: By how many reductions the hosts may be apart, when a command is given up.
APART = 2

#: Seconds in which all hosts must have come to the end, and each courier must have ended.
FAREWELL_TIMEOUT_S, CLOSE_TIMEOUT_S = 6.0, 3.0


class Bulk:
    """A courier, and the numbers of what it carries.

    Parameters
    ----------
    courier : Courier

    Attributes
    ----------
    reductions : int
        The number of the next reduction.
    """

    def __init__(self, courier: Courier) -> None:
        self.courier, self.reductions = courier, 0
        self._fetches = 0
        self._half = (courier.last_tag + 1) // STREAMS // 2

    def new_fetch(self) -> int:
        """Return the number of a fetch that this host asks for, which no other host gives."""
        hosts = self.courier.hosts
        self._fetches = self._fetches % (self._half // hosts - 1) + 1
        return self._fetches * hosts + self.courier.host

    def _of_reduction(self, reduction: int, i: int = 0) -> int:
        return self._half + (reduction * MAX_DTYPES + i) % self._half

    def all_reduce(self, reduction: int, parts: Sequence[Reduction], done: Done) -> None:
        """Begin the parts of a reduction; ``done`` is called for each."""
        for i, part in enumerate(parts):
            self.courier.all_reduce(self._of_reduction(reduction, i), part, done)

    def cancel_fetch(self, number: int, done: Optional[Done] = None) -> Ticket:
        """Give up a fetch, on either side."""
        return self.courier.cancel(number, number, done)

    def cancel_reductions(self, done: Optional[Done] = None) -> Ticket:
        """Give up the reductions that may be under way on any host, and count on beyond them, all hosts alike."""
        first, last = max(0, self.reductions - APART), self.reductions + APART
        self.reductions = last + 1
        low, high = self._of_reduction(first), self._of_reduction(last, MAX_DTYPES - 1)
        if high < low:  # all numbers have been used once
            low = self._half
        return self.courier.cancel(low, high, done)

    def close(self) -> bool:
        """End the courier, when all hosts do; return whether MPI can be finalised."""
        farewell = self.courier.take_leave()
        have_all = farewell.wait(FAREWELL_TIMEOUT_S) and farewell.error is None
        return self.courier.close(CLOSE_TIMEOUT_S) and have_all


def as_bytes(buffer: Any) -> NDArray[np.uint8]:
    """Return a buffer as an array of bytes."""
    return np.frombuffer(buffer, np.uint8)
