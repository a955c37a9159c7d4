"""The channel between the master and the ranks: commands out, answers back, through shared memory.

A message lies in a slot of the control block and is announced by a semaphore. Commands and answers alternate strictly,
so a slot is never written while it may be read. ::

    master   MasterEnd.send --- command slot, commands[r] ---> RankEnd.wait, RankEnd.read   rank r
             MasterEnd.wait, .read <--- answers[r], slot of r --- RankEnd.send

If there are several hosts, a rank *promises* its answer as it comes to the last barrier of a command, or to the
one before, if it knows it by then. When the master has decided that the barrier is complete, it has the answer, and
need not wait for the network again. What crosses the network is the business of the root and of a leader on each other
host (`sync.leading`), which they do while they wait here. ::

    master   ........ barrier k: wait, decide --- decided >= k ---> go on   .............   rank r
             MasterEnd.wait, .read <--- promised[r] = k, slot of r --- RankEnd.promise

The rank may still be busy with the end of that command when the next one comes; nothing in there can fail.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, Dict, Iterable, Optional

from ..memory import messages
from ..memory.attach import PoolMap
from ..memory.pool import Pool
from ..sync.barrier import is_due
from ..sync.control_block import COMMAND_LENGTH, COMMAND_NUMBER, ControlBlock
from ..sync.leading import Leader, Leading
from ..sync.semaphore import WaitPolicy
from ..trace import point
from .command import Envelope
from .news import detached

#: Frozen commands that a rank keeps, and the bytes of each, at most.
MAX_FROZEN, FROZEN_BYTES = 16, 4096


class MasterEnd:
    """The master's end: sends every command to all other ranks, and receives their answers."""

    def __init__(
        self,
        block: ControlBlock,
        ranks: Iterable[int],
        pool: Pool,
        pools: PoolMap,
        policy: WaitPolicy,
        leading: Optional[Leading] = None,
    ) -> None:
        self.block, self.pool, self.pools, self.policy, self.leading = block, pool, pools, policy, leading
        self.ranks = list(ranks) if leading is None else leading.others
        self._keep: Any = None

    @point("channel")
    def send(self, number: int, payload: bytes, watch: Callable[[], object] = bool) -> None:
        """Publish the command of that number. If this raises SharedMemoryError, no rank has been woken."""
        block, words = self.block, self.block.words
        if len(payload) <= len(block.command_slot):
            block.command_slot[: len(payload)] = payload
            words[COMMAND_LENGTH], self._keep = len(payload), None
        else:
            words[COMMAND_LENGTH], self._keep = messages.put(payload, block.command_slot, self.pool)
        words[COMMAND_NUMBER] = number
        if self.leading is not None:
            self.leading.tell(watch)
        for rank in self.ranks:
            block.commands[rank].release()

    @point("channel")
    def wait(self, rank: int, number: int, watch: Callable[[], object]) -> None:
        """Wait until the rank has answered the command of that number."""
        block = self.block
        if self.leading is not None:
            if not self.has_answered(rank, number):
                self.leading.wait(lambda: self.has_answered(rank, number), watch, self.policy)
            return
        while block.finished[rank] < number:  # the semaphore may also be a call for attention
            if block.promised[rank] and self.has_answered(rank, number):
                return
            block.answers[rank].wait(watch, self.policy)
            if block.finished[rank] < number:
                watch()

    def has_answered(self, rank: int, number: int) -> bool:
        """Return whether the rank's answer to the command of that number can be read."""
        block = self.block
        return bool(block.finished[rank] >= number) or is_due(block, block.promised[rank], number)

    @point("channel")
    def read(self, rank: int) -> Any:
        """Return the rank's answer to the last command; whatever unpickling it raises comes out."""
        length, slot = self.block.answer_length[rank], self.block.answer_slots[rank]
        answer = pickle.loads(slot[:length] if length >= 0 else messages.get(length, slot, self.pools))
        return answer


