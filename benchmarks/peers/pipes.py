"""Pipes between rank 0 and the others, and everything pickled through them: what a program by hand would do first."""

import multiprocessing

import numpy as np

from .forked import Forked


class Pipes(Forked):
    """A star of pipes."""

    def __init__(self, size):
        super().__init__(size)
        self.pipes = [multiprocessing.Pipe() for _ in range(size - 1)]

    def begin(self):
        """Keep the own ends."""
        if self.rank:
            self.up = self.pipes[self.rank - 1][1]
        else:
            self.down = [ours for ours, _ in self.pipes]

    def wait(self):
        """A word from everybody, and one to everybody."""
        if self.rank:
            self.up.send_bytes(b"x")
            self.up.recv_bytes()
        else:
            for pipe in self.down:
                pipe.recv_bytes()
            for pipe in self.down:
                pipe.send_bytes(b"x")

    def pair(self):
        """A word to everybody, and one from everybody: what a call needs at least."""
        if self.rank:
            self.up.recv_bytes()
            self.up.send_bytes(b"x")
        else:
            for pipe in self.down:
                pipe.send_bytes(b"x")
            for pipe in self.down:
                pipe.recv_bytes()

    def prepare(self, what, mine):
        """Return what to time: ``barrier``, ``all_reduce`` (the sum) or ``send`` (an array to every other rank)."""
        if what == "barrier":
            return self.pair, None, None
        result = np.empty_like(mine)
        return (
            (lambda: getattr(self, what)(mine, result)),
            result,
            (self.size * (self.size + 1) / 2 if what == "all_reduce" else 1),
        )

    def all_reduce(self, mine, result):
        """Add up on rank 0."""
        if self.rank:
            self.up.send(mine)
            result[:] = self.up.recv()
        else:
            result[:] = mine
            for pipe in self.down:
                result += pipe.recv()
            for pipe in self.down:
                pipe.send(result)

    def send(self, mine, result):
        """From rank 0 to the others; over when they have it."""
        if self.rank:
            result[:] = self.up.recv()
            self.up.send_bytes(b"x")
        else:
            for pipe in self.down:
                pipe.send(mine)
            for pipe in self.down:
                pipe.recv_bytes()
            result[:] = mine
