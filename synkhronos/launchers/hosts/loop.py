"""The loop of the process that speaks for a host: one thread waits for all that comes, and does it."""

from __future__ import annotations

import select
from typing import Any, Callable, Dict


class Loop:
    """Calls whoever has to do with what can be read."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._calls: Dict[int, Callable[[], object]] = {}
        self._turns = 0

    def watch(self, readable: Any, call: Callable[[], object]) -> None:
        """Call when something can be read, or was closed at the other end.

        Parameters
        ----------
        readable : object with ``fileno``
        call : callable
            Must read what has come: else it is called again at once.
        """
        self._calls[readable.fileno()] = call
        self._poll.register(readable, select.POLLIN)

    def forget(self, readable: Any) -> None:
        """Do not call any more."""
        if self._calls.pop(readable.fileno(), None) is not None:
            self._poll.unregister(readable)

    def turn(self, seconds: float) -> None:
        """Wait for something to read, for so long at most, and make the calls; there may be other turns in them."""
        self._turns += 1
        this = self._turns
        for fd, _ in self._poll.poll(seconds * 1000):
            call = self._calls.get(fd)
            if call is not None:  # an earlier one may have had it forgotten
                call()
            if self._turns != this:  # what could be read has been read
                break
