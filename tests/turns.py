"""Turns of concurrent test processes: a test marked `alone` runs while no other test does."""

import fcntl
import os


class Turns:
    """Turns of concurrent test processes: any number of tests together, or one test that is `alone`.

    With a single lock, a test that must be alone might wait forever. So there are two: a test that waits for the room
    holds the door, and no other test can enter.

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
        """End this test's turn."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        fcntl.flock(self._door, fcntl.LOCK_UN)
