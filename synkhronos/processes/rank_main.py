"""Main function of a rank's process, after the keeper has forked it."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from contextlib import suppress
from typing import Callable, Dict, Union

from ..host.affinity import confine
from ..host.heap import keep_freed_memory
from ..host.threads import limit_threads
from ..memory.pool import Pool, range_of
from ..profile.recording import RECORDING
from ..runtime.channel import RankEnd
from ..runtime.context import RankContext
from ..runtime.deposits import Deposits
from ..runtime.failures import Failure
from ..runtime.launcher import RankConfig
from ..runtime.prefetch import Preloader
from ..runtime.serve import serve
from ..sync.barrier import long_notices
from ..sync.control_block import FATAL_ERROR_BYTES, ControlBlock
from ..sync.link import Link
from ..sync.rendezvous import connect
from ..trace import log_as_the_environment_says
from .output import counter

_PR_SET_PDEATHSIG = 1

EXIT_CODE_FAILED = 70  # exit code of a rank that failed outside a command; EX_SOFTWARE in BSD
ASK_FOR_STACKS = signal.SIGRTMIN + 5  # signal that makes a rank write its Python stacks


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(0)


def take_default_signals() -> None:
    """Reset the signal handlers and the mask inherited from the program."""
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):  # invalid numbers, or signals that cannot be caught
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def record_fatal_error(block: ControlBlock, rank: int, error: BaseException) -> None:
    """Store the error that ended a rank outside commands, for `fatal_error`."""
    words = Failure(error).text.encode("utf-8", "replace").replace(b"\0", b"?")[-FATAL_ERROR_BYTES:]
    block.fatal_error[rank][: len(words)] = words


def fatal_error(block: ControlBlock, rank: int) -> str:
    """Return the error, usually a traceback, that ended a rank outside commands; "" if there is none."""
    return bytes(block.fatal_error[rank]).rstrip(b"\0").decode("utf-8", "ignore")


def rank_main(config: RankConfig, block: ControlBlock, stacks: int, fds: Dict[int, int], keeper: int) -> None:
    """Set the process up as a rank, and serve commands until the session or the process ``keeper`` ends.

    ``stacks`` is the file for the ranks' Python stacks, and ``fds`` maps the pools' ids to descriptors.
    """
    os.environ.clear()
    os.environ.update(config.environment)
    sys.path[:] = config.path
    if config.directory:
        os.chdir(config.directory)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    # The handler is C code, so it works even while an operation holds the GIL.
    faulthandler.register(ASK_FOR_STACKS, os.fdopen(stacks, "wb"), all_threads=True)
    confine(config.cores)
    limit_threads(config.threads)
    if config.keep_heap:
        keep_freed_memory()
    log_as_the_environment_says()
    if len(block.spans[config.rank]):
        RECORDING.add(config.rank, block.spans[config.rank], any_thread=True)

    def watch() -> None:
        if os.getppid() != keeper:
            os._exit(0)

    _profiled(config, lambda: run_rank(config, block, fds, watch))
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader is gone, or the stream is closed
            stream.flush()


def run_rank(config: RankConfig, block: ControlBlock, fds: Dict[int, int], watch: Callable[[], object]) -> None:
    """Create the rank's state and serve commands, in a process that is set up; close the descriptors ``fds``.

    ``watch``, called in waits, ends the rank if the keeper is gone.
    """
    unread = long_notices(block, config.rank)  # empty, except for a rank that replaces a dead one
    taken = [*config.taken, *[range_of(each) for each in unread if each is not None]]
    pool = Pool(config.rank, fd=fds[config.rank], taken=taken)
    notices = [None if each is None else pool.adopt(each) for each in unread]
    pools: Dict[int, Union[int, Pool]] = {**fds, config.rank: pool}
    links = [] if config.meeting is None else [Link(connect(config.meeting, config.rank))]  # of its host's leader
    policy = config.policy
    context = RankContext.create(config.rank, config.root, block, pool, pools, watch, policy, config.hosts, links=links)
    context.barrier.keep(notices)
    for ident, fd in fds.items():
        if ident != config.rank:
            os.close(fd)  # the context has duplicates
    printed = counter() if config.hosts.own else int
    channel = RankEnd(block, config.rank, pool, context.pools, policy, context.leading, printed)
    if config.promises:
        context.transaction.promises = channel.promise
    if config.heals:
        context.transaction.deposits = Deposits.of(context)
    serve(context, channel, Preloader(block, watch, channel.may_be_called))


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
