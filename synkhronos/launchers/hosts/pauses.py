"""How long a thread that tests requests of MPI pauses between two tests, so that it leaves the cores to others."""

from __future__ import annotations

#: Tests without a pause after something has happened.
QUICK_TESTS = 5

#: Pauses last this part of the usual time until something happens, or of that for which nothing has, whichever is more;
#: and never less than so many seconds.
PAUSE_PART, MIN_PAUSE_S = 1 / 8, 50e-6

#: How much the last time counts for the usual one, and how many times that it counts at most: a host that comes
#: late once says nothing of the messages that follow.
LAST_COUNTS, MAX_TIMES = 1 / 4, 4


class Pauses:
    """The pauses of one thread.

    Examples
    --------
    >>> pauses = Pauses()
    >>> [pauses.after_test(False, now, 5e-3) for now in (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5)]
    [0.0, 0.0, 0.0, 0.0, 0.0, 5e-05, 0.005]
    """

    def __init__(self) -> None:
        self._quiet, self._since = 0, 0.0  # tests that have found nothing, and since when
        self._usual = MIN_PAUSE_S

    def after_test(self, has_found: bool, now: float, most: float) -> float:
        """Return the seconds to pause after a test, at a time; never more than some.

        Parameters
        ----------
        has_found : bool
            Whether something has happened.
        now, most : float
        """
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
        """Test quickly at first: there is something new to wait for."""
        self._quiet = 0
