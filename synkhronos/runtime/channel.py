"""The channel between master and ranks: commands out, answers back, through shared memory.

A semaphore announces a message in a slot of the control block. Commands and answers alternate, so a slot is never
overwritten while it may be read. ::

    master   MasterEnd.send --- command slot, commands[r] ---> RankEnd.wait, RankEnd.read   rank r
             MasterEnd.wait, .read <--- answers[r], slot of r --- RankEnd.send

With several hosts, or if dead ranks are replaced, a rank can *promise* its answer before the last or second-to-last
barrier of a command. The answer becomes valid when the master decides the last barrier. This saves a round trip::

    master   ........ barrier k: wait, decide --- decided >= k ---> continue   ..........   rank r
             MasterEnd.wait, .read <--- promised[r] = k, slot of r --- RankEnd.promise

The rank may still be finishing that command, which can no longer fail, when the next command arrives. The root and
other hosts' leaders exchange commands, decisions and answers while they wait (`sync.host_relay`).
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, Dict, Iterable

from ..memory import messages
from ..memory.attach import PoolMap
from ..memory.pool import Pool
from ..sync.barrier import is_due
from ..sync.control_block import COMMAND_LENGTH, COMMAND_NUMBER, ControlBlock
from ..sync.host_relay import NO_RELAY, Relay
from ..sync.semaphore import WaitPolicy
from ..trace import point
from .command import Envelope
from .news import detached

MAX_FROZEN, FROZEN_BYTES = 16, 4096  # limits on a rank's cache of frozen commands: their number, and the size of each


class MasterEnd:
    """The master's end of the channel: sends every command to all other ranks and receives their answers."""

    def __init__(
        self,
        block: ControlBlock,
        ranks: Iterable[int],
        pool: Pool,
        pools: PoolMap,
        policy: WaitPolicy,
        leading: Relay = NO_RELAY,
    ) -> None:
        self.block, self.pool, self.pools, self.policy, self.leading = block, pool, pools, policy, leading
        self.ranks, self._answers = list(ranks), list(map(leading.waiting_for, block.answers))
        self._keep: Any = None

    @point("channel")
    def send(self, number: int, payload: bytes, watch: Callable[[], object] = bool) -> None:
        """Publish command ``number``. If this raises `SharedMemoryError`, no rank has been woken."""
        block, words = self.block, self.block.words
        if len(payload) <= len(block.command_slot):
            block.command_slot[: len(payload)] = payload
            words[COMMAND_LENGTH], self._keep = len(payload), None
        else:
            words[COMMAND_LENGTH], self._keep = messages.put(payload, block.command_slot, self.pool)
        words[COMMAND_NUMBER] = number
        self.leading.forward(watch)
        for rank in self.ranks:
            block.commands[rank].release()

    @point("channel")
    def wait(self, rank: int, number: int, watch: Callable[[], object]) -> None:
        block = self.block
        while block.finished[rank] < number:  # the semaphore is also released for other events
            if block.promised[rank] and self.has_answered(rank, number):
                return
            self._answers[rank].wait(watch, self.policy)
            if block.finished[rank] < number:
                watch()

    def has_answered(self, rank: int, number: int) -> bool:
        """Return whether the rank's answer to command ``number`` can be read."""
        block = self.block
        return bool(block.finished[rank] >= number) or is_due(block, block.promised[rank], number)

    @point("channel")
    def read(self, rank: int) -> Any:
        """Return the rank's answer to the last command; unpickling errors propagate."""
        length, slot = self.block.answer_length[rank], self.block.answer_slots[rank]
        return pickle.loads(slot[:length] if length >= 0 else messages.get(length, slot, self.pools))


class RankEnd:
    """The end of the channel on a rank other than the master: receives commands and answers them."""

    @point("channel")
    def __init__(
        self,
        block: ControlBlock,
        rank: int,
        pool: Pool,
        pools: PoolMap,
        policy: WaitPolicy,
        leading: Relay = NO_RELAY,
        printed: Callable[[], int] = int,
    ) -> None:
        self.block, self.rank, self.pool, self.pools, self.policy = block, rank, pool, pools, policy
        self._printed = printed  # returns the number of bytes printed so far; always 0 on the root's host
        self._leading, self._commands = leading, leading.waiting_for(block.commands[rank])
        self._frozen: Dict[bytes, Envelope] = {}
        self._keep: Any = None

    def is_called(self) -> bool:
        block = self.block
        return bool(block.words[COMMAND_NUMBER] > block.finished[self.rank])

    def may_be_called(self) -> bool:
        """Return whether this rank should continue with `wait`, because a command has arrived or may arrive soon."""
        return self.is_called() or bool(self._leading.has_news())

    @point("channel")
    def wait(self, watch: Callable[[], object]) -> int:
        while not self.is_called():  # also checked during the wait, because a leader may stop before it wakes this rank
            self._commands.wait(lambda: watch() or self.is_called(), self.policy)
        self._keep = None
        number: int = self.block.words[COMMAND_NUMBER]
        return number

    @point("channel")
    def read(self) -> Envelope:
        """Return the command's envelope; unpickling errors propagate.

        A cache maps the bytes of a frozen command to its envelope. Entries stay valid; only `Command.rows` may change.
        """
        length, slot = self.block.words[COMMAND_LENGTH], self.block.command_slot
        if not 0 <= length <= FROZEN_BYTES:
            envelope: Envelope = pickle.loads(messages.get(length, slot, self.pools))
            return envelope
        payload, news, rows = detached(bytes(slot[:length]))
        known = self._frozen.get(payload)
        envelope = pickle.loads(payload) if known is None else known
        if not envelope.is_frozen:
            return envelope
        if known is None:
            self._frozen[payload] = envelope
            if len(self._frozen) > MAX_FROZEN:
                del self._frozen[next(iter(self._frozen))]
        if envelope.command.rows is not rows:
            envelope.command.rows = rows
        return Envelope(envelope.forget, envelope.command, envelope.enclosed, True, news) if news else envelope

    @point("channel")
    def promise(self, barrier: int, payload: bytes) -> None:
        """Answer the command in progress; the answer becomes valid when the ``barrier`` with this number completes."""
        self._put(payload)
        self.block.promised[self.rank] = barrier

    def has_answered(self, number: int) -> bool:
        """Return whether a promised answer to command ``number`` has become valid."""
        return is_due(self.block, self.block.promised[self.rank], number)

    def finish(self, number: int) -> None:
        """Record that this rank, whose promised answer is valid, has finished the command."""
        self.block.finished[self.rank] = number

    @point("channel")
    def send(self, number: int, payload: bytes) -> None:
        """Answer command ``number``. If this raises `SharedMemoryError`, nothing was sent."""
        block = self.block
        self._put(payload)
        block.finished[self.rank] = number
        block.answers[self.rank].release()

    def _put(self, payload: bytes) -> None:
        block, rank = self.block, self.rank
        block.answer_length[rank], self._keep = messages.put(payload, block.answer_slots[rank], self.pool)
        nbytes = self._printed()
        if nbytes != block.printed[rank]:
            block.printed[rank] = nbytes
            block.bridge.release()

    def end(self, watch: Callable[[], object]) -> None:
        """Close the channel after the last command."""
        self._leading.finish(watch, self.policy)
