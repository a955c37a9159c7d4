"""The barrier: a barrier that survives the death of any of its ranks.

Every rank but the root tells the root that it has arrived and waits at its
gate; the root waits for all, *decides* that the barrier is complete, and
opens the releases. Only the root decides, so all surviving ranks agree on whether
a barrier took place, whatever happens while it does: this is what makes
collectives all or nothing.

A rank that fails asks the root to give the command up; the root *refuses* it
then, and all that wait at a gate raise `Aborted`. Numbers tell the barrier
and the commands apart, so that nothing of an old one is taken for a new one.
The words of the control block alone say what has happened; the semaphores wake
those who wait to look at them, and may do so too often.

This module is also the one place that waits (`wait`): a semaphore is tried for
a short while and then blocks, in bounded steps between which the waiter looks
at the fate of its peers.
"""

from __future__ import annotations

import os
from typing import Callable, NamedTuple

from ..errors import Aborted
from .control_block import ControlBlock
from .semaphore import Semaphore

#: Longest time, in seconds, between two looks at the fate of the peers.
POLL_INTERVAL_S = 0.1

#: Barrier that one command can have; a barrier' number is command * BARRIERS_PER_COMMAND + index.
BARRIERS_PER_COMMAND = 1 << 24


def wait(semaphore: Semaphore, watch: Callable[[], object], tries: int = 0, yields: bool = False) -> None:
    """Take one from the semaphore's count, however long it takes.

    Parameters
    ----------
    semaphore : Semaphore
        What is waited for.
    watch : callable
        Called at every step; ends the waiting by raising, or by returning True.
    tries : int
        How often to try before blocking. A try costs a fifth of a microsecond, blocking and being woken tens.
    yields : bool
        Whether to yield the core between tries: where there are more ranks than cores, the peer may need it.
    """
    for _ in range(tries):
        if semaphore.try_acquire():
            return
        if yields:
            os.sched_yield()
    while not semaphore.acquire(POLL_INTERVAL_S):
        if watch():
            return


class WaitPolicy(NamedTuple):
    """How long to try before blocking.

    Parameters
    ----------
    tries : int
        A semaphore is tried so often: about the time that blocking and waking would cost.
    yields : bool
        Whether to yield the core between tries.
    """

    tries: int
    yields: bool

    @classmethod
    def of_processes(cls, ranks: int, cores: int, pinned: bool) -> WaitPolicy:
        """Return what suits ``ranks`` processes on ``cores`` cores, each pinned to its own or not."""
        # Yielding gives away whole time slices to any other process, so it is done only where the peer may need the
        # core: where there are more ranks, or where the kernel may have put two on one.
        return cls(600, False) if pinned and ranks <= cores else cls(60, True)

    @classmethod
    def of_threads(cls) -> WaitPolicy:
        """Return what suits ranks that share one interpreter: trying would keep it from the peer."""
        return cls(1, False)


class Barrier:
    """One rank's part of the barrier.

    Parameters
    ----------
    block : ControlBlock
        The memory shared by the ranks.
    rank, root : int
        This rank, and the one that decides.
    watch : callable
        Called at every step of a wait; raises where waiting has become pointless: `Aborted` on the root where the
        command is to be given up; on the others it ends the process where the root is gone.
    policy : WaitPolicy
        How to wait.
    """

    def __init__(
        self, block: ControlBlock, rank: int, root: int, watch: Callable[[], object], policy: WaitPolicy
    ) -> None:
        self.block, self.rank, self.root = block, rank, root
        self.watch, self.policy = watch, policy
        self.command = 0
        self.current = 0  # number of the barrier in progress, or of the last one
        self._others = [r for r in range(block.size) if r != root]

    def begin(self, command: int) -> None:
        """Start counting for the command of that number, which is larger than any before."""
        self.command = command
        self.current = command * BARRIERS_PER_COMMAND

    def wait(self) -> None:
        """Wait until every rank has called this as often as this rank has.

        Raises
        ------
        Aborted
            On every rank, where one of them failed or died before all had arrived.
        """
        self.current += 1
        self.block.arrived[self.rank] = self.current
        if self.rank == self.root:
            self._decide()
        else:
            self._follow()

    def _decide(self) -> None:
        block, current = self.block, self.current
        for _ in self._others:
            wait(block.arrivals, self._watch_root, *self.policy)
            self._look()
        for rank in self._others:
            while block.arrived[rank] < current:  # a token was not about this barrier
                wait(block.arrivals, self._watch_root, *self.policy)
                self._look()
        block.decided = current  # from here on it has taken place, for every rank, whatever happens
        for rank in self._others:
            block.releases[rank].release()

    def _follow(self) -> None:
        block = self.block
        block.arrivals.release()
        while True:
            wait(block.releases[self.rank], self._watch_other, *self.policy)
            if block.decided >= self.current:
                return
            if block.aborted >= self.command:
                raise Aborted

    def _watch_other(self) -> bool:
        self.watch()
        # True where the root was interrupted before it could wake this rank.
        return self.block.decided >= self.current or self.block.aborted >= self.command

    def _look(self) -> None:
        """On the root: give up where a rank, or the keeper, asks for it."""
        if self.block.abort_requested >= self.command or self.block.deaths:
            raise Aborted

    def _watch_root(self) -> None:
        self._look()
        self.watch()

    def look(self) -> None:
        """Raise `Aborted` where the command in progress is given up: for who waits for something else than `wait`."""
        if self.rank == self.root:
            self._watch_root()
        else:
            self.watch()
            if self.block.aborted >= self.command:
                raise Aborted

    def is_complete(self, number: int) -> bool:
        """Tell whether the barrier of that number was decided; on the root, and elsewhere once it has refused."""
        return self.block.decided >= number

    def abort(self) -> None:
        """Give up the command in progress: free every rank that waits, or will wait, in a barrier of it."""
        block = self.block
        if self.rank == self.root:
            block.aborted = max(block.aborted, self.command)
            for rank in self._others:
                block.releases[rank].release()
        elif block.aborted < self.command:
            block.abort_requested = self.command  # whoever else writes it is in the same command
            block.arrivals.release()

    def clear(self) -> None:
        """Forget what is left of a command that was given up. On the root, while no rank is in a command."""
        self.block.arrivals.drain()
        for gate in self.block.releases:
            gate.drain()
