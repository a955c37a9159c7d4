"""Gates: where a thread or process of a test waits until another has come far enough.

A test waits for what must happen, however long it takes on a busy machine. How long it took decides nothing: what must
not happen is kept from happening by a gate that stays closed, or by a clock (`clocks`) that stands still.
"""

import time
from pathlib import Path

#: Seconds after which a wait fails: less than those of a test (pyproject.toml), and more than any machine needs.
PATIENCE_S = 60.0


def until(condition):
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, "what a test waits for does not happen"
        time.sleep(0.001)


class Gate:
    """A gate that is closed until somebody opens it: a file, so that it can be pickled and is the same in every process.

    Parameters
    ----------
    path : path
        In a folder of the test's own.
    """

    def __init__(self, path):
        self._reached, self._opened = Path(f"{path}.reached"), Path(f"{path}.opened")

    def reach(self):
        """Have others see that somebody has come to the gate."""
        self._reached.touch()

    def wait(self):
        """Reach the gate, and wait until it is open."""
        self.reach()
        until(self._opened.exists)

    def open(self):
        """Let everybody through, from now on."""
        self._opened.touch()

    def close(self):
        """Make it as it was."""
        for path in (self._reached, self._opened):
            if path.exists():
                path.unlink()

    def is_reached(self):
        """Return whether somebody has come to the gate."""
        return self._reached.exists()

    def until_reached(self):
        """Wait until somebody has come to the gate."""
        until(self.is_reached)
