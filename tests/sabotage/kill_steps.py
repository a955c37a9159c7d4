"""Recorded protocol steps: at any step, a chosen rank can be killed or stopped, or every process can be late.

`Steps.install` observes the named points of the library (`synkhronos.trace`) in this process. Ranks inherit the
observer, and memory where they count and name their steps.
"""

import ctypes
import faulthandler
import mmap
import os
import random
import signal
import threading
import time

import synkhronos.calls.function  # noqa: F401, everything that declares points
import synkhronos.testing.numpy_engine  # noqa: F401
from synkhronos import trace
from synkhronos.runtime.channel import RankEnd

#: Points that only the master passes, and points that programs of the NumPy engine on one host do not pass.
NOT_OF_RANKS = (
    *("MasterEnd", "GraphEngine", "Loader", "Pass", "Fetcher", "RankEnd.promise"),
    *("Session", "Function", "Arguments"),  # in the calling process
)

#: Points that a rank passes; each has two steps, before and after.
OF_RANKS = [point for point in trace.POINTS if not {point.owner.__name__, point.label} & {*NOT_OF_RANKS}]
NAMES = [f"{point.label} {when}" for point in OF_RANKS for when in ("before", "after")]
_NUMBERS = {name: number for number, name in enumerate(NAMES)}

#: A rank's action at its step: to send itself the signal of this number, or one of these.
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


class Steps(trace.TraceObserver):
    """A planned failure, and recorded steps.

    Attributes
    ----------
    late : float
        Maximum delay of every process in seconds, at one step in five; 0 for none.
    """

    def __init__(self):
        self._mmap = mmap.mmap(-1, ctypes.sizeof(_Memory))
        self.memory = _Memory.from_buffer(self._mmap)
        self.memory.rank = -1
        self._master = os.getpid()
        self._rank = None
        self.late = 0.0
        self._random = random.Random()

    def install(self, request=None):
        """Observe all points, for the test of a ``request`` or for the rest of this process."""
        trace.observe(self)
        if request is not None:
            request.addfinalizer(lambda: trace.ignore(self))

    def begin(self, point, owner, arguments):
        """Delay the master; on a rank, take the planned action for the step before the point."""
        if os.getpid() == self._master and self._rank is None:
            self._be_late()
            return
        if self._rank is None and isinstance(owner, RankEnd):
            self._come_to_life(arguments[1])
        self._step(point, "before")

    def end(self, point, owner, arguments):
        """Take the planned action for the step after the point."""
        if os.getpid() != self._master or self._rank is not None:
            self._step(point, "after")

    def plan(self, rank=-1, step=-1, action=signal.SIGKILL, after=0.0):
        """Plan a rank's fatal action at its step of this number, counted from zero.

        Without a step, the rank is killed ``after`` seconds after its start.
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
        """Return the step of the planned action, or None, and its time."""
        at = self.memory.at
        return (None if at < 0 else NAMES[at]), self.memory.when

    def _come_to_life(self, rank):
        self._rank = rank
        faulthandler.disable()  # deliberate crashes need no stacks
        self._random = random.Random(os.getpid() * 1000003 + time.monotonic_ns())
        if self.memory.rank == rank and self.memory.after and self.memory.at < 0:  # (the rank may replace a killed one)
            threading.Thread(target=self._be_killed, daemon=True).start()

    def _be_killed(self):
        time.sleep(self.memory.after)
        self.memory.at = self.memory.names[self._rank][max(0, self.memory.counts[self._rank] - 1)]
        self.memory.when = time.monotonic()
        os.kill(os.getpid(), signal.SIGKILL)

    def _be_late(self):
        if self.late and self._random.random() < 0.2:
            time.sleep(self._random.random() * self.late)

    def _step(self, point, when):
        number = _NUMBERS.get(f"{point.label} {when}")
        if number is None:
            return
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
