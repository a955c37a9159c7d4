"""The MPI thread of a host, which serves all sessions, and the numbers of its operations.

The thread distinguishes operations by their numbers, modulo the number of operations with distinct MPI tags. Fetches
use the lower half of the numbers, with different numbers on each host. Reductions use the upper half, with equal
numbers on all hosts. When a command is aborted, some hosts may have begun reductions that others have not. All hosts
skip the numbers of these reductions, and hosts that have not begun one take part in it as soon as they hear of it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, List, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..sync.fetching import HostReduction
from ..transports.strategy import MAX_PARTS
from .mpi_thread import MpiThread
from .operation import STREAMS, Done, Ticket

CARRIED_BYTES = 1 << 16  # minimum size of fetches that MPI carries; the answer to a smaller fetch contains the data
MAX_COUNT_DIFFERENCE = 2  # maximum difference between the hosts' counts of reductions at an abort
KEPT_NUMBERS = 64  # enough for the last two aborts; no later command begins before their reductions are over

FAREWELL_TIMEOUT_S = 6.0  # time limit for all hosts to close their MPI threads


class BulkTransfers:
    """A host's MPI thread and the numbers of its operations.

    `reductions` is the number of the next reduction, and `skipped` contains the numbers of reductions that this host
    has not begun before an abort.
    """

    def __init__(self, courier: MpiThread) -> None:
        self.courier, self.reductions = courier, 0
        self.skipped: Deque[int] = deque(maxlen=KEPT_NUMBERS)
        self._fetches = 0
        self._half = (courier.last_tag + 1) // STREAMS // 2

    def new_fetch(self) -> int:
        """Return the number of a new fetch of this host, unique among the pending fetches of all hosts."""
        hosts = self.courier.hosts
        self._fetches = self._fetches % (self._half // hosts - 1) + 1
        return self._fetches * hosts + self.courier.host

    def all_reduce(
        self, reduction: int, parts: Sequence[Tuple[int, HostReduction]], done: Done, is_abandoned: bool = False
    ) -> List[Ticket]:
        """Begin a reduction in parts, each with an index that is equal on all hosts; call ``done`` after each part."""
        first = self._half + reduction % (self._half // MAX_PARTS) * MAX_PARTS
        return [self.courier.all_reduce(first + i, part, done, is_abandoned) for i, part in parts]

    def after_abort(self) -> int:
        """Return a number that no host has yet used for a reduction; called on the first host."""
        return self.reductions + MAX_COUNT_DIFFERENCE + 1

    def skip_to(self, reductions: int) -> None:
        """Continue with another number of reductions, equal on all hosts, because a command was aborted."""
        self.skipped.extend(range(self.reductions, reductions))
        self.reductions = reductions


def as_bytes(buffer: Any) -> NDArray[np.uint8]:
    return np.frombuffer(buffer, np.uint8)
