"""Turns of test processes that run at the same time: what is marked `alone` runs while no other test does."""

import fcntl
import os


class Turns:
    """Turns of test processes that run at the same time: any number of tests together, or one that is `alone`.

    There are two locks, because with one a test that wants to be alone might wait for ever: a test that waits for the room
    holds the door, so that no other comes in.

    Parameters
    ----------
    folder : path
        The same for all processes, and empty at first.
    """

    def __init__(self, folder):
        self._door, self._room = (os.open(str(folder / name), os.O_RDWR | os.O_CREAT) for name in ("door", "room"))

    def close(self):
        """Close the files."""
        os.close(self._door)
        os.close(self._room)

    def begin(self, alone):
        """Wait for this test's turn."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(self._door, fcntl.LOCK_UN)

    def end(self):
        """Let the others have theirs."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        fcntl.flock(self._door, fcntl.LOCK_UN)
