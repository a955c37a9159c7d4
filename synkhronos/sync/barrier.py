"""A barrier that survives the death of any of its ranks.

Every rank except the root announces its arrival and waits for its release. The root waits for all ranks, *decides* that
the barrier is complete, and releases them. Only the root decides, so all surviving ranks agree on whether a barrier was
complete. This makes collectives all-or-nothing. ::

    rank 1   arrived[1] = k   post arrivals ........................ wait for releases[1] ... decided >= k: continue
    rank 2   arrived[2] = k   post arrivals ........................ wait for releases[2] ... decided >= k: continue
    root     arrived[0] = k   wait for arrivals twice, decided = k,  post releases[1], releases[2]

The state of a barrier consists of four words of the session and one word of each rank::

    word             written by       state
    arrived[r] = k   rank r           r has reached barrier k
    decided = k      root             barrier k is complete for all ranks, whatever happens from here on
    abort_requested  a failing rank   command c must be aborted; the root checks this before it decides
      = c
    aborted = c      root             no further barrier of command c will be decided
    deaths = 1       keeper           a rank has ended; same effect as abort_requested

A rank that fails requests an abort; the root then *aborts* the command, and all waiting ranks raise `Aborted`. Barriers
and commands are numbered, so stale words have no effect. Only the words store state. Semaphores wake waiting ranks to
read the words again; spurious wake-ups are harmless. Ranks that lead a host (`host_relay`) use `barrier_over_hosts`.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

from ..errors import Aborted, SynkhronosError
from ..kernels import copy
from ..memory import messages
from ..memory.handles import Handle
from ..trace import point
from .control_block import ABORT_REQUESTED, ABORTED, DEATHS, DECIDED, ControlBlock
from .semaphore import WaitPolicy, Watch

#: Maximum number of barriers per command; a barrier's number is command * BARRIERS_PER_COMMAND + index.
BARRIERS_PER_COMMAND = 1 << 28


def is_due(block: ControlBlock, promised: int, command: int) -> bool:
    """Return whether a promised answer is valid: whether its barrier belongs to the command and is complete."""
    return bool(promised // BARRIERS_PER_COMMAND == command and promised <= block.words[DECIDED])


def turn_of(number: int) -> int:
    """Return which of a rank's two slots (0 or 1) contains the rank's notice (message) for a barrier.

    Successive barriers and commands use alternate slots, because other ranks may still have to read the last notice.
    """
    return (number // BARRIERS_PER_COMMAND + number) % 2


def long_notices(block: ControlBlock, rank: int) -> List[Optional[Handle]]:
    """Return, by turn, the handles of a dead rank's notices in its pool: other ranks may still have to read them."""
    found: List[Optional[Handle]] = []
    for lengths, slots in zip(block.notice_length, block.notice_slots):
        try:
            found.append(messages.handle(lengths[rank], slots[rank]))
        except Exception:  # the rank died while it wrote the notice
            found.append(None)
    return found


