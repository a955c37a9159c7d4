"""Clocks controlled by tests: deadlines pass when a test decides, not because a machine is busy."""

import time


class Clock:
    """Replacement for the module ``time`` in one module; it advances only as the test decides.

    For example, deadlines of commands pass as soon as a gate is reached::

        monkeypatch.setattr(session_module, "time", clock)
        clock.when(gate.is_reached, lambda: clock.advance(10))

    Parameters
    ----------
    tick : float
        Seconds that pass with each reading.
    """

    def __init__(self, tick=0.0):
        self.now, self.tick, self._plans = 1000.0, tick, []

    sleep = staticmethod(time.sleep)

    def advance(self, seconds):
        """Advance the clock by a number of seconds."""
        self.now += seconds

    def when(self, condition, action):
        """Schedule an action for the first reading with a true condition; scheduled actions run in order."""
        self._plans.append((condition, action))

    def monotonic(self):
        """Return the time in seconds, after running the next scheduled action if it is due."""
        if self._plans and self._plans[0][0]():
            self._plans.pop(0)[1]()
        self.now += self.tick
        return self.now
