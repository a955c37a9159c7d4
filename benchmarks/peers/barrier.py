"""Two waits at a ``multiprocessing.Barrier``: what surrounds every call in the paper's design."""

import multiprocessing

from .forked import Forked


class Barrier(Forked):
    """The yardstick of calls."""

    def __init__(self, size):
        super().__init__(size)
        self.barrier = multiprocessing.get_context("fork").Barrier(size)

    def wait(self):
        """The pair itself is in step."""

    def prepare(self, what, mine):
        """Return the pair."""

        def pair():
            self.barrier.wait()
            self.barrier.wait()

        return pair, None, None
