"""Recorded protocol steps, at each of which a chosen rank can be made to do something fatal, or every rank to be late.

`Steps.install` wraps methods of the library in this process; ranks inherit
the wrappers, and a piece of memory in which they count and name their steps.
"""

import ctypes
import faulthandler
import mmap
import os
import random
import signal
import threading
import time

from synkhronos.kernels.reduce import Share
from synkhronos.launchers.processes import keeper
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.pool import Pool
from synkhronos.runtime.channel import MasterEnd, RankEnd
from synkhronos.runtime.context import RankContext
from synkhronos.sync.barrier import Barrier
from synkhronos.testing.numpy_engine import NumpyEngine
from synkhronos.transports.shared_memory import SharedMemoryTransport

#: What is wrapped: a step stands before each call of these, and after those that are marked.
WRAPPED = [
    (keeper, "rank_main", False),
    (RankEnd, "wait", True),
    (RankEnd, "read", False),
    (RankEnd, "send", True),
    (Barrier, "begin", False),
    (Barrier, "wait", True),
    (RankContext, "commit", True),
    (RankContext, "settle", False),
    (RankContext, "forget", False),
    (Pool, "allocate", True),
    (PoolMap, "attach", False),
    (NumpyEngine, "call", True),
    (NumpyEngine, "put", False),
    (NumpyEngine, "loads", True),
    (SharedMemoryTransport, "_exchange", True),
    (SharedMemoryTransport, "bind", False),
    (SharedMemoryTransport, "store", True),
    (SharedMemoryTransport, "swap_in", False),
    (Share, "combine", True),
]
NAMES = [
    "{}.{} {}".format(owner.__name__.split(".")[-1], name, when)
    for owner, name, after in WRAPPED
    for when in ("before", "after")
    if when == "before" or after
]

#: Steps of the master alone, where it can only be late.
OF_MASTER = [(MasterEnd, "send", False), (MasterEnd, "wait", False), (MasterEnd, "read", False)]

#: What a rank does at its step: send itself the signal of that number, or one of these.
OS_EXIT, SYS_EXIT = 0, -1

_LONGEST = 4000
_RANKS = 8


class _Memory(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_long),
        ("step", ctypes.c_long),
        ("action", ctypes.c_long),
        ("after", ctypes.c_double),
        ("when", ctypes.c_double),
        ("at", ctypes.c_long),
        ("counts", ctypes.c_long * _RANKS),
        ("names", ctypes.c_short * _LONGEST * _RANKS),
    ]


class Steps:
    """The plan, what happened, and the wrappers.

    Attributes
    ----------
    late : float
        Seconds that every process is late at most, at one step in five; 0 for never.
    """

    def __init__(self):
        self._mmap = mmap.mmap(-1, ctypes.sizeof(_Memory))
        self.memory = _Memory.from_buffer(self._mmap)
        self.memory.rank = -1
        self._master = os.getpid()
        self._rank = None
        self.late = 0.0
        self._random = random.Random()

    def install(self, monkeypatch=None):
        """Wrap the methods; for the rest of this process, where there is no ``monkeypatch``."""
        put = setattr if monkeypatch is None else monkeypatch.setattr
        for owner, name, after in WRAPPED:
            self._wrap(put, owner, name, after)
        for owner, name, _ in OF_MASTER:
            self._wrap_master(put, owner, name)

    def plan(self, rank=-1, step=-1, action=signal.SIGKILL, after=0.0):
        """Have the rank do something fatal at its step of that number; count the steps from zero.

        Without a step: be killed so many seconds after it came to life, wherever it is then.
        """
        self.memory.rank, self.memory.step, self.memory.action, self.memory.after = rank, step, action, after
        self.memory.when, self.memory.at = 0.0, -1
        for r in range(_RANKS):
            self.memory.counts[r] = 0

    def names(self, rank):
        """Return the steps that the rank has taken."""
        return [NAMES[number] for number in self.memory.names[rank][: self.memory.counts[rank]]]

    @property
    def happened(self):
        """Return the step at which it happened, or None, and the moment."""
        at = self.memory.at
        return (None if at < 0 else NAMES[at]), self.memory.when

    def _wrap(self, put, owner, name, after):
        original = getattr(owner, name)
        label = "{}.{} ".format(owner.__name__.split(".")[-1], name)
        before = NAMES.index(label + "before")
        then = NAMES.index(label + "after") if after else None

        def wrapper(*args, **kwargs):
            if os.getpid() == self._master and self._rank is None:
                self._be_late()
                return original(*args, **kwargs)
            if name == "rank_main":
                self._begin(args[0].rank)
            self._step(before)
            try:
                return original(*args, **kwargs)
            finally:
                if then is not None:
                    self._step(then)

        put(owner, name, wrapper)

    def _wrap_master(self, put, owner, name):
        original = getattr(owner, name)

        def wrapper(*args, **kwargs):
            self._be_late()
            return original(*args, **kwargs)

        put(owner, name, wrapper)

    def _begin(self, rank):
        self._rank = rank
        faulthandler.disable()  # what it is made to do is not worth a stack
        self._random = random.Random(os.getpid() * 1000003 + time.monotonic_ns())
        if self.memory.rank == rank and self.memory.after:
            threading.Thread(target=self._be_killed, daemon=True).start()

    def _be_killed(self):
        time.sleep(self.memory.after)
        self.memory.at = self.memory.names[self._rank][max(0, self.memory.counts[self._rank] - 1)]
        self.memory.when = time.monotonic()
        os.kill(os.getpid(), signal.SIGKILL)

    def _be_late(self):
        if self.late and self._random.random() < 0.2:
            time.sleep(self._random.random() * self.late)

    def _step(self, number):
        memory, rank = self.memory, self._rank
        count = memory.counts[rank]
        if count < _LONGEST:
            memory.names[rank][count] = number
            memory.counts[rank] = count + 1
        self._be_late()
        if memory.rank == rank and memory.step == count:
            memory.at, memory.when = number, time.monotonic()
            if memory.action == OS_EXIT:
                os._exit(0)
            if memory.action == SYS_EXIT:
                raise SystemExit("sabotage")
            os.kill(os.getpid(), memory.action)
