"""Event loop of the bridge and of the other hosts' serving processes, in one thread."""

from __future__ import annotations

import select
from typing import Any, Callable, Dict


class EventLoop:
    """Single-threaded event loop that calls the function of every watched file that is readable."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._calls: Dict[int, Callable[[], object]] = {}
        self._turns = 0

    def watch(self, readable: Any, call: Callable[[], object]) -> None:
        """Call ``call`` in every turn while ``readable`` has unread data or its peer has closed it."""
        self._calls[readable.fileno()] = call
        self._poll.register(readable, select.POLLIN)

    def forget(self, readable: Any) -> None:
        if self._calls.pop(readable.fileno(), None) is not None:
            self._poll.unregister(readable)

    def turn(self, seconds: float) -> None:
        """Wait up to ``seconds`` for readable files and call their functions, which may run nested turns."""
        self._turns += 1
        this = self._turns
        for fd, _ in self._poll.poll(seconds * 1000):
            call = self._calls.get(fd)
            if call is not None:  # an earlier call may have removed the file
                call()
            if self._turns != this:  # a nested turn has handled the remaining files
                break
