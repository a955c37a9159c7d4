"""Pauses between tests of MPI requests, so that other threads can use the cores."""

from __future__ import annotations

QUICK_TESTS = 5  # number of tests without an event before the first pause

#: A pause as a fraction of the usual or the current waiting time, whichever is longer; and the minimum pause.
PAUSE_PART, MIN_PAUSE_S = 1 / 8, 50e-6

#: Weight of the last waiting time in the average, and the limit of that time in multiples of the average.
LAST_COUNTS, MAX_TIMES = 1 / 4, 4


class Pauses:
    """Pauses between the tests of one thread: none after the first tests without an event, then increasing pauses."""

    def __init__(self) -> None:
        self._quiet, self._since = 0, 0.0  # number of tests without an event, and the time of the first such test
        self._usual = MIN_PAUSE_S

    def after_test(self, has_found: bool, now: float, most: float) -> float:
        """Return the pause in seconds, at most ``most``, after a test at time ``now`` with or without an event."""
        if has_found:
            if self._quiet:
                self._usual += LAST_COUNTS * (min(now - self._since, MAX_TIMES * self._usual) - self._usual)
            self._quiet = 0
            return 0.0
        self._quiet += 1
        if self._quiet == 1:
            self._since = now
        if self._quiet <= QUICK_TESTS:
            return 0.0
        return max(MIN_PAUSE_S, min(PAUSE_PART * max(now - self._since, self._usual), most))

    def begin_again(self) -> None:
        """Test without pauses at first, because a new operation may have begun."""
        self._quiet = 0
