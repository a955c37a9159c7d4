"""Kills ranks in the middle of what a program does."""

import os
import random
import signal
import threading

import numpy as np

from synkhronos.program.program import PROGRAM


def pid_of(rank):
    return PROGRAM.session.launcher.pid(rank)


def kill(rank, number=signal.SIGKILL):
    os.kill(pid_of(rank), number)


class Killer:
    """Called before every operation: kills a rank in the middle of some of them, or a little later.

    Each rank in its turn: two kills in one command are of different ranks.
    """

    def __init__(self, ranks, seed=0, likely=0.5):
        self.random, self.ranks, self.likely = random.Random(seed), list(ranks), likely
        self.kills, self._timer = 0, None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._wait()

    def _wait(self):
        if self._timer is not None:
            self._timer.join()
            self._timer = None

    def __call__(self):
        self._wait()
        if self.random.random() < self.likely:
            self._timer = threading.Timer(self.random.uniform(0, 0.02), self._kill)
            self._timer.start()

    def _kill(self):
        try:
            kill(self.ranks[self.kills % len(self.ranks)])
        except OSError:  # another one is just taking its place
            return
        self.kills += 1


def flat(values):
    """Return everything in nested lists as bytes."""
    if isinstance(values, (list, tuple)):
        return [each for value in values for each in flat(value)]
    return [np.asarray(values).tobytes()]
