"""The bridge's stand-in for other hosts: applies events of their ranks to the master's control block."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Dict, Sequence, Tuple

from ..processes.keeper import record_exit
from ..runtime.exit_status import LOST
from ..sync.control_block import ABORT_REQUESTED, ABORTED, DECIDED
from .copying import Copying
from .messages import AbortCommand, CommandAborted, Printed, RanksEnded, StepCounts
from .requests import Requests


class StandIn(Copying):
    """Sends aborts to other hosts; writes remote ranks' output into ``outputs``, two files per rank."""

    def __init__(self, requests: Requests, outputs: Sequence[int]) -> None:
        super().__init__(requests)
        self.outputs = {rank: outputs[2 * i : 2 * i + 2] for i, rank in enumerate(self.hosts.far)}

    def look(self, overdue: bool) -> bool:
        words = self.block.words
        aborted = words[ABORTED]
        if aborted > self.requests.aborted:
            decided = words[DECIDED]  # read after `aborted`, when no further barrier of that command can be decided
            reductions = 0 if self.requests.bulk is None else self.requests.bulk.after_abort()
            for line in self.requests.lines[1:]:  # before `abort`, which also sends messages to these hosts
                with suppress(ConnectionError):  # of a lost host; the others must still abort the command
                    line.send(CommandAborted(aborted, decided, reductions))
            self.requests.abort(aborted, reductions)
            self.wake(self.hosts.near)  # ranks may be waiting for replies to their requests
        return False

    # -- messages from other hosts -------------------------------------------------------------------------------------

    def on_steps(self, steps: Dict[int, Tuple[int, int, int]]) -> None:
        self.block.note_steps(steps)

    def on_abort(self, command: int) -> None:
        if self.block.words[ABORTED] < command:
            self.block.words[ABORT_REQUESTED] = max(self.block.words[ABORT_REQUESTED], command)
            self.block.arrivals.release()

    def on_ended(self, ranks: Dict[int, Tuple[int, int, bytes]]) -> None:
        """Record the exit status, peak memory and traceback of ranks that have ended."""
        has_lost = self._has_lost()
        for rank, ended in ranks.items():
            if ended[0] != LOST or not has_lost:
                record_exit(self.block, rank, *ended)

    def on_output(self, rank: int, stream: int, text: bytes) -> None:
        os.write(self.outputs[rank][stream], text)
        self.block.shown[rank] += len(text)

    handlers = {StepCounts: on_steps, AbortCommand: on_abort, RanksEnded: on_ended, Printed: on_output}

    def fail(self, reason: str) -> None:
        if not self._has_lost():
            for host in range(1, len(self.hosts.ranks)):
                self.lose(host, f"the bridge process failed:\n{reason}")

    def _has_lost(self) -> bool:
        """Return whether a host is lost: the error must name this host, not a failure of MPI that follows."""
        return any([self.block.status[rank] == LOST for rank in self.hosts.far])

    def lose(self, host: int, reason: str) -> None:
        for rank in self.hosts.ranks[host]:
            if not self.ended and not self.block.ended[rank]:
                record_exit(self.block, rank, LOST, 0, reason.encode())
