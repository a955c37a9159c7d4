"""The channel between the master and the ranks: commands out, answers back, through shared memory.

A message stands in a slot of the control block and is announced by a
semaphore. Commands and answers alternate strictly, so a slot is never written
while somebody may read it.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, Iterable

from ..memory import messages
from ..memory.attach import PoolMap
from ..memory.pool import Pool
from ..sync.barrier import WaitPolicy, wait
from ..sync.control_block import ControlBlock


class MasterEnd:
    """The master's end: sends every command to all other ranks, and receives their answers."""

    def __init__(
        self, block: ControlBlock, ranks: Iterable[int], pool: Pool, pools: PoolMap, policy: WaitPolicy
    ) -> None:
        self.block, self.ranks, self.pool, self.pools, self.policy = block, list(ranks), pool, pools, policy
        self._keep: Any = None

    def send(self, number: int, payload: bytes) -> None:
        """Publish the command of that number. Where this raises SharedMemoryError, no rank has moved."""
        block = self.block
        block.command_length, self._keep = messages.put(payload, block.command_slot, self.pool)
        block.command_number = number
        for rank in self.ranks:
            block.commands[rank].release()

    def wait(self, rank: int, number: int, watch: Callable[[], object]) -> None:
        """Wait until the rank has answered the command of that number."""
        block = self.block
        while block.finished[rank] < number:  # the semaphore may also be a call for attention
            wait(block.answers[rank], watch, *self.policy)
            if block.finished[rank] < number:
                watch()

    def read(self, rank: int) -> Any:
        """Return the rank's answer to the last command; whatever unpickling it raises comes out."""
        block = self.block
        return pickle.loads(messages.get(block.answer_length[rank], block.answer_slots[rank], self.pools))


class RankEnd:
    """Another rank's end: receives commands, and answers them."""

    def __init__(self, block: ControlBlock, rank: int, pool: Pool, pools: PoolMap, policy: WaitPolicy) -> None:
        self.block, self.rank, self.pool, self.pools, self.policy = block, rank, pool, pools, policy
        self._keep: Any = None

    def wait(self, watch: Callable[[], object]) -> int:
        """Wait for the next command; return its number."""
        block = self.block
        while block.command_number <= block.finished[self.rank]:
            wait(block.commands[self.rank], watch, *self.policy)
        self._keep = None
        return block.command_number

    def read(self) -> Any:
        """Return the command; whatever unpickling it raises comes out."""
        return pickle.loads(messages.get(self.block.command_length, self.block.command_slot, self.pools))

    def send(self, number: int, payload: bytes) -> None:
        """Answer the command of that number. Where this raises SharedMemoryError, nothing was sent."""
        block = self.block
        block.answer_length[self.rank], self._keep = messages.put(payload, block.answer_slots[self.rank], self.pool)
        block.finished[self.rank] = number
        block.answers[self.rank].release()
