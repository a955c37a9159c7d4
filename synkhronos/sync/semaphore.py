"""Unnamed semaphores in shared memory: POSIX ``sem_t`` objects, used through the C library.

Every process that maps the memory can use them. ``kill -9`` leaves nothing behind, whereas a named semaphore would stay
in /dev/shm. A wait spins briefly and then blocks in bounded steps; between steps the waiter checks that its peers are
alive. Ranks wait for each other with `Semaphore.wait`, except between hosts (`host_relay`), in `close` and in NCCL.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from typing import Any, Callable, NamedTuple

#: Size reserved for one semaphore: a cache line, so that spinning on it does not slow its neighbors.
SEMAPHORE_BYTES = 64

POLL_INTERVAL_S = 0.1  # maximum time between two checks that the peers are alive


#: A function that is called repeatedly during a wait; it may raise an error or, in some waits, return True to end it.
Watch = Callable[[], object]


class WaitPolicy(NamedTuple):
    """Waiting policy: how long to spin before blocking.

    ``tries`` should take about as long as blocking and waking: a try costs 0.2 microseconds, and blocking costs
    tens of microseconds. With ``yields``, the core is yielded between tries, because the peer may need it.
    """

    tries: int
    yields: bool

    @classmethod
    def of_processes(cls, ranks: int, cores: int, pinned: bool) -> WaitPolicy:
        """Return the policy for ``ranks`` processes on ``cores`` cores; with ``pinned``, each has cores of its own."""
        # Yielding costs whole time slices if other processes run. So yield only if the peer may need this core: with
        # more ranks than cores, or if the kernel may run two ranks on one core.
        return cls(600, False) if pinned and ranks <= cores else cls(60, True)

    @classmethod
    def of_hosts(cls) -> WaitPolicy:
        """Return the policy for processes that wait for the network; the bridge may need the core."""
        return cls(60, True)

    @classmethod
    def of_threads(cls) -> WaitPolicy:
        """Return the policy for ranks in one interpreter, where a spinning rank would block its peers."""
        return cls(1, False)


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


def _load() -> Any:
    """Return two handles to the C library: one that releases the GIL during calls, and one that keeps it."""
    if not sys.platform.startswith("linux"):
        raise ImportError(f"synkhronos needs Linux: {sys.platform} has no unnamed semaphores in shared memory")
    blocking = ctypes.CDLL(None, use_errno=True)  # releases the GIL during calls
    quick = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL, for calls that return immediately
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
else:  # glibc before 2.30 has only the wall clock, which may be set back, but each wait is short

    def _clockwait(semaphore: Any, clock: int, until: Any, _wait: Any = _blocking.sem_timedwait) -> int:
        moment = time.time() + max(0.0, until.tv_sec + until.tv_nsec * 1e-9 - time.monotonic())
        failed: int = _wait(semaphore, ctypes.byref(_Timespec(int(moment), int(moment % 1 * 1e9))))
        return failed


class Semaphore:
    """A counter in shared memory that processes can wait on; ``memory`` must be aligned, and is kept alive.

    ``create`` initializes the count to 0; otherwise another process must have done so.
    """

    __slots__ = ("memory", "_address")

    def __init__(self, memory: Any, create: bool = False) -> None:
        self.memory = (ctypes.c_char * SEMAPHORE_BYTES).from_buffer(memory)
        self._address = ctypes.c_void_p(ctypes.addressof(self.memory))
        if create and _init(self._address, 1, 0):
            raise OSError(ctypes.get_errno(), "sem_init: " + os.strerror(ctypes.get_errno()))

    def release(self) -> None:
        """Add one to the count and wake one waiter."""
        if _post(self._address) and ctypes.get_errno() != errno.EOVERFLOW:
            raise OSError(ctypes.get_errno(), "sem_post: " + os.strerror(ctypes.get_errno()))

    def try_acquire(self) -> bool:
        """Decrement the count if it is positive; return whether it was."""
        taken: bool = _trywait(self._address) == 0
        return taken

    def acquire(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for a positive count and decrement it; return whether this succeeded.

        Return False early if a signal arrives, so that Python runs its handler before the next attempt.
        """
        until = time.monotonic() + seconds
        moment = _Timespec(int(until), int(until % 1 * 1e9))
        taken: bool = _clockwait(self._address, time.CLOCK_MONOTONIC, moment) == 0
        return taken

    def wait(self, watch: Watch, policy: WaitPolicy) -> None:
        """Wait for a positive count and decrement it; ``watch``, called repeatedly, returns True to end the wait."""
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
        """Set the count to zero; call this only while no other process uses the semaphore."""
        while _trywait(self._address) == 0:
            pass
