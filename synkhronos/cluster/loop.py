"""The event loop of a host's serving process, in one thread."""

from __future__ import annotations

import select
from typing import Any, Callable, Dict


class EventLoop:
    """Calls functions when their files are readable."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._calls: Dict[int, Callable[[], object]] = {}
        self._turns = 0

    def watch(self, readable: Any, call: Callable[[], object]) -> None:
        """Call ``call`` whenever ``readable`` can be read or is closed; unless ``call`` reads, it is called again."""
        self._calls[readable.fileno()] = call
        self._poll.register(readable, select.POLLIN)

    def forget(self, readable: Any) -> None:
        if self._calls.pop(readable.fileno(), None) is not None:
            self._poll.unregister(readable)

    def turn(self, seconds: float) -> None:
        """Wait up to ``seconds`` for readable files and call their functions, which may run further turns."""
        self._turns += 1
        this = self._turns
        for fd, _ in self._poll.poll(seconds * 1000):
            call = self._calls.get(fd)
            if call is not None:  # an earlier call may have removed the file
                call()
            if self._turns != this:  # a nested turn has handled the remaining files
                break
