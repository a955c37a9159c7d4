"""How a rank gets what lies in the memory of another host.

Every host has a *shadow* of each pool of the others: memory with the same number and the same places, in which nothing
lies until somebody has asked for it. ::

    rank        writes what it wants into its slot, fetch_asked += 1, posts bridge, waits for fetched[r]
    bridge      asks the bridge of the host that has it, writes what comes into the shadow
    rank        goes on when fetch_done has come up to fetch_asked

What lies in the shadow is what lay there when it was asked for: ask again after it may have changed. What has few bytes
comes without being asked for: see `runtime.command.Envelope` and `transports.layouts`.

In the same way the ranks of a host have what they have reduced together reduced over hosts. They wait for the result,
or until that is under way, and for the result later.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

from ..errors import SynkhronosError
from ..memory import messages
from ..memory.handles import Handle
from ..memory.pool import Pool
from ..memory.ranges import Ranges
from ..reductions import ReduceOp
from ..trace import point
from .barrier import Barrier


class Part(NamedTuple):
    """A reduction over hosts, as ranks ask for it.

    Attributes
    ----------
    partial, result : Handle
        Arrays of one axis in the memory of this host's ranks: what they give together, and what takes the result.
    op : ReduceOp
    weights : tuple of float, optional
        Of the hosts that give.
    givers, takers : tuple of int
        Hosts, in their order.
    wire, leaves_errors
        As of `launchers.hosts.all_reduce.Reduction`.
    """

    partial: Handle
    result: Handle
    op: ReduceOp
    weights: Optional[Tuple[float, ...]]
    givers: Tuple[int, ...]
    takers: Tuple[int, ...]
    wire: Optional[str] = None
    leaves_errors: bool = False


class Fetcher:
    """One rank's end.

    Parameters
    ----------
    barrier : Barrier
        This rank's: it says when the command is given up.
    pool : Pool
        Its memory.
    watch : callable
        Called while it waits; raises if that has become pointless.
    """

    def __init__(self, barrier: Barrier, pool: Pool, watch: Callable[[], object]) -> None:
        self._watch = watch
        self._barrier, self._pool, self._block, self._rank = barrier, pool, barrier.block, barrier.rank
        self._keep: Any = None

    @point("channel")
    def fetch(self, ranges: Sequence[Ranges]) -> None:
        """Bring these ranges here, none of them twice.

        Raises
        ------
        Aborted
            If the command is given up meanwhile.
        SynkhronosError
            They cannot be had.
        """
        self._ask("fetch", [tuple(each) for each in ranges])

    @point("channel")
    def check_room(self, ranges: Sequence[Ranges]) -> None:
        """Have it checked that this host has memory for these ranges; called by all of its ranks in a command.

        Raises
        ------
        Aborted
            As in `fetch`.
        SynkhronosError
            It has not, for those of all ranks together.
        """
        self._ask("room", [tuple(each) for each in ranges])

    @point("channel")
    def all_reduce(self, parts: Sequence[Part], meanwhile: bool = False) -> int:
        """Have arrays reduced over hosts; called by all ranks of all hosts, in the same order.

        Parameters
        ----------
        parts : sequence of Part
            The same on all hosts, but for the arrays.
        meanwhile : bool
            Whether to return once it is under way: then `finish` waits for it.

        Returns
        -------
        int
            By which `finish` knows it.

        Raises
        ------
        Aborted, SynkhronosError
            As in `fetch`.
        """
        self._ask("reduce", list(parts), meanwhile)
        return self._barrier.current

    @point("channel")
    def finish(self, number: int) -> None:
        """Wait until a reduction that is under way is over: nothing is written into its arrays any more.

        Raises
        ------
        Aborted, SynkhronosError
            As in `fetch`; the latter also if it has failed, or was given up.
        """
        self._ask("finish", number)

    @property
    def received(self) -> int:
        """The bytes that have come from other hosts for this rank; what several have asked for counts for the first."""
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
            if abs(block.fetch_done[rank]) < asked:  # it was woken because the command is given up
                self._look()
        if block.fetch_done[rank] < 0:
            raise SynkhronosError(bytes(block.fetch_slots[rank]).split(b"\0")[0].decode(errors="replace"))

    def _look(self) -> bool:
        self._barrier.check()
        self._watch()
        return bool(abs(self._block.fetch_done[self._rank]) >= self._block.fetch_asked[self._rank])
