"""What a process must do to become a rank."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Callable, Dict

from ..context import RankContext
from ..control_block import ControlBlock
from ..placement import limit_threads
from ..rendezvous import Patience, Rendezvous
from ..shared_array import Pool, PoolMap
from ..transports.shared_memory import SharedMemoryTransport
from .base import RankConfig
from .channel import RankEnd
from .rank import serve

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was told
        os._exit(0)


def take_default_signals() -> None:
    """Undo the program's signal handlers, which are not meant for this process."""
    for number in range(1, signal.NSIG):
        try:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):  # numbers that do not exist, or that cannot be caught
            pass


def rank_main(config: RankConfig, block: ControlBlock, fds: Dict[int, int], keeper: int) -> None:
    """Be a rank: set the process up and serve commands until told to stop.

    Parameters
    ----------
    config : RankConfig
        Who this is.
    block : ControlBlock
        Where the session meets.
    fds : dict of int to int
        Descriptors of the pools, by ident.
    keeper : int
        Process id of the parent, whose death ends this process.
    """
    os.environ.clear()
    os.environ.update(config.environment)
    sys.path[:] = config.path
    os.chdir(config.directory)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    if config.cores:
        os.sched_setaffinity(0, config.cores)
    limit_threads(config.threads)

    def watch() -> None:
        if os.getppid() != keeper:
            os._exit(0)

    patience = Patience.of_processes(config.size, config.budget)
    pool = Pool(config.rank, fd=fds.pop(config.rank))
    pools = PoolMap()
    pools.add(config.rank, pool)
    for ident, fd in fds.items():
        pools.add(ident, fd)
    rendezvous = Rendezvous(block, config.rank, config.root, watch, patience)
    context = RankContext(rendezvous, pool, pools, SharedMemoryTransport(rendezvous, pool, pools))
    channel = RankEnd(block, config.rank, pool, pools, patience)
    _profiled(config, lambda: serve(context, channel, watch))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _profiled(config: RankConfig, work: Callable[[], None]) -> None:
    if config.profile is None:
        work()
        return
    import cProfile

    profile = cProfile.Profile()
    try:
        profile.runcall(work)
    finally:
        profile.dump_stats(config.profile)
