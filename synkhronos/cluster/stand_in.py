"""The bridge's stand-in for other hosts: applies events of their ranks to the master's control block."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Dict, Sequence, Tuple

from ..processes.keeper import record_exit
from ..runtime.exit_status import LOST
from ..sync.control_block import ABORT_REQUESTED, ABORTED, DECIDED
from .copying import Copying
from .loop import EventLoop
from .messages import AbortCommand, CommandAborted, Printed, RanksEnded, StepCounts
from .requests import Requests

LOSS_TIMEOUT_S = 6.0  # time for detecting a lost host after a failure; `wire` needs up to five seconds


class StandIn(Copying):
    """Sends aborts to other hosts; writes remote ranks' output into ``outputs``, two files per rank."""

    def __init__(self, requests: Requests, loop: EventLoop, outputs: Sequence[int]) -> None:
        super().__init__(requests, loop)
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
        for rank, ended in ranks.items():
            if ended[0] == LOST:
                self.loop.later(LOSS_TIMEOUT_S, partial(self.lose, self.hosts.of(rank), ended[2].decode(), True))
            else:
                record_exit(self.block, rank, *ended)

    def on_output(self, rank: int, stream: int, text: bytes) -> None:
        os.write(self.outputs[rank][stream], text)
        self.block.shown[rank] += len(text)

    handlers = {StepCounts: on_steps, AbortCommand: on_abort, RanksEnded: on_ended, Printed: on_output}

    def fail(self, reason: str) -> None:
        for host in range(1, len(self.hosts.ranks)):
            self.loop.later(LOSS_TIMEOUT_S, partial(self.lose, host, f"the bridge process failed:\n{reason}", True))

    def lose(self, host: int, reason: str, is_suspected: bool = False) -> None:
        """Record that a host is lost; if this is only suspected after a failure, unless a loss explains the failure."""
        if self.ended or is_suspected and any([self.block.status[rank] == LOST for rank in self.hosts.far]):
            return
        for rank in self.hosts.ranks[host]:
            if not self.block.ended[rank]:
                record_exit(self.block, rank, LOST, 0, reason.encode())
