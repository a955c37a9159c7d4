"""Specification of a new session, sent to the other hosts."""

from __future__ import annotations

import sys
from typing import List, NamedTuple, Optional

from ..runtime.launcher import RankConfig
from ..sync.hosts import Hosts

ENGINES = ("theano", "pytensor")  # packages that are slow to import


def modules_to_import() -> List[str]:
    """Return the names of the engines and of this library's modules that the program has imported."""
    ours = [name for name in list(sys.modules) if name.split(".")[0] == __name__.split(".")[0]]
    return [name for name in ENGINES if name in sys.modules] + sorted(ours)


class SessionSpec(NamedTuple):
    """Specification of a new session, sent to the other hosts; for fields without a comment see `Options`."""

    hosts: Hosts  # as seen by the receiving host
    config: RankConfig  # of a rank of the first host; the other hosts replace the fields that differ there
    program_pools: List[int]  # identifiers of the program's pools
    pin: bool
    threads: Optional[int]
    standby: bool  # whether each host has a process that can replace a dead rank
    modules: List[str]  # imported once, before ranks are forked
    span_bytes: int  # size of each rank's ring buffer for its recorded activity; 0 without recording
    reductions: int = 0  # number of the session's first reduction over hosts
