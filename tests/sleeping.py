"""Ranks that sleep one after another, so that one rank's sleep is another's wait, even on a busy machine."""

import contextlib
import threading
import time

import numpy as np
from gates import Gate

from synkhronos import trace


class Sleeping:
    """Sum that sleeps: for its value if that is at most 1, on the master; else for the excess over 1.

    The other ranks begin only when the master waits for them.
    """

    def __init__(self, folder):
        self.has_slept, self.is_waiting = Gate(folder / "has_slept"), Gate(folder / "is_waiting")

    def __call__(self, x):
        seconds = float(np.sum(x))
        if seconds > 1:
            self.is_waiting.wait()
            time.sleep(seconds - 1)
        else:
            time.sleep(seconds)
            self.has_slept.reach()
        return np.asarray(x).sum()

    def begin_again(self):
        for gate in (self.has_slept, self.is_waiting):
            gate.close()


class Entered(trace.TraceObserver):
    """Observer that opens a gate when this thread reaches one of these points after another gate is reached."""

    def __init__(self, names, after, gate):
        self.names, self.after, self.gate, self.thread = names, after, gate, threading.get_ident()

    def begin(self, point, owner, arguments):
        is_one = point.name in self.names or (point.name, point.method) in self.names
        if is_one and threading.get_ident() == self.thread and self.after():
            self.gate.open()


@contextlib.contextmanager
def observed(observer):
    """Observe points in the block; inside an epoch, the recorder sees each point first."""
    trace.observe(observer)
    try:
        yield
    finally:
        trace.ignore(observer)


def waits_for(sleeping):
    """Start the other ranks' sleep when the master has slept and waits for them."""
    return observed(Entered(["barrier", ("channel", "wait")], sleeping.has_slept.is_reached, sleeping.is_waiting))
