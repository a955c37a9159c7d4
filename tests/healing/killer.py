"""Helpers that kill ranks while a program runs."""

import os
import random
import signal
import threading

import numpy as np
import psutil

from synkhronos.program.program import PROGRAM


def pid_of(rank):
    return PROGRAM.session.launcher.pid(rank)


def kill(rank, number=signal.SIGKILL):
    os.kill(pid_of(rank), number)


class Killer:
    """Called before every operation: kills a rank during some of them, or a little later.

    Ranks are killed in turn, so two kills in one command hit different ranks.
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
        except OSError:  # another process is replacing it
            return
        self.kills += 1


class Terror:
    """Kills a rank or a standby every 20 to 150 ms, from another thread, whatever the program is doing.

    The keepers of other ``hosts`` are known by their `HostFacts`.
    """

    def __init__(self, ranks, kills, seed=0, hosts=()):
        self.keepers = [PROGRAM.keeper_pid, *(host.processes[1] for host in hosts)]
        self.random, self.ranks, self.most = random.Random(seed), list(ranks), kills
        self.kills, self._is_over = 0, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._is_over.set()
        self._thread.join()

    def _run(self):
        while self.kills < self.most and not self._is_over.wait(self.random.uniform(0.02, 0.15)):
            children = [child for keeper in self.keepers for child in psutil.Process(keeper).children()]
            for child in self.random.sample(children, min(1, len(children))):
                try:
                    child.kill()
                    self.kills += 1
                except psutil.NoSuchProcess:
                    pass


def flat(values):
    """Return the values in nested lists as a flat list of bytes."""
    if isinstance(values, (list, tuple)):
        return [each for value in values for each in flat(value)]
    return [np.asarray(values).tobytes()]
