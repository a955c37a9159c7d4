"""Pair of waits at a ``multiprocessing.Barrier``, as around every call in the paper's design."""

import multiprocessing

from .forked import Forked


class Barrier(Forked):
    """Reference for calls: a pair of waits at a barrier."""

    def __init__(self, size):
        super().__init__(size)
        self.barrier = multiprocessing.get_context("fork").Barrier(size)

    def wait(self):
        """Do nothing, because the pair of waits already synchronizes the ranks."""

    def prepare(self, what, mine):
        """Return the function to time, which is the pair of waits; it has no result to check."""

        def pair():
            self.barrier.wait()
            self.barrier.wait()

        return pair, None, None
