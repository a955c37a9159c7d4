"""The other hosts' end: plays the root in the control block of a host."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from typing import Any, Deque, Dict, Optional, Sequence, Set, Tuple

from ...memory import messages
from ...memory.memfd import give_back
from ...memory.pool import Pool
from ...sync.barrier import is_due
from ...sync.control_block import (
    ABORT_REQUESTED,
    ABORTED,
    COMMAND_LENGTH,
    COMMAND_NUMBER,
    DEATHS,
    DECIDED,
    FATAL_ERROR_BYTES,
    STOP_REQUESTED,
    ControlBlock,
)
from ...sync.hosts import Hosts
from ..processes.keeper import record_exit
from ..processes.launcher import ProcessLauncher
from .bulk import Bulk
from .copying import Copying
from .wire import Line


class Deputy(Copying):
    """Copies commands and decisions into the block, and what the ranks of this host reach and answer to the first host.

    Parameters
    ----------
    hosts, block, pools, pool, bulk
        See `Copying`.
    line : Line
        To the first host.
    launcher : ProcessLauncher
        Has started the ranks of this host.
    """

    def __init__(
        self,
        hosts: Hosts,
        block: ControlBlock,
        pools: Dict[int, int],
        pool: Pool,
        line: Line,
        launcher: ProcessLauncher,
        bulk: Optional[Bulk] = None,
    ) -> None:
        super().__init__(hosts, block, pools, pool, [line] * len(hosts.ranks), bulk)
        self.line, self.launcher, self.outputs = line, launcher, launcher.outputs()
        n = hosts.size
        self._arrived, self._finished, self._promised = [0] * n, [0] * n, [0] * n
        self._steps = [(0, 0, 0)] * n
        self._ended: Set[int] = set()
        self._abort_sent = 0
        self._printed = {(rank, i): 0 for rank in hosts.near for i in range(2)}
        self._command: Any = None
        self._commands: Deque[Tuple[int, bytes]] = deque()  # those that the ranks have not been given

    def fail(self, reason: str) -> None:
        print(
            f"synkhronos: the serving process of host {self.hosts.names[self.hosts.own]} failed:\n{reason}",
            file=sys.stderr,
        )
        self.line.close()  # and so it ends, and its ranks with it

    def look(self, overdue: bool) -> bool:
        self._deliver()
        block, words, near = self.block, self.block.words, self.hosts.near
        if overdue and not self.launcher.is_alive():
            self._record_death_of_keeper()
        if words[DEATHS]:
            ended = {rank: self._end_of(rank) for rank in near if block.ended[rank] and rank not in self._ended}
            if ended:
                self._ended.update(ended)
                self._forward()
                self.line.send("ended", ended)
        if words[ABORT_REQUESTED] > self._abort_sent:
            self._abort_sent = words[ABORT_REQUESTED]
            self.line.send("abort", self._abort_sent)
        living = [rank for rank in near if rank not in self._ended]
        arrived = newer(block.arrived, self._arrived, living)
        finished = newer(block.finished, self._finished, living)
        for rank, number in list(finished.items()):
            if is_due(block, self._promised[rank], number):  # the first host has its answer
                self._finished[rank] = finished.pop(rank)
        reached = (arrived, block.arrived), (finished, block.finished)
        if not overdue and not all(is_whole(numbers, words, living) for numbers, words in reached):
            return True
        for number in sorted(set(arrived.values())):
            ranks = [rank for rank in arrived if arrived[rank] == number]
            notices = {rank: self.notice_of(rank, number) for rank in ranks}
            promises = {
                rank: (block.promised[rank], self._answer_of(rank)) for rank in ranks if block.promised[rank] >= number
            }
            if promises:
                self._forward()
            for rank in ranks:
                self._arrived[rank] = number
                self._promised[rank] = promises[rank][0] if rank in promises else 0
            self.line.send("arrived", number, notices, promises, self._new_steps())
        for number in sorted(set(finished.values())):
            self._forward()
            ranks = [rank for rank in finished if finished[rank] == number]
            for rank in ranks:
                self._finished[rank] = number
            answers = {rank: self._answer_of(rank) for rank in ranks}
            self.line.send("answers", number, answers, self._new_steps())
        if overdue:
            self._forward()
            steps = self._new_steps()
            if steps:
                self.line.send("steps", steps)
        return False

    def _answer_of(self, rank: int) -> bytes:
        block = self.block
        return bytes(messages.get(block.answer_length[rank], block.answer_slots[rank], self.pools))

    def _record_death_of_keeper(self) -> None:
        """Count all ranks as killed: the kernel does that to those whose keeper ends, which nobody else records."""
        for rank in self.hosts.near:
            if not self.block.ended[rank]:
                words = str(self.launcher.error()).partition(";")[0].encode()[:FATAL_ERROR_BYTES]
                self.block.fatal_error[rank][: len(words)] = words
                record_exit(self.block, rank, -signal.SIGKILL)

    def _end_of(self, rank: int) -> Tuple[int, int, bytes]:
        words = bytes(self.block.fatal_error[rank]).rstrip(b"\0")
        return self.block.status[rank], self.block.memory[rank], words

    def _new_steps(self) -> Dict[int, Tuple[int, int, int]]:
        block, found = self.block, {}
        for rank in self.hosts.near:
            steps = block.steps_command[rank], block.steps[rank], block.undone[rank]
            if steps != self._steps[rank]:
                found[rank] = self._steps[rank] = steps
        return found

    def _forward(self) -> None:
        """Send what ranks have printed."""
        for (rank, stream), read in self._printed.items():
            fd = self.outputs[rank][stream]
            left = os.fstat(fd).st_size - read
            if left > 0:
                text = os.pread(fd, left, read)
                self.line.send("output", rank, stream, text)
                self._printed[rank, stream] = read + len(text)
                give_back(fd, read, read + len(text))

    # -- what the first host says --------------------------------------------------------------------------------

    def on_command(self, number: int, payload: bytes) -> None:
        """There is a command: for the ranks, once nothing of an earlier one is written into their memory any more."""
        self._commands.append((number, payload))
        self._deliver()

    def _deliver(self) -> None:
        block = self.block
        while self._commands and not self.requests.is_letting_go:
            number, payload = self._commands.popleft()
            block.words[COMMAND_LENGTH], self._command = messages.put(payload, block.command_slot, self.pool)
            block.words[COMMAND_NUMBER] = number
            for rank in self.hosts.near:
                block.commands[rank].release()

    def on_decided(self, number: int, stop: int, of: int, notices: Dict[int, Any]) -> None:
        """A barrier is complete, and maybe the one before, for which the notices are then."""
        words = self.block.words
        self.write_notices(of, notices)
        words[STOP_REQUESTED] = stop
        words[DECIDED] = number
        for rank in self.hosts.near:
            self.block.releases[rank].release()

    def on_aborted(self, command: int, reductions: int) -> None:
        """A command is given up; the next reduction over hosts was to be that one, as the first host counts."""
        words = self.block.words
        words[ABORTED] = max(words[ABORTED], command)
        if self.requests.bulk is not None:
            self.requests.bulk.reductions = reductions
        self.requests.look_at_aborted()
        self.wake(self.hosts.near)


def newer(words: Any, known: Sequence[int], ranks: Sequence[int]) -> Dict[int, int]:
    """Return the words of ranks that are larger than those that are known, each read once: ranks go on meanwhile."""
    now = {rank: words[rank] for rank in ranks}
    return {rank: number for rank, number in now.items() if number > known[rank]}


def is_whole(newer: Dict[int, int], words: Any, ranks: Sequence[int]) -> bool:
    """Return whether all ranks have reached the largest of the newer numbers, or there are none."""
    return not newer or min([words[rank] for rank in ranks]) >= max(newer.values())
