"""The naive solution as a peer: pickled arrays are sent through pipes between rank 0 and the other ranks."""

import multiprocessing

import numpy as np

from .forked import Forked


class Pipes(Forked):
    """Pipes between rank 0 and each of the other ranks."""

    def __init__(self, size):
        super().__init__(size)
        self.pipes = [multiprocessing.Pipe() for _ in range(size - 1)]

    def begin(self):
        """Select this rank's ends of the pipes."""
        if self.rank:
            self.up = self.pipes[self.rank - 1][1]
        else:
            self.down = [ours for ours, _ in self.pipes]

    def wait(self):
        """Wait for all ranks: rank 0 receives a message from every other rank, then sends each of them a message."""
        if self.rank:
            self.up.send_bytes(b"x")
            self.up.recv_bytes()
        else:
            for pipe in self.down:
                pipe.recv_bytes()
            for pipe in self.down:
                pipe.send_bytes(b"x")

    def pair(self):
        """Send a message from rank 0 to every other rank, and a message back, as in the fastest possible call."""
        if self.rank:
            self.up.recv_bytes()
            self.up.send_bytes(b"x")
        else:
            for pipe in self.down:
                pipe.send_bytes(b"x")
            for pipe in self.down:
                pipe.recv_bytes()

    def prepare(self, what, mine):
        """Return the function to time: ``barrier``, ``all_reduce`` (the sum) or ``send`` (to every other rank)."""
        if what == "barrier":
            return self.pair, None, None
        result = np.empty_like(mine)
        return (
            (lambda: getattr(self, what)(mine, result)),
            result,
            (self.size * (self.size + 1) / 2 if what == "all_reduce" else 1),
        )

    def all_reduce(self, mine, result):
        """Sum all arrays on rank 0, then send the result to all other ranks."""
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
        """Send an array from rank 0 to the other ranks, and wait until all have received it."""
        if self.rank:
            result[:] = self.up.recv()
            self.up.send_bytes(b"x")
        else:
            for pipe in self.down:
                pipe.send(mine)
            for pipe in self.down:
                pipe.recv_bytes()
            result[:] = mine
