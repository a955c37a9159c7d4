"""Specification of a new session, sent to the other hosts."""

from __future__ import annotations

import sys
from typing import List, NamedTuple, Optional

from ..sync.hosts import Hosts
from ..sync.rendezvous import Rendezvous

ENGINES = ("theano", "pytensor")  # packages that are slow to import


def modules_to_import() -> List[str]:
    """Return the names of the engines and of this library's modules that the program has imported."""
    ours = [name for name in list(sys.modules) if name.split(".")[0] == __name__.split(".")[0]]
    return [name for name in ENGINES if name in sys.modules] + sorted(ours)


class SessionSpec(NamedTuple):
    """Specification of a new session, sent to the other hosts; for fields without a comment see `Options`."""

    hosts: Hosts  # as seen by the receiving host
    root: int  # the master's rank
    program_pools: List[int]  # identifiers of the program's pools
    path: List[str]  # the program's ``sys.path``, appended to the host's own
    directory: str  # the program's working directory
    pin: bool
    keep_heap: bool
    threads: Optional[int]
    profile: bool  # whether ranks write cProfile files
    modules: List[str]  # imported once, before ranks are forked
    span_bytes: int = 0  # size of each rank's ring buffer for its recorded activity; 0 without recording
    reductions: int = 0  # number of the session's first reduction over hosts
    meeting: Optional[Rendezvous] = None  # rendezvous of the master with the other hosts' first ranks
    heals: bool = False  # whether dead ranks are replaced
    standby: bool = False  # whether each host has a process that can replace a dead rank
