"""Fetching: a rank's access to memory on other hosts.

Every host has a *shadow* of each pool on the other hosts: memory with the same number and layout, filled on request. ::

    rank        writes a request into its slot, fetch_asked += 1, wakes bridge, waits for fetched[r]
    bridge      (or deputy, see `cluster`) asks the host that has the memory, writes the reply into the shadow
    rank        continues when fetch_done has reached fetch_asked

A fetched range is a copy as of the request; fetch it again if the pool may have changed. Small data is sent
without a request: see `runtime.command.Envelope` and `transports.layouts`. Ranks request reductions over hosts in the
same way, after reducing their values within the host. They wait for the result, or only until the reduction has begun.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple, Optional, Sequence

from ..errors import Aborted, SynkhronosError
from ..memory import messages
from ..memory.pool import Pool
from ..memory.ranges import Ranges
from ..reductions import ReduceOp
from ..trace import point
from .barrier import Barrier
from .control_block import ABORT_REQUESTED, ABORTED
from .semaphore import Watch


class HostReduction(NamedTuple):
    """One array's reduction over hosts; all fields except the arrays must be equal on all participating hosts.

    ``partial`` contains this host's values; ``result`` is written on receiving hosts. Both are C-contiguous, of shape
    ``(n,)``, and do not overlap. Ranks pass handles, and the process that serves their host attaches the arrays. Their
    dtypes are equal, or float32 for ``partial`` and float16 for ``result``, which is rounded once. ``op`` is ``avg``,
    ``sum``, ``prod``, ``min`` or ``max``. ``weights`` (only for ``avg``): one finite, nonnegative number per
    contributing host, such as its number of rows; by default equal (`reductions.mean`).

    ``sources`` contribute values and ``destinations`` receive the result: hosts in order, for `cluster.mpi_thread` by
    their MPI ranks; all hosts if empty. Arrays that a host neither contributes nor receives are not read or written,
    so ``np.empty`` suffices.

    With ``wire`` ``"bfloat16"`` or ``"float16"``, values travel in 16 bits (`kernels.encoding`). They are
    reduced in their own dtype, float32 or float64, and the result is encoded once. A host's own values are rounded,
    too, so the result does not depend on the host that reduces. With ``leaves_errors``, the encoding error of a
    contributing host overwrites its ``partial``.
    """

    partial: Any
    result: Any
    op: ReduceOp
    weights: Optional[Sequence[float]] = None
    sources: Sequence[int] = ()
    destinations: Sequence[int] = ()
    wire: Optional[str] = None
    leaves_errors: bool = False


class Fetcher:
    """One rank's requests to other hosts; methods raise `Aborted` if the command is aborted, or ``watch``'s errors."""

    def __init__(self, barrier: Barrier, pool: Pool, watch: Watch) -> None:
        self._watch = watch
        self._barrier, self._pool, self._block, self._rank = barrier, pool, barrier.block, barrier.rank
        self._keep: Any = None

    @point("channel")
    def fetch(self, ranges: Sequence[Ranges]) -> None:
        """Copy ranges to this host; raise `Aborted`, or `SynkhronosError` if the ranges are not available."""
        self._ask("fetch", [tuple(each) for each in ranges])

    @point("channel")
    def check_room(self, ranges: Sequence[Ranges]) -> None:
        """Raise `SynkhronosError` if this host lacks memory for its ranks' ranges; all these ranks must call this."""
        self._ask("room", [tuple(each) for each in ranges])

    @point("channel")
    def all_reduce(self, parts: Sequence[HostReduction], meanwhile: bool = False) -> int:
        """Reduce arrays over hosts; all ranks of all hosts must call this in the same order.

        ``parts`` are equal on all hosts except for the arrays. With ``meanwhile``, return once the reduction has begun.
        Return the number for `finish`; raise as `fetch` does.
        """
        self._ask("reduce", list(parts), meanwhile)
        return self._barrier.current

    @point("channel")
    def finish(self, number: int) -> None:
        """Wait until a reduction no longer writes into its arrays; raise as `fetch` does, or if the reduction fails."""
        self._ask("finish", number)

    @property
    def received(self) -> int:
        """The bytes received from other hosts for this rank; a transfer for several ranks counts for one of them."""
        return self._block.received[self._rank]

    def _ask(self, *request: Any) -> None:
        block, rank = self._block, self._rank
        asked = block.fetch_asked[rank] + 1
        payload = pickle.dumps((asked, self._barrier.current, *request), pickle.HIGHEST_PROTOCOL)
        block.fetch_length[rank], self._keep = messages.put(payload, block.fetch_slots[rank], self._pool)
        block.fetch_asked[rank] = asked
        block.bridge.release()
        while abs(block.fetch_done[rank]) < asked:
            block.fetched[rank].wait(self._look, self._barrier.policy)
            if abs(block.fetch_done[rank]) < asked:  # woken, for example because the command was aborted
                self._look()
        if block.fetch_done[rank] < 0:
            raise SynkhronosError(bytes(block.fetch_slots[rank]).split(b"\0")[0].decode(errors="replace"))

    def _look(self) -> bool:
        barrier, words = self._barrier, self._block.words
        if words[ABORT_REQUESTED if self._rank == barrier.root else ABORTED] >= barrier.command:
            raise Aborted
        self._watch()  # on the root, this ignores deaths of ranks that have answered: their memory still exists
        return bool(abs(self._block.fetch_done[self._rank]) >= self._block.fetch_asked[self._rank])
