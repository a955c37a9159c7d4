"""What one rank knows and holds: the second argument of every command."""

from __future__ import annotations

import gc
from typing import Any, Callable, Dict, Iterable, List, MutableMapping, Optional, Tuple

import numpy as np

from ..memory.attach import PoolMap
from ..memory.pool import Pool
from ..memory.recycled import Recycler
from ..sync.barrier import Barrier
from ..transports.base import Transport


class RankContext:
    """One rank's place in the session, and its tables.

    Attributes
    ----------
    rank, size, root : int
        This rank, the number of ranks, and the rank of the master.
    barrier : Barrier
        Where the ranks meet.
    pool : Pool
        The shared memory that this rank hands out; the others read it through their ``pools``.
    pools : PoolMap
        The shared memory of all ranks.
    transport : Transport
        How arrays move between ranks.
    functions : dict of int to compiled function
    shareds : dict of int to (Engine, shared variable)
        This rank's replicas; the master's are the user's own.
    plans : dict of (int, int) to object
        What calls of functions have in common with earlier ones, by the function's number and another.
    rooms : dict of (int, int) to array
        Memory that calls copy rows into, by the function's number and the argument's.
    results : Recycler
        Memory for what the user gets.
    """

    def __init__(self, barrier: Barrier, pool: Pool, pools: PoolMap, transport: Transport) -> None:
        self.rank, self.root = barrier.rank, barrier.root
        self.size = barrier.block.size
        self.barrier, self.pool, self.pools, self.transport = barrier, pool, pools, transport
        self.functions: MutableMapping[int, Any] = {}
        self.shareds: MutableMapping[int, Any] = {}
        self.plans: Dict[Tuple[int, int], Any] = {}
        self.row_buffers: Dict[Tuple[int, int], np.ndarray] = {}
        self.results = Recycler()
        self._changes: List[Callable[[], object]] = []
        self._commitment: Optional[int] = None

    def __repr__(self) -> str:
        return (
            f"RankContext(rank={self.rank} of {self.size}, root={self.root}, functions={len(self.functions)}, "
            f"shareds={len(self.shareds)})"
        )

    def commit(self, *changes: Callable[[], object]) -> None:
        """Make the changes if every rank comes to its commit, and none of them on any rank otherwise.

        This is the last barrier of a command that changes values. Up to it a rank prepares what it will change,
        beside what stands; the changes themselves only make that current.

        Parameters
        ----------
        changes : callables
            Must not fail, and may be called twice (where the master is interrupted in the middle).
        """
        self._changes = list(changes)
        self._commitment = self.barrier.current + 1
        self.barrier.wait()
        self.settle()

    def settle(self) -> None:
        """Make the changes of a commit that took place, and forget those of one that did not."""
        if self._commitment is not None:
            if self.barrier.is_complete(self._commitment):
                for change in self._changes:
                    change()
            self._commitment, self._changes = None, []

    def forget(self, things: Iterable[Tuple[str, int]]) -> None:
        """Drop functions and shared variables that the program has dropped."""
        things = list(things)
        for kind, number in things:
            if kind == "function":
                self.functions.pop(number, None)
                for table in (self.plans, self.row_buffers):
                    for place in [place for place in table if place[0] == number]:
                        del table[place]
            else:
                self.shareds.pop(number, None)
            self.transport.forget((kind, number))
        if things and self.rank != self.root:
            gc.collect()  # graphs are cycles, and a rank may make too little garbage to have them collected by itself

    def abort(self) -> None:
        """Free the peers that wait for this rank."""
        self.barrier.abort()
