"""Gates make a thread or process of a test wait until another one has reached some point.

A test waits for a required event as long as a busy machine needs, so no result depends on durations. A closed gate,
or a stopped clock (`clocks`), prevents events that must not happen.
"""

import time
from pathlib import Path

#: Time limit of a wait in seconds: shorter than that of a test (pyproject.toml), longer than any machine needs.
PATIENCE_S = 60.0


def until(condition):
    """Wait until a condition is true; return its value."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, "what a test waits for does not happen"
        time.sleep(0.001)


class Gate:
    """A gate that stays closed until it is opened. It consists of files, so it works in all processes.

    Parameters
    ----------
    path : path
        Path in a folder of the test.
    """

    def __init__(self, path):
        self._reached, self._opened = Path(f"{path}.reached"), Path(f"{path}.opened")

    def reach(self):
        """Report that the gate has been reached."""
        self._reached.touch()

    def wait(self):
        """Reach the gate, and wait until it is open."""
        self.reach()
        until(self._opened.exists)

    def open(self):
        """Let all threads and processes pass from now on."""
        self._opened.touch()

    def close(self):
        """Restore the initial state."""
        for path in (self._reached, self._opened):
            if path.exists():
                path.unlink()

    def is_reached(self):
        """Return whether the gate has been reached."""
        return self._reached.exists()

    def until_reached(self):
        """Wait until the gate has been reached."""
        until(self.is_reached)
