"""The bridge's end: plays all ranks of other hosts in the master's control block."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Sequence, Tuple

from ...memory import messages
from ...memory.pool import Pool
from ...runtime.exit_status import LOST
from ...sync.control_block import (
    ABORTED,
    COMMAND_LENGTH,
    COMMAND_NUMBER,
    DECIDED,
    FATAL_ERROR_BYTES,
    STOP_REQUESTED,
    ControlBlock,
)
from ...sync.hosts import Hosts
from ..processes.keeper import record_exit
from .bulk import Bulk
from .copying import Copying
from .wire import Line


class StandIn(Copying):
    """Copies commands and decisions to the other hosts, and what their ranks reach and answer into the block.

    Parameters
    ----------
    hosts, block, pools, pool, bulk
        See `Copying`.
    lines : list of Line
        To the other hosts, in their order.
    outputs : list of int
        Descriptors of the files in which the master finds what ranks of other hosts print: two for each.
    """

    def __init__(
        self,
        hosts: Hosts,
        block: ControlBlock,
        pools: Dict[int, int],
        pool: Pool,
        lines: Sequence[Line],
        outputs: Sequence[int],
        bulk: Optional[Bulk] = None,
    ) -> None:
        super().__init__(hosts, block, pools, pool, [None, *lines], bulk)
        self.lines = lines
        self.outputs = {rank: outputs[2 * i : 2 * i + 2] for i, rank in enumerate(hosts.far)}
        self._sent = [0, 0, 0]  # the last command, decision and command given up that the others were told
        self._answers: Dict[int, Any] = {}

    def look(self, overdue: bool) -> bool:
        aborted = self.block.words[ABORTED]
        if aborted < self.block.words[COMMAND_NUMBER]:  # the ranks learn that before they begin the next command
            self._look_at_decided()
            self._tell_aborted(aborted)
        self._look_at_command()
        self._look_at_decided()  # a barrier that was decided is complete, though its command was given up later
        self._tell_aborted(aborted)
        return False

    def _look_at_command(self) -> None:
        block, words, sent = self.block, self.block.words, self._sent
        if words[COMMAND_NUMBER] > sent[0]:
            sent[0] = words[COMMAND_NUMBER]
            payload = bytes(messages.get(words[COMMAND_LENGTH], block.command_slot, self.pools))
            self._send("command", sent[0], payload)

    def _look_at_decided(self) -> None:
        words, sent = self.block.words, self._sent
        if words[DECIDED] > sent[1]:
            number = of = words[DECIDED]
            notices = {rank: self.notice_of(rank, of) for rank in range(self.hosts.size)}
            if None in notices.values() and sent[1] < number - 1:  # maybe the root has decided that one with the next
                of = number - 1
                notices = {rank: self.notice_of(rank, of) for rank in notices}
            sent[1] = number
            for host, line in enumerate(self.lines, 1):
                others = {rank: notice for rank, notice in notices.items() if rank not in self.hosts.ranks[host]}
                line.send("decided", number, words[STOP_REQUESTED], of, {} if None in others.values() else others)

    def _tell_aborted(self, aborted: int) -> None:
        if aborted > self._sent[2]:
            self._sent[2] = aborted
            self.requests.look_at_aborted()
            self._send("aborted", aborted, self.requests.next_reduction)

    def _send(self, *message: Any) -> None:
        for line in self.lines:
            line.send(*message)

    # -- what other hosts say ------------------------------------------------------------------------------------

    def on_arrived(
        self, number: int, notices: Dict[int, Any], promises: Dict[int, Tuple[int, bytes]], steps: Any
    ) -> None:
        """Ranks have reached a barrier, and some have said what they answer once it, or the next one, is complete."""
        block = self.block
        self.write_notices(number, notices)
        for rank, (barrier, payload) in promises.items():
            self._write_answer(rank, payload)
            block.promised[rank] = barrier
        self._write_steps(steps)
        for rank in notices:
            block.arrived[rank] = number
            block.arrivals.release()

    def on_answers(self, number: int, answers: Dict[int, bytes], steps: Any) -> None:
        """Ranks have answered a command."""
        block = self.block
        self._write_steps(steps)
        for rank, payload in answers.items():
            self._write_answer(rank, payload)
            block.finished[rank] = number
            block.answers[rank].release()

    def _write_answer(self, rank: int, payload: bytes) -> None:
        slot = self.block.answer_slots[rank]
        self.block.answer_length[rank], self._answers[rank] = messages.put(payload, slot, self.pool)

    def on_steps(self, steps: Any) -> None:
        """Ranks have made steps."""
        self._write_steps(steps)

    def _write_steps(self, steps: Dict[int, Tuple[int, int, int]]) -> None:
        block = self.block
        for rank, (command, made, undone) in steps.items():
            block.steps[rank], block.undone[rank] = made, undone
            block.steps_command[rank] = command

    def on_abort(self, command: int) -> None:
        """A rank asks for the command to be given up."""
        if self.block.aborted < command:
            self.block.abort_requested = max(self.block.abort_requested, command)
            self.block.arrivals.release()

    def on_ended(self, ranks: Dict[int, Tuple[int, int, bytes]]) -> None:
        """Ranks have ended: status, memory and the traceback that they have left."""
        for rank, (status, memory, words) in ranks.items():
            self.block.fatal_error[rank][: len(words)] = words
            record_exit(self.block, rank, status, memory)

    def on_output(self, rank: int, stream: int, text: bytes) -> None:
        """A rank has printed something."""
        os.write(self.outputs[rank][stream], text)

    def fail(self, reason: str) -> None:
        for host in range(1, len(self.hosts.ranks)):
            self.lose(host, f"the bridge process failed:\n{reason}")

    def lose(self, host: int, reason: str) -> None:
        """Count all ranks of a host as ended."""
        for rank in self.hosts.ranks[host]:
            if not self.ended and not self.block.ended[rank]:
                words = reason.encode()[:FATAL_ERROR_BYTES]
                self.block.fatal_error[rank][: len(words)] = words
                record_exit(self.block, rank, LOST)
