"""The bridge's end: says in the master's control block what may happen at any time to ranks of other hosts."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Sequence, Tuple

from ...runtime.exit_status import LOST
from ...sync.control_block import ABORTED, DECIDED, FATAL_ERROR_BYTES, ControlBlock
from ...sync.hosts import Hosts
from ..processes.keeper import record_exit
from .bulk import Bulk
from .copying import Copying
from .wire import Line


class StandIn(Copying):
    """Tells the other hosts of commands that are given up, and the master what has become of their ranks.

    Parameters
    ----------
    hosts, block, pools, bulk
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
        lines: Sequence[Line],
        outputs: Sequence[int],
        bulk: Optional[Bulk] = None,
    ) -> None:
        super().__init__(hosts, block, pools, [None, *lines], bulk)
        self.lines = lines
        self.outputs = {rank: outputs[2 * i : 2 * i + 2] for i, rank in enumerate(hosts.far)}
        self._told = 0  # the last command given up that the others were told of

    def look(self, overdue: bool) -> bool:
        words = self.block.words
        aborted = words[ABORTED]
        if aborted > self._told:
            self._told = aborted
            decided = words[DECIDED]  # read last: no barrier of that command will be decided any more
            self.requests.look_at_aborted()
            for line in self.lines:
                line.send("aborted", aborted, decided, self.requests.next_reduction)
            self.wake(self.hosts.near)  # who waits for what it has asked for
        return False

    # -- what other hosts say ------------------------------------------------------------------------------------

    def on_steps(self, steps: Any) -> None:
        """Ranks have made steps."""
        self.block.note_steps(steps)

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
        self.block.shown[rank] += len(text)

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
