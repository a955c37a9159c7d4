"""Specification of a new session, sent to the other hosts."""

from __future__ import annotations

import sys
from typing import List, NamedTuple, Optional

from ..sync.hosts import Hosts
from ..sync.rendezvous import Rendezvous

ENGINES = ("theano", "pytensor")  # packages that are slow to import


def modules_to_import() -> List[str]:
    """Return the modules of the engines and of this library that the program has imported."""
    ours = [name for name in list(sys.modules) if name.split(".")[0] == __name__.split(".")[0]]
    return [name for name in ENGINES if name in sys.modules] + sorted(ours)


class SessionSpec(NamedTuple):
    """Specification of a new session, sent to the other hosts; for fields without a comment see `fork`."""

    hosts: Hosts  # as seen by the receiving host
    root: int
    program_pools: List[int]  # identifiers of the program's pools
    path: List[str]  # the program's ``sys.path``, which the host appends to its own
    directory: str
    pin: bool
    keep_heap: bool
    threads: Optional[int]
    profile: bool
    modules: List[str]  # imported once, before ranks are forked
    span_bytes: int = 0  # size of each rank's ring for records; 0 without recording
    reductions: int = 0  # number of the first reduction over hosts
    meeting: Optional[Rendezvous] = None  # where the program waits for the first rank of each host