class RankEnd:
    """Another rank's end: receives commands, and answers them."""

    @point("channel")
    def __init__(
        self,
        block: ControlBlock,
        rank: int,
        pool: Pool,
        pools: PoolMap,
        policy: WaitPolicy,
        leading: Optional[Leading] = None,
        printed: Optional[Callable[[], int]] = None,
    ) -> None:
        self.block, self.rank, self.pool, self.pools, self.policy = block, rank, pool, pools, policy
        self._printed = printed  # returns how many bytes this rank has printed, if they have to come from another host
        self._leader = leading if isinstance(leading, Leader) else None
        self._frozen: Dict[bytes, Envelope] = {}
        self._keep: Any = None

    def is_called(self) -> bool:
        """Return whether there is a command that the rank has not answered."""
        block = self.block
        return bool(block.command_number > block.finished[self.rank])

    def may_be_called(self) -> bool:
        """Return whether this rank is to go on with `wait`: a command may have come, or be on its way."""
        return self.is_called() or self._leader is not None and self._leader.has_news()

    @point("channel")
    def wait(self, watch: Callable[[], object]) -> int:
        """Wait for the next command; return its number."""
        block, leader = self.block, self._leader
        while not self.is_called():
            if leader is None:
                block.commands[self.rank].wait(watch, self.policy)
            else:
                leader.wait(self.is_called, watch, self.policy)
        self._keep = None
        number: int = block.command_number
        return number

    @point("channel")
    def read(self) -> Envelope:
        """Return the command; whatever unpickling it raises comes out.

        Hot commands come again and again. Key: the bytes of a frozen command. Reused: its envelope. Nothing makes it
        invalid (see `Command.freeze`); beyond `MAX_FROZEN` the oldest is dropped.
        """
        length, slot = self.block.command_length, self.block.command_slot
        if not 0 <= length <= FROZEN_BYTES:
            envelope: Envelope = pickle.loads(messages.get(length, slot, self.pools))
            return envelope
        payload = bytes(slot[:length])
        known = self._frozen.get(payload)
        if known is not None:
            return known
        payload, news = detached(payload)
        known = self._frozen.get(payload) if news else None
        envelope = pickle.loads(payload) if known is None else known
        if envelope.is_frozen and known is None:
            self._frozen[payload] = envelope
            if len(self._frozen) > MAX_FROZEN:
                del self._frozen[next(iter(self._frozen))]
        return envelope._replace(news=news) if news else envelope

    @point("channel")
    def promise(self, barrier: int, payload: bytes) -> None:
        """Answer the command in progress, provided that this barrier of it will be complete."""
        self._put(payload)
        self.block.promised[self.rank] = barrier

    def has_answered(self, number: int) -> bool:
        """Return whether the answer to the command of that number has been promised, and is due."""
        return is_due(self.block, self.block.promised[self.rank], number)

    def finish(self, number: int) -> None:
        """Be ready for the next command, once this one has been answered by a promise."""
        self.block.finished[self.rank] = number

    @point("channel")
    def send(self, number: int, payload: bytes) -> None:
        """Answer the command of that number. If this raises SharedMemoryError, nothing was sent."""
        block = self.block
        self._put(payload)
        block.finished[self.rank] = number
        block.answers[self.rank].release()

    def _put(self, payload: bytes) -> None:
        block, rank = self.block, self.rank
        block.answer_length[rank], self._keep = messages.put(payload, block.answer_slots[rank], self.pool)
        if self._printed is not None:
            nbytes = self._printed()
            if nbytes != block.printed[rank]:
                block.printed[rank] = nbytes
                block.bridge.release()

    def end(self, watch: Callable[[], object]) -> None:
        """Send no answers any more: a leader tells those of the other ranks of its host before."""
        if self._leader is not None:
            self._leader.wait(self._leader.have_answered, watch, self.policy)
            self._leader.tell(watch)  # the last may have answered since
            self._leader.close()
