"""Semaphores that live in shared memory and have no name.

POSIX ``sem_t`` objects, reached through the C library: every process that maps the memory can use them, nothing needs
to be inherited, and a ``kill -9`` leaves nothing behind (a named semaphore would stay in /dev/shm).

A wait tries for a short while and then blocks, in bounded steps between which the waiter checks that its peers
live. All waits of ranks for each other, and of the master for answers, are `Semaphore.wait`. (The keeper polls its
socket, `close` waits for ranks to end, and NCCL is polled.)
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from typing import Any, Callable, NamedTuple

#: Bytes to set aside for one semaphore: a cache line of its own, so that spinning on one does not slow its neighbours.
SEMAPHORE_BYTES = 64

#: Longest time, in seconds, between two checks that the peers live.
POLL_INTERVAL_S = 0.1


class WaitPolicy(NamedTuple):
    """How long to try before blocking.

    Parameters
    ----------
    tries : int
        How often a semaphore is tried: about the time that blocking and waking would cost. A try costs a fifth of a
        microsecond, blocking and being woken tens.
    yields : bool
        Whether to yield the core between tries: with more ranks than cores, the peer may need it.
    """

    tries: int
    yields: bool

    @classmethod
    def of_processes(cls, ranks: int, cores: int, pinned: bool) -> WaitPolicy:
        """Return what suits ``ranks`` processes on ``cores`` cores, each pinned to its own or not."""
        # Yielding gives away whole time slices to any other process, so it is done only if the peer may need the core:
        # if there are more ranks, or if the kernel may have put two on one.
        return cls(600, False) if pinned and ranks <= cores else cls(60, True)

    @classmethod
    def of_hosts(cls) -> WaitPolicy:
        """Return what suits processes that wait for the network; the bridge may need the core."""
        return cls(60, True)

    @classmethod
    def of_threads(cls) -> WaitPolicy:
        """Return what suits ranks that share one interpreter: trying would keep it from the peer."""
        return cls(1, False)


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


def _load() -> Any:
    """Return the C library's semaphore functions, bound once per process."""
    if not sys.platform.startswith("linux"):
        raise ImportError(
            "synkhronos needs Linux: its semaphores live in shared memory without a name, "
            f"which {sys.platform} does not offer"
        )
    blocking = ctypes.CDLL(None, use_errno=True)  # lets other Python threads run meanwhile
    quick = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter: for calls that return at once
    if not hasattr(blocking, "sem_clockwait"):  # glibc before 2.34 keeps semaphores in libpthread
        blocking = ctypes.CDLL("libpthread.so.0", use_errno=True)
        quick = ctypes.PyDLL("libpthread.so.0", use_errno=True)
    return blocking, quick


_blocking, _quick = _load()
_init, _post, _trywait = _quick.sem_init, _quick.sem_post, _quick.sem_trywait
_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
_post.argtypes = _trywait.argtypes = [ctypes.c_void_p]
if hasattr(_blocking, "sem_clockwait"):
    _clockwait = _blocking.sem_clockwait
    _clockwait.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Timespec)]
else:  # glibc before 2.30: only the wall clock, which may be set back; the steps of a wait are short

    def _clockwait(semaphore: Any, clock: int, until: Any, _wait: Any = _blocking.sem_timedwait) -> int:
        moment = time.time() + max(0.0, until.tv_sec + until.tv_nsec * 1e-9 - time.monotonic())
        failed: int = _wait(semaphore, ctypes.byref(_Timespec(int(moment), int(moment % 1 * 1e9))))
        return failed


class Semaphore:
    """A counter in shared memory that processes wait on.

    Parameters
    ----------
    memory : writable buffer
        At least `SEMAPHORE_BYTES` bytes of shared memory, aligned to 64 bytes. Kept alive by this object.
    create : bool
        Whether to initialise it with the count 0; else it must have been created elsewhere.
    """

    __slots__ = ("_keep", "_address")

    def __init__(self, memory: Any, create: bool = False) -> None:
        self._keep = (ctypes.c_char * SEMAPHORE_BYTES).from_buffer(memory)
        self._address = ctypes.c_void_p(ctypes.addressof(self._keep))
        if create and _init(self._address, 1, 0):
            raise OSError(ctypes.get_errno(), "sem_init: " + os.strerror(ctypes.get_errno()))

    def release(self) -> None:
        """Add one to the count and wake one waiter."""
        if _post(self._address) and ctypes.get_errno() != errno.EOVERFLOW:
            raise OSError(ctypes.get_errno(), "sem_post: " + os.strerror(ctypes.get_errno()))

    def try_acquire(self) -> bool:
        """Take one from the count if it is positive; return whether it was."""
        taken: bool = _trywait(self._address) == 0
        return taken

    def acquire(self, seconds: float) -> bool:
        """Wait at most so long for a positive count and take one from it; return whether it succeeded.

        Returns early, with False, if a signal arrives: Python runs its handler before the next attempt.
        """
        until = time.monotonic() + seconds
        moment = _Timespec(int(until), int(until % 1 * 1e9))
        taken: bool = _clockwait(self._address, time.CLOCK_MONOTONIC, moment) == 0
        return taken

    def wait(self, watch: Callable[[], object], policy: WaitPolicy) -> None:
        """Take one from the count, however long it takes.

        Parameters
        ----------
        watch : callable
            Called at every step; ends the wait by raising, or by returning True.
        policy : WaitPolicy
        """
        address, yields = self._address, policy.yields
        for _ in range(policy.tries):
            if _trywait(address) == 0:
                return
            if yields:
                os.sched_yield()
        while not self.acquire(POLL_INTERVAL_S):
            if watch():
                return

    def drain(self) -> None:
        """Set the count to zero, while no other process uses the semaphore."""
        while _trywait(self._address) == 0:
            pass
