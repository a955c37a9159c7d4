"""Recorded protocol steps, at each of which a chosen rank can be made to do something fatal.

`Steps.install` wraps methods of the library in this process; ranks inherit
the wrappers, and a piece of memory in which they count and name their steps.
"""

import ctypes
import mmap
import os
import signal
import time

from synkhronos.context import RankContext
from synkhronos.engines.numpy import NumpyEngine
from synkhronos.launchers import keeper
from synkhronos.launchers.channel import RankEnd
from synkhronos.rendezvous import Rendezvous
from synkhronos.shared_array import Pool, PoolMap
from synkhronos.transports.shared_memory import SharedMemoryTransport

#: What is wrapped: a step stands before each call of these, and after those that are marked.
WRAPPED = [
    (keeper, "rank_main", False), (RankEnd, "wait", True), (RankEnd, "read", False), (RankEnd, "send", True),
    (Rendezvous, "begin", False), (Rendezvous, "meet", True), (RankContext, "commit", True),
    (RankContext, "settle", False), (RankContext, "forget", False), (Pool, "allocate", True),
    (PoolMap, "attach", False), (NumpyEngine, "call", True), (NumpyEngine, "put", False), (NumpyEngine, "loads", True),
    (SharedMemoryTransport, "exchange", True), (SharedMemoryTransport, "place", False),
    (SharedMemoryTransport, "store", True), (SharedMemoryTransport, "adopt", False),
]
NAMES = ["%s.%s %s" % (owner.__name__.split(".")[-1], name, when)
         for owner, name, after in WRAPPED for when in ("before", "after") if when == "before" or after]

_LONGEST = 4000
_RANKS = 4


class _Memory(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_long), ("step", ctypes.c_long), ("action", ctypes.c_long),
                ("when", ctypes.c_double), ("at", ctypes.c_long),
                ("counts", ctypes.c_long * _RANKS), ("names", ctypes.c_short * _LONGEST * _RANKS)]


class Steps:
    """The plan, what happened, and the wrappers."""

    def __init__(self):
        self._mmap = mmap.mmap(-1, ctypes.sizeof(_Memory))
        self.memory = _Memory.from_buffer(self._mmap)
        self.memory.rank = -1
        self._master = os.getpid()
        self._rank = None

    def install(self, monkeypatch):
        for owner, name, after in WRAPPED:
            self._wrap(monkeypatch, owner, name, after)

    def plan(self, rank=-1, step=0, action=signal.SIGKILL):
        """Have the rank send itself that signal at its step of that number; count the steps from zero."""
        self.memory.rank, self.memory.step, self.memory.action = rank, step, action
        self.memory.when, self.memory.at = 0.0, -1
        for r in range(_RANKS):
            self.memory.counts[r] = 0

    def names(self, rank):
        """Return the steps that the rank has taken."""
        return [NAMES[number] for number in self.memory.names[rank][:self.memory.counts[rank]]]

    @property
    def happened(self):
        """Return the step at which it happened, or None, and the moment."""
        at = self.memory.at
        return (None if at < 0 else NAMES[at]), self.memory.when

    def _wrap(self, monkeypatch, owner, name, after):
        original = getattr(owner, name)
        label = "%s.%s " % (owner.__name__.split(".")[-1], name)
        before = NAMES.index(label + "before")
        then = NAMES.index(label + "after") if after else None

        def wrapper(*args, **kwargs):
            if os.getpid() == self._master:
                return original(*args, **kwargs)
            if name == "rank_main":
                self._rank = args[0].rank
            self._step(before)
            try:
                return original(*args, **kwargs)
            finally:
                if then is not None:
                    self._step(then)

        monkeypatch.setattr(owner, name, wrapper)

    def _step(self, number):
        memory, rank = self.memory, self._rank
        count = memory.counts[rank]
        if count < _LONGEST:
            memory.names[rank][count] = number
            memory.counts[rank] = count + 1
        if memory.rank == rank and memory.step == count:
            memory.at, memory.when = number, time.monotonic()
            if memory.action == 0:
                os._exit(0)
            os.kill(os.getpid(), memory.action)
