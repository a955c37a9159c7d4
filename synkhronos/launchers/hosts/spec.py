"""What another host is told of a session that begins."""

from __future__ import annotations

from typing import List, NamedTuple, Optional

from ...sync.hosts import Hosts


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