class Barrier:
    """One rank's part of the barrier; ``watch`` is called repeatedly during a wait.

    On the root, ``watch`` raises `Aborted` if the barrier cannot complete. Elsewhere, it ends the rank if the root has
    ended. ``watch_alone`` (by default ``watch``) is called instead while other ranks may have finished the command.
    """

    def __init__(
        self,
        block: ControlBlock,
        rank: int,
        root: int,
        watch: Watch,
        policy: WaitPolicy,
        watch_alone: Optional[Watch] = None,
    ) -> None:
        self.block, self.rank, self.root = block, rank, root
        self.watch, self.watch_alone, self.policy = watch, watch_alone or watch, policy
        self.command = 0
        self.current = 0  # number of the barrier in progress, or of the last barrier
        self._end = BARRIERS_PER_COMMAND
        self._words, self._arrived, self._noticed = block.words, block.arrived, block.noticed
        self._others = [r for r in range(block.size) if r != root]
        self._keep: List[Any] = [None, None]
        self._meeting = _meeting_of(self)
        self._met: List[Tuple[bytes, ...]] = [(), ()]  # the last notices, by turn
        #: Does a short piece of the rank's own work during a wait, and returns whether work remains; None for no work.
        self.meanwhile: Optional[Callable[[], bool]] = None

    def keep(self, notices: Sequence[Any]) -> None:
        """Keep the memory of a dead rank's notices, by turn, until this rank's next notice of the same turn."""
        self._keep = list(notices)

    @point("barrier")
    def begin(self, command: int) -> None:
        """Start counting barriers for a command; command numbers must increase."""
        self.command, self.meanwhile = command, None
        self.current = command * BARRIERS_PER_COMMAND
        self._end = self.current + BARRIERS_PER_COMMAND

    @point("barrier")
    def wait(self, turn: int = -1, notice: bytes = b"") -> None:
        """Wait until all ranks have called this method; raise `Aborted` on all ranks if one fails or dies first.

        The kernel writes the notice into this rank's slot of the turn; `exchange` passes one only if there is a kernel.
        """
        self.current += 1
        if self.current >= self._end:
            raise SynkhronosError(
                f"one command cannot have more than {BARRIERS_PER_COMMAND:,} barriers: run fewer steps per command"
            )
        if self._meeting is not None:
            taken = self._meeting.meet(self.current, self.command, turn, notice, self.meanwhile is None)
            if taken >= 0:  # the barrier is not complete yet
                self._await_arrivals(taken) if self.rank == self.root else self._await_release(taken)
            return
        if self._words[DECIDED] >= self.current:  # decided together with the previous barrier
            return
        self._arrived[self.rank] = self.current
        if self.rank == self.root:
            self._decide()
        else:
            self._follow()

    def _decide(self) -> None:
        self._await_arrivals()

    def _await_arrivals(self, taken: int = 0) -> None:
        """Wait for all arrivals, and decide the barrier; ``taken`` arrivals have woken this rank already."""
        words, block, current = self._words, self.block, self.current
        self._work_until(self._is_gathered)
        for _ in self._others[taken:]:
            self.check()
            block.arrivals.wait(self._watch_arrivals, self.policy)
        self.check()
        for rank in self._others:
            while self._arrived[rank] < current:  # a wake-up had another cause
                block.arrivals.wait(self.look, self.policy)
                self.check()
        words[DECIDED] = current  # from here on the barrier is complete for every rank
        for rank in self._others:
            block.releases[rank].release()

    def _watch_arrivals(self) -> bool:
        self.look()
        return self._is_gathered()  # true, for example, if a rank was stopped before it woke the root

    def _is_gathered(self) -> bool:
        if self._words[ABORT_REQUESTED] >= self.command or self._words[DEATHS]:
            return True
        arrived, current = self._arrived, self.current
        return all([arrived[rank] >= current for rank in self._others])

    def _follow(self) -> None:
        self.block.arrivals.release()
        self._await_release()

    def _await_release(self, taken: int = 0) -> None:
        """Wait until the barrier is decided or the command aborted; ``taken``: whether a wake-up has come already."""
        words, block = self._words, self.block
        self._work_until(self._is_over)
        while True:
            if not taken:
                block.releases[self.rank].wait(self._watch_other, self.policy)
            taken = 0
            if words[DECIDED] >= self.current:
                return
            if words[ABORTED] >= self.command:
                raise Aborted

    def _work_until(self, is_over: Callable[[], bool]) -> None:
        while self.meanwhile is not None and not is_over():
            if not self.meanwhile():
                self.meanwhile = None

    def _watch_other(self) -> bool:
        self.watch()
        return self._is_over()  # true, for example, if the root was interrupted before it woke this rank

    def _is_over(self) -> bool:
        return self._words[DECIDED] >= self.current or self._words[ABORTED] >= self.command

    def check(self) -> None:
        """Raise `Aborted` if the root has aborted the command; on the root, if a rank ended or requested an abort."""
        words = self._words
        if self.rank == self.root:
            if words[ABORT_REQUESTED] >= self.command or words[DEATHS]:
                raise Aborted
        elif words[ABORTED] >= self.command:
            raise Aborted

    def look(self) -> None:
        """Raise `Aborted` if the command is aborted, as `check` does; otherwise call ``watch``."""
        self.check()
        self.watch()

    def look_alone(self) -> None:
        """Do the same as `look`, but call ``watch_alone``: other ranks may already have finished the command."""
        self.check()
        self.watch_alone()

    def exchange(self, notice: bytes, pool: Any, pools: Any) -> Tuple[bytes, ...]:
        """Wait as `wait` does; return the notices (messages) of all ranks, in order. Long notices use the pools."""
        # Two slots alternate with the barrier and command numbers, which are equal on all ranks even after an abort.
        # All readers of the slot's last notice have passed the barrier in between.
        turn = (self.command + self.current + 1) % 2  # inlined from `turn_of`
        slots, lengths = self.block.notice_slots[turn], self.block.notice_length[turn]
        rank, nbytes = self.rank, len(notice)
        if self._meeting is not None and nbytes <= len(slots[rank]):
            self._keep[turn] = None
            self.wait(turn, notice)
            met: Optional[Tuple[bytes, ...]] = self._meeting.notices(turn, self._met[turn])
            if met is not None:
                self._met[turn] = met
                return met
        else:
            if nbytes <= len(slots[rank]):
                slots[rank][:nbytes] = notice
                lengths[rank], self._keep[turn] = nbytes, None
            else:
                lengths[rank], self._keep[turn] = messages.put(notice, slots[rank], pool)
            self._noticed[turn][rank] = self.current + 1
            self.wait()
        found = zip(slots, lengths.tolist())
        return tuple([bytes(slot[:n] if n >= 0 else messages.get(n, slot, pools)) for slot, n in found])

    def is_complete(self, number: int) -> bool:
        """Return whether a barrier was decided; on ranks other than the root, False is final only after an abort."""
        return self._words[DECIDED] >= number

    def abort(self) -> None:
        """Abort the command in progress: release every rank that waits, or will wait, at one of its barriers."""
        block, words = self.block, self._words
        if self.rank == self.root:
            words[ABORTED] = max(words[ABORTED], self.command)
            for rank in self._others:
                block.releases[rank].release()
        elif words[ABORTED] < self.command:
            words[ABORT_REQUESTED] = self.command  # every rank that writes this word is in the same command
            block.call_root()

    def clear(self) -> None:
        """Reset semaphores after an aborted command; call this only on the root, while no rank executes a command."""
        self.block.drain()


def _meeting_of(barrier: Barrier) -> Any:
    """Return the kernel for a barrier of processes on one host; None for other barriers, and without the kernels."""
    block, policy = barrier.block, barrier.policy
    if copy.kernels is None or type(barrier) is not Barrier or type(block) is not ControlBlock or policy.tries <= 1:
        return None
    semaphores = [each.memory for each in (block.arrivals, *block.releases)]
    words = [block.words, block.arrived, *block.noticed, *block.notice_length]
    slots = [slot for of_turn in block.notice_slots for slot in of_turn]
    indices = DECIDED, ABORT_REQUESTED, ABORTED, DEATHS
    return copy.kernels.Meeting([*words, *semaphores, *slots], indices, block.size, barrier.rank, barrier.root, *policy)
