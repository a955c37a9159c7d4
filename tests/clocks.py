"""Clocks that tests set: deadlines pass when a test says so, and not because a machine is busy."""

import time


class Clock:
    """Stands in for the module ``time`` in one module; it stands still but for what the test lets happen.

    For example, deadlines of commands pass as soon as a gate is reached::

        monkeypatch.setattr(session_module, "time", clock)
        clock.when(gate.is_reached, lambda: clock.advance(10))

    Parameters
    ----------
    tick : float
        Seconds that pass each time somebody looks.
    """

    def __init__(self, tick=0.0):
        self.now, self.tick, self._plans = 1000.0, tick, []

    sleep = staticmethod(time.sleep)

    def advance(self, seconds):
        """Let so many seconds pass."""
        self.now += seconds

    def when(self, condition, action):
        """Plan what is done as soon as somebody looks at the clock and a condition holds; one plan after another."""
        self._plans.append((condition, action))

    def monotonic(self):
        """Return the seconds, after what was planned for now."""
        if self._plans and self._plans[0][0]():
            self._plans.pop(0)[1]()
        self.now += self.tick
        return self.now
