"""Peers that fork by themselves."""

import os


class Forked:
    """Rank 0 forks the others; `__init__` makes what they inherit.

    A peer promises ``wait()``, which waits for all ranks, and ``prepare(what, mine)``, which returns what to time, the
    array that it leaves its result in (or None), and what that array must end with.
    """

    def __init__(self, size):
        self.rank, self.size = 0, size

    @classmethod
    def start(cls, size):
        """Return the peer, once in every process."""
        peer = cls(size)
        for rank in range(1, size):
            if os.fork() == 0:
                peer.rank = rank
                break
        peer.begin()
        return peer

    def begin(self):
        """Do what must be done in every process by itself."""
