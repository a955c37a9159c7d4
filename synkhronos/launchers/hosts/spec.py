"""What another host is told of a session that begins."""

from __future__ import annotations

import sys
from typing import List, NamedTuple, Optional

from ...sync.hosts import Hosts
from ...sync.meeting import Meeting

#: Packages that take long to import.
ENGINES = ("theano", "pytensor")


def modules_to_import() -> List[str]:
    """Return what this program has imported of the engines and of this library."""
    ours = [name for name in list(sys.modules) if name.split(".")[0] == __name__.split(".")[0]]
    return [name for name in ENGINES if name in sys.modules] + sorted(ours)


class SessionSpec(NamedTuple):
    """What another host is told of a session that begins.

    Attributes
    ----------
    hosts : Hosts
        As that host sees them.
    root : int
    program_pools : list of int
        Idents of the program's memory.
    path : list of str
        The program's ``sys.path``: what the host has of it is searched after its own.
    directory : str
        The program's working directory.
    pin, keep_heap : bool
    threads : int, optional
        See `fork`.
    profile : bool
    modules : list of str
        What the host imports before it forks ranks, or each of them would have to.
    span_bytes : int
        What each rank has to record what it does; 0 if nothing is recorded.
    reductions : int
        With which number reductions over hosts begin.
    meeting : Meeting
        Where the program waits for the first rank of each host.
    """

    hosts: Hosts
    root: int
    program_pools: List[int]
    path: List[str]
    directory: str
    pin: bool
    keep_heap: bool
    threads: Optional[int]
    profile: bool
    modules: List[str]
    span_bytes: int = 0
    reductions: int = 0
    meeting: Optional[Meeting] = None
