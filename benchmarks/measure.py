"""Measure contenders in turn, many times each, and the load from other programs."""

import os
import time
from typing import NamedTuple

import numpy as np

#: If other programs use more than this share of a core, results are inconclusive.
BUSY = 0.02


class Times(NamedTuple):
    """Statistics of one contender's times in one case, in microseconds."""

    median: float
    p99: float
    least: float
    count: int


class WrongResult(AssertionError):
    """Error for a contender whose result was wrong."""


class Local:
    """Contender that is a call in this process.

    Parameters
    ----------
    call : callable
        The call to time.
    check : callable, optional
        Called after every round; returns whether the last call's result was correct.
    before : callable, optional
        Called before every call, outside the timing.
    """

    def __init__(self, call, check=None, before=None):
        self.call, self.check, self.before = call, check, before

    def measure(self, repeats, warm=0):
        """Return the seconds of `repeats` calls, after `warm` uncounted calls."""
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
    """Measure contenders in turn, so that other load on the machine affects all of them equally.

    While other contenders run, caches and branch predictors lose a contender's state. So every round begins with a few
    uncounted calls.

    Parameters
    ----------
    contenders : dict of str to contender
        Objects with a method ``measure(repeats, warm)``, which returns seconds.
    repeats : int
        Total number of calls per contender.
    rounds : int
        Number of turns.
    warm : int, optional
        Uncounted calls at the beginning of each round. Default: a tenth of the round's calls, between 1 and 10. Use 0
        to measure cold calls, or if calls take seconds.

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
    """Return the statistics of times in seconds."""
    micro = 1e6 * np.asarray(seconds)
    return Times(float(np.median(micro)), float(np.percentile(micro, 99)), float(micro.min()), len(micro))


def repeats_for(nbytes, most, budget=1 << 30):
    """Return the number of repetitions for arrays of this size: within a budget of bytes, but at least 10."""
    return int(max(10, min(most, budget // max(1, nbytes))))


def stolen(seconds=0.3):
    """Return the largest share of any core used by other programs, detected as gaps in a busy loop on each core."""
    before, worst = os.sched_getaffinity(0), 0.0
    try:
        for core in sorted(before):
            os.sched_setaffinity(0, {core})
            begin = last = time.perf_counter()
            lost = 0.0
            while last - begin < seconds:
                now = time.perf_counter()
                if now - last > 50e-6:  # an iteration takes a tenth of a microsecond
                    lost += now - last
                last = now
            worst = max(worst, lost / seconds)
    finally:
        os.sched_setaffinity(0, before)
    return worst
