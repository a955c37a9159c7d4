"""How everything here is measured: contenders in turn, many times; and whether the machine is quiet."""

import os
import time
from typing import NamedTuple

import numpy as np

#: Share of a core that others may take before nothing is concluded.
BUSY = 0.02


class Times(NamedTuple):
    """What the times of one contender in one case come to, in microseconds."""

    median: float
    p99: float
    least: float
    count: int


class WrongResult(AssertionError):
    """A contender computed something else than it should have."""


class Local:
    """A contender that is a call in this process.

    Parameters
    ----------
    call : callable
        What is timed.
    check : callable, optional
        Called after every round; tells whether the last call did what it should.
    before : callable, optional
        Called before every call, and not timed.
    """

    def __init__(self, call, check=None, before=None):
        self.call, self.check, self.before = call, check, before

    def measure(self, repeats, warm=0):
        """Return the seconds of so many calls, after a few that are not counted."""
        times = []
        for _ in range(warm + repeats):
            if self.before is not None:
                self.before()
            begin = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - begin)
        if self.check is not None and not self.check():
            raise WrongResult(self.call)
        return times[warm:]


def measure_in_turn(contenders, repeats, rounds=5, warm=None):
    """Measure contenders in turn, so that what the machine does meanwhile meets all of them alike.

    While the others had their turn, caches and processors have forgotten a contender: every round begins with a few
    calls that are not counted.

    Parameters
    ----------
    contenders : dict of str to contender
        Each has ``measure(repeats, warm)``, which returns seconds.
    repeats : int
        Calls of each, in all.
    rounds : int
        In how many pieces.
    warm : int, optional
        Calls at the beginning of every round that are not counted: a tenth of the round's, 10 at most, by default; 0
        if being cold is what is measured, or if calls take seconds.

    Returns
    -------
    dict of str to Times
    """
    each = max(1, repeats // rounds)
    if warm is None:
        warm = max(1, min(10, each // 10))
    for contender in contenders.values():
        contender.measure(1 + repeats // 20)
    seconds = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            seconds[name] += contender.measure(each, warm)
    return {name: summary(values) for name, values in seconds.items()}


def summary(seconds):
    """Return what times in seconds come to."""
    micro = 1e6 * np.asarray(seconds)
    return Times(float(np.median(micro)), float(np.percentile(micro, 99)), float(micro.min()), len(micro))


def repeats_for(nbytes, most, budget=1 << 30):
    """Return how often to move so many bytes: as often as all together stay within a budget."""
    return int(max(10, min(most, budget // max(1, nbytes))))


def stolen(seconds=0.3):
    """Return the largest share of any core that others take, seen by a loop on each that does nothing but look."""
    before, worst = os.sched_getaffinity(0), 0.0
    try:
        for core in sorted(before):
            os.sched_setaffinity(0, {core})
            begin = last = time.perf_counter()
            lost = 0.0
            while last - begin < seconds:
                now = time.perf_counter()
                if now - last > 50e-6:  # the loop itself takes a tenth of a microsecond
                    lost += now - last
                last = now
            worst = max(worst, lost / seconds)
    finally:
        os.sched_setaffinity(0, before)
    return worst
