"""The MPI thread of a host, which serves all sessions, and the numbers of its operations.

The thread distinguishes operations by their numbers, modulo the number of operations with distinct MPI tags. Fetches
use the lower half of the numbers, with different numbers on each host. Reductions use the upper half, with equal
numbers on all hosts. After an abort, the hosts' counts of reductions may differ, so the first host sets the count.
"""

from __future__ import annotations

from typing import Any, Collection, List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..sync.fetching import HostReduction
from ..transports.strategy import MAX_PARTS
from .mpi_thread import MpiThread
from .operation import STREAMS, Done, Ticket

CARRIED_BYTES = 1 << 16  # minimum size of fetches that MPI carries; the answer to a smaller fetch contains the data
MAX_COUNT_DIFFERENCE = 2  # maximum difference between the hosts' counts of reductions at an abort

#: Time limits: for all hosts to begin the last operation, and for the end of the MPI thread.
FAREWELL_TIMEOUT_S, CLOSE_TIMEOUT_S = 6.0, 3.0


class BulkTransfers:
    """A host's MPI thread and the numbers of its operations; `reductions` is the number of the next reduction."""

    def __init__(self, courier: MpiThread) -> None:
        self.courier, self.reductions = courier, 0
        self._fetches = 0
        self._half = (courier.last_tag + 1) // STREAMS // 2

    def new_fetch(self) -> int:
        """Return the number of a new fetch of this host, unique among the pending fetches of all hosts."""
        hosts = self.courier.hosts
        self._fetches = self._fetches % (self._half // hosts - 1) + 1
        return self._fetches * hosts + self.courier.host

    def _of_reduction(self, reduction: int, i: int = 0) -> int:
        return self._half + reduction % (self._half // MAX_PARTS) * MAX_PARTS + i

    def all_reduce(self, reduction: int, parts: Sequence[Tuple[int, HostReduction]], done: Done) -> List[Ticket]:
        """Begin a reduction in parts, each with an index that is equal on all hosts; call ``done`` after each part."""
        return [self.courier.all_reduce(self._of_reduction(reduction, i), part, done) for i, part in parts]

    def cancel_fetch(self, number: int, done: Optional[Done] = None) -> Ticket:
        return self.courier.cancel(number, number, done)

    def skip_reductions(self, kept: Collection[int], others: Collection[int] = ()) -> List[Tuple[int, int]]:
        """Skip the numbers that reductions in progress may have on any host, and determine the operations to cancel.

        Return ranges (first, last) of operation numbers, for the skipped reductions and ``others`` except ``kept``.
        """
        first, last = max(0, self.reductions - MAX_COUNT_DIFFERENCE), self.reductions + MAX_COUNT_DIFFERENCE
        self.reductions = last + 1
        ranges: List[Tuple[int, int]] = []
        for reduction in sorted({*range(first, last + 1), *others}.difference(kept)):
            low, high = self._of_reduction(reduction), self._of_reduction(reduction, MAX_PARTS - 1)
            if ranges and ranges[-1][1] == low - 1:
                low = ranges.pop()[0]
            ranges.append((low, high))
        return ranges

    def close(self) -> bool:
        """End the MPI thread once all hosts are ready, or after a time limit; return whether MPI can be finalized."""
        farewell = self.courier.take_leave()
        have_all = farewell.wait(FAREWELL_TIMEOUT_S) and farewell.error is None
        return self.courier.close(CLOSE_TIMEOUT_S) and have_all


def as_bytes(buffer: Any) -> NDArray[np.uint8]:
    return np.frombuffer(buffer, np.uint8)
