"""A barrier that survives the death of any of its ranks.

Every rank but the root announces that it has arrived and waits to be released; the root waits for all, *decides*
that the barrier is complete, and releases them. Only the root decides, so all surviving ranks agree on whether a
barrier was complete, whatever happens meanwhile: this is what makes collectives all or nothing. ::

    rank 1   arrived[1] = k   post arrivals ........................ wait for releases[1] ... decided >= k: go on
    rank 2   arrived[2] = k   post arrivals ........................ wait for releases[2] ... decided >= k: go on
    root     arrived[0] = k   wait for arrivals twice, decided = k,  post releases[1], releases[2]

The state of a barrier is in four words of the session and one of each rank::

    word             written by       state
    arrived[r] = k   rank r           r waits at barrier k
    decided = k      root             barrier k is complete, for all ranks, whatever happens from here on
    abort_requested  a rank failing   command c is to be given up; the root looks at it before it decides
      = c
    aborted = c      root             no barrier of command c will be decided any more
    deaths = 1       keeper           a rank has ended: as abort_requested

A rank that fails requests that the command be given up; the root *aborts* it then, and all waiting ranks raise
`Aborted`. Numbers tell the barriers and the commands apart, so that nothing of an old one is taken for a new one. The
words of the control block alone say what has happened; the semaphores wake waiting ranks so that they look at the words
again, and may do so too often.

If there are several hosts, the ranks that speak for one (`leading`) have a barrier of another class, in which the root
may decide two at once: see `barrier_over_hosts`.
"""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

from ..errors import Aborted, SynkhronosError
from ..memory import messages
from ..trace import point
from .control_block import ABORT_REQUESTED, ABORTED, DEATHS, DECIDED, ControlBlock
from .semaphore import WaitPolicy

#: Barriers that one command can have; a barrier's number is command * BARRIERS_PER_COMMAND + index.
BARRIERS_PER_COMMAND = 1 << 28


def is_due(block: ControlBlock, promised: int, command: int) -> bool:
    """Return whether the answer to a command is due that was promised for a barrier: if that is of it, and complete."""
    return bool(promised // BARRIERS_PER_COMMAND == command and promised <= block.words[DECIDED])


def turn_of(number: int) -> int:
    """Return which of the two slots of a rank has its notice for a barrier: another one for the next barrier.

    And for the first barrier of the next command, which a rank may come to before others have read this notice.
    """
    return (number // BARRIERS_PER_COMMAND + number) % 2


class Barrier:
    """One rank's part of the barrier.

    Parameters
    ----------
    block : ControlBlock
        The memory shared by the ranks.
    rank, root : int
        This rank, and the one that decides.
    watch : callable
        Called at every step of a wait; raises if waiting has become pointless: `Aborted` on the root if the command
        is to be given up; on the others it ends the process if the root is gone.
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
        self._end = BARRIERS_PER_COMMAND
        self._words, self._arrived, self._noticed = block.words, block.arrived, block.noticed
        self._others = [r for r in range(block.size) if r != root]
        self._keep: List[Any] = [None, None]

    @point("barrier")
    def begin(self, command: int) -> None:
        """Start counting for the command of that number, which is larger than any before."""
        self.command = command
        self.current = command * BARRIERS_PER_COMMAND
        self._end = self.current + BARRIERS_PER_COMMAND

    @point("barrier")
    def wait(self) -> None:
        """Wait until every rank has called this as often as this rank has.

        Raises
        ------
        Aborted
            On every rank, if one of them failed or died before all had arrived.
        """
        self.current += 1
        if self.current >= self._end:
            raise SynkhronosError(
                f"one command cannot have more than {BARRIERS_PER_COMMAND:,} barriers: make fewer steps"
            )
        if self._words[DECIDED] >= self.current:  # with the one before
            return
        self._arrived[self.rank] = self.current
        if self.rank == self.root:
            self._decide()
        else:
            self._follow()

    def _decide(self) -> None:
        words, block, current = self._words, self.block, self.current
        for _ in self._others:
            block.arrivals.wait(self.look, self.policy)
            if words[ABORT_REQUESTED] >= self.command or words[DEATHS]:
                raise Aborted
        for rank in self._others:
            while self._arrived[rank] < current:  # a token was not about this barrier
                block.arrivals.wait(self.look, self.policy)
                self.check()
        words[DECIDED] = current  # from here on it is complete, for every rank, whatever happens
        for rank in self._others:
            block.releases[rank].release()

    def _follow(self) -> None:
        words, block = self._words, self.block
        block.arrivals.release()
        while True:
            block.releases[self.rank].wait(self._watch_other, self.policy)
            if words[DECIDED] >= self.current:
                return
            if words[ABORTED] >= self.command:
                raise Aborted

    def _watch_other(self) -> bool:
        self.watch()
        # True if the root was interrupted before it could wake this rank.
        return self._words[DECIDED] >= self.current or self._words[ABORTED] >= self.command

    def check(self) -> None:
        """Raise `Aborted` if the command in progress is given up: on the root, if a rank or the keeper requests it.

        It costs a look at one word or two, so a rank can do it between any two steps.
        """
        words = self._words
        if self.rank == self.root:
            if words[ABORT_REQUESTED] >= self.command or words[DEATHS]:
                raise Aborted
        elif words[ABORTED] >= self.command:
            raise Aborted

    def look(self) -> None:
        """Raise `Aborted` if the command in progress is given up: for waits on something other than a barrier."""
        self.check()
        self.watch()

    def exchange(self, notice: bytes, pool: Any, pools: Any) -> Tuple[bytes, ...]:
        """Wait as `wait` does; return the notice that every rank came with, in rank order.

        Parameters
        ----------
        notice : bytes
            What this rank has to say. A long one travels through shared memory.
        pool : Pool
            This rank's memory.
        pools : PoolMap
            All ranks' memory.
        """
        # Two slots in turn, by the number of the barrier: that is the same on all ranks, even after a command that
        # some of them gave up earlier than others. The slot was read for the last time before the barrier in between.
        turn = (self.command + self.current + 1) % 2  # as `turn_of` says: a call less
        slots, length = self.block.notice_slots[turn], self.block.notice_length[turn]
        if len(notice) <= len(slots[self.rank]):
            slots[self.rank][: len(notice)] = notice
            length[self.rank], self._keep[turn] = len(notice), None
        else:
            length[self.rank], self._keep[turn] = messages.put(notice, slots[self.rank], pool)
        self._noticed[turn][self.rank] = self.current + 1
        self.wait()
        found = []
        for rank, slot in enumerate(slots):
            if length[rank] >= 0:
                found.append(bytes(slot[: length[rank]]))
            else:
                found.append(bytes(messages.get(length[rank], slot, pools)))
        return tuple(found)

    def is_complete(self, number: int) -> bool:
        """Return whether the barrier of that number was decided; on ranks but the root, once it is or was aborted."""
        return self._words[DECIDED] >= number

    def abort(self) -> None:
        """Give up the command in progress: free every rank that waits, or will wait, at a barrier of it."""
        block, words = self.block, self._words
        if self.rank == self.root:
            words[ABORTED] = max(words[ABORTED], self.command)
            for rank in self._others:
                block.releases[rank].release()
        elif words[ABORTED] < self.command:
            words[ABORT_REQUESTED] = self.command  # any other rank that writes it is in the same command
            block.call_root()

    def clear(self) -> None:
        """Forget what is left of a command that was given up. On the root, while no rank is in a command."""
        self.block.arrivals.drain()
        for release in self.block.releases:
            if release is not self.block.bridge:  # which may not have looked yet
                release.drain()
