"""The control block of one of several hosts: leading rank and bridge or deputy copy other hosts' state into it."""

from __future__ import annotations

from typing import Sequence, Tuple

from .control_block import ControlBlock
from .event_fd import EventFd
from .hosts import Hosts


class BlockOverHosts(ControlBlock):
    """A control block with two eventfds (``bells``), so that its leading rank waits for links and ranks together.

    `lead` wakes the leading rank, and `bridge` the bridge or deputy, through which an abort reaches other hosts' ranks.
    """

    notice_bytes = 5 << 14  # enough for values of 64 KiB and their locations

    def __init__(self, hosts: Hosts, fd: int = -1, bells: Sequence[int] = (-1, -1), span_bytes: int = 0) -> None:
        super().__init__(hosts.size, fd, span_bytes)
        self.bridge, self.lead = map(EventFd, bells)
        self.arrivals, self.answers = self.lead, [self.lead] * self.size
        for rank in hosts.near[:1] if hosts.own else ():
            self.releases[rank] = self.commands[rank] = self.lead
        for rank in hosts.far:
            self.releases[rank] = self.commands[rank] = self.bridge

    def bells(self) -> Tuple[int, ...]:
        return self.bridge.fileno(), self.lead.fileno()

    def call_root(self) -> None:
        super().call_root()
        self.bridge.release()

    def drain(self) -> None:
        for each in {self.arrivals, *self.releases} - {self.bridge}:  # the bridge may still have to react
            each.drain()


def block_of(hosts: Hosts, fd: int = -1, bells: Sequence[int] = (), span_bytes: int = 0) -> ControlBlock:
    """Return a host's control block: a new one, or the one with descriptors ``fd`` and ``bells``."""
    if not hosts.are_several:
        return ControlBlock(hosts.size, fd, span_bytes)
    return BlockOverHosts(hosts, fd, bells or (-1, -1), span_bytes)
