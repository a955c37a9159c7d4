"""The deputy on every host but the first: applies aborts to the host's control block, and reports the host's events."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import Deque, Dict, Mapping, Optional, Sequence, Set, Tuple, Union

from ..errors import SynkhronosError
from ..memory.memfd import give_back
from ..processes.keeper import record_exit
from ..processes.launcher import ProcessLauncher
from ..profile import ring
from ..runtime.exit_status import LOST, ORPHANED, WAITS
from ..runtime.launcher import Ranges
from ..sync.control_block import ABORT_REQUESTED, ABORTED, COMMAND_NUMBER, DEATHS, DECIDED, LET_GO
from ..sync.rendezvous import Rendezvous
from .copying import Copying
from .loop import EventLoop
from .messages import AbortCommand, CommandAborted, Handlers, Printed, RanksEnded, StepCounts
from .requests import Requests


class Deputy(Copying):
    """Reports deaths, output and requests of this host's ranks; ``launcher`` has started the ranks."""

    def __init__(self, requests: Requests, loop: EventLoop, launcher: ProcessLauncher) -> None:
        super().__init__(requests, loop)
        self.line, self.launcher, self.outputs = requests.lines[0], launcher, launcher.outputs()
        self._steps = [(0, 0, 0)] * self.hosts.size
        self._ended: Set[int] = set()
        self._abort_sent = 0
        self._aborted: Deque[Tuple[int, int]] = deque()  # aborted commands not yet announced to the ranks
        self._printed = {(rank, i): 0 for rank in self.hosts.near for i in range(2)}

    def fail(self, reason: str) -> None:
        words = f"the serving process of host {self.hosts.names[self.hosts.own]} failed:\n{reason}".encode()
        left = set(self.hosts.near) - self._ended
        if left:
            self._ended |= left
            with suppress(ConnectionError):  # the first host is lost
                self.line.send(RanksEnded(dict.fromkeys(left, (LOST, 0, words))))

    def look(self, overdue: bool) -> bool:
        block, words, near = self.block, self.block.words, self.hosts.near
        self._abort()
        if words[LET_GO] < words[ABORTED] and not self.requests.is_draining:
            words[LET_GO] = words[ABORTED]
            block.lead.release()
        if overdue and not self.launcher.is_alive():
            self._record_death_of_keeper()
        if words[DEATHS]:
            ended = {rank: self._end_of(rank) for rank in near if block.ended[rank] and rank not in self._ended}
            if ended:
                self._ended.update(ended)
                self._forward()
                self.line.send(RanksEnded(ended))
        if words[ABORT_REQUESTED] > self._abort_sent:
            self._abort_sent = words[ABORT_REQUESTED]
            self.line.send(AbortCommand(self._abort_sent))
        if overdue or any([block.printed[rank] > self._printed[rank, 0] + self._printed[rank, 1] for rank in near]):
            self._forward()
        if overdue:
            steps = {rank: block.steps_of(rank) for rank in near if block.steps_of(rank) != self._steps[rank]}
            for rank in steps:
                self._steps[rank] = steps[rank]
            if steps:
                self.line.send(StepCounts(steps))
        return bool(self._aborted)

    def _record_death_of_keeper(self) -> None:
        """Record all ranks as killed: the kernel kills the ranks of a dead keeper without recording their exits."""
        for rank in self.hosts.near:
            if not self.block.ended[rank]:
                reason = str(self.launcher.error()).partition(";")[0]
                record_exit(self.block, rank, ORPHANED, 0, reason.encode())

    def _end_of(self, rank: int) -> Tuple[int, int, bytes]:
        words = bytes(self.block.fatal_error[rank]).rstrip(b"\0")
        return self.block.status[rank], self.block.memory[rank], words

    def _forward(self) -> None:
        for (rank, stream), read in self._printed.items():
            fd = self.outputs[rank][stream]
            left = os.fstat(fd).st_size - read
            if left > 0:
                text = os.pread(fd, left, read)
                self.line.send(Printed(rank, stream, text))
                self._printed[rank, stream] = read + len(text)
                give_back(fd, read, read + len(text))

    # -- messages from the first host ---------------------------------------------------------------------------------

    def on_aborted(self, command: int, decided: int, reductions: int) -> None:
        """Abort a command's requests, and the command itself once barrier ``decided`` is complete here.

        ``reductions`` is the next reduction's number. No rank needs a reply to a request from before that barrier. Its
        completion may have to wait until a dead leader is replaced, which requires that requests are aborted.
        """
        self.requests.abort(command, reductions)
        self._aborted.append((command, decided))
        self._look(False)

    handlers = {CommandAborted: on_aborted}

    def _abort(self) -> None:
        """Abort commands on this host's ranks once the decisions of all earlier barriers have arrived."""
        words = self.block.words
        while self._aborted and words[DECIDED] >= self._aborted[0][1]:
            words[ABORTED] = max(words[ABORTED], self._aborted.popleft()[0])
            self.wake(self.hosts.near)

    # -- questions of the first host, besides those of `Server` ------------------------------------------------------

    def kill(self) -> Dict[int, bytes]:
        """End all ranks; return the ring buffers with their recorded activity."""
        self.end()
        self.launcher.kill()
        spans = self.block.spans
        return {rank: ring.used(spans[rank]) for rank in self.hosts.near} if len(spans[0]) else {}

    def end_ranks(self, ranks: Sequence[int], seconds: float) -> str:
        """End ranks, and wait until MPI no longer writes into this host's memory; return an error message, or "".

        Reports about ended ranks precede the answer.
        """
        try:
            self.launcher.end(ranks)
        except SynkhronosError as error:
            return str(error)
        self.give_up()
        return "" if self.drain(seconds) else "MPI did not stop in time"

    def replace(
        self, taken: Mapping[int, Ranges], command: int, meeting: Optional[Rendezvous]
    ) -> Union[str, Dict[int, int]]:
        """Start processes in place of ended ranks; return their ids, or an error message: see `Bridge.replace`."""
        block = self.block
        try:
            for rank in taken:
                block.reset(rank, command)
                self._ended.discard(rank)
            block.words[DEATHS] = 0
            if any(block.ended[rank] for rank in self.hosts.near):  # the keeper sets this before the word
                block.words[DEATHS] = 1
            self.launcher.replace(taken, self.requests.pools, meeting)
            return {rank: self.launcher.pid(rank) for rank in taken}
        except (SynkhronosError, OSError) as error:
            return f"ranks on host {self.hosts.names[self.hosts.own]} could not be replaced: {error}"

    def inspect(self, ranks: Sequence[int], seconds: float) -> Dict[int, str]:
        """Return the activity of ranks, with their Python stacks, or `WAITS`."""
        block, words = self.block, self.block.words
        waiting = [
            rank
            for rank in ranks
            if rank in self.requests.waiting
            or rank != self.hosts.near[0]  # the leader has forwarded its state, unless it is late
            and (block.arrived[rank] > words[DECIDED] or block.finished[rank] >= words[COMMAND_NUMBER])
        ]
        found = self.launcher.inspect([rank for rank in ranks if rank not in waiting], seconds)
        return {**found, **dict.fromkeys(waiting, WAITS)}

    questions: Handlers = {each.__name__: each for each in (end_ranks, replace, inspect)}
