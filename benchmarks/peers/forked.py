"""Base class of peers that fork their own processes."""

import os


class Forked:
    """Peer whose rank 0 forks the other ranks, which inherit everything that `__init__` creates.

    A subclass must define ``wait()``, which is a barrier, and ``prepare(what, mine)``. The latter returns the function
    to time, the array of its result (or None), and the expected last element.
    """

    def __init__(self, size):
        self.rank, self.size = 0, size

    @classmethod
    def start(cls, size):
        """Create the peer, fork its other ranks, and return the peer in every process."""
        peer = cls(size)
        for rank in range(1, size):
            if os.fork() == 0:
                peer.rank = rank
                break
        peer.begin()
        return peer

    def begin(self):
        """Set up the peer in each of its processes, after the fork."""
