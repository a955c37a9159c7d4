"""Event loop of the bridge and of the other hosts' serving processes, in one thread."""

from __future__ import annotations

import select
import time
from typing import Any, Callable, Dict, List, Tuple


class EventLoop:
    """Single-threaded event loop that calls the function of every watched file that is readable."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._calls: Dict[int, Callable[[], object]] = {}
        self._turns = 0
        self._later: List[Tuple[float, Callable[[], object]]] = []

    def watch(self, readable: Any, call: Callable[[], object]) -> None:
        """Call ``call`` in every turn while ``readable`` has unread data or its peer has closed it."""
        self._calls[readable.fileno()] = call
        self._poll.register(readable, select.POLLIN)

    def forget(self, readable: Any) -> None:
        if self._calls.pop(readable.fileno(), None) is not None:
            self._poll.unregister(readable)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call ``call`` once in a turn after ``seconds``, when the functions of all files readable by then have run."""
        self._later.append((time.monotonic() + seconds, call))

    def turn(self, seconds: float) -> None:
        """Wait up to ``seconds`` for readable files and call their functions, which may run nested turns."""
        self._turns += 1
        this = self._turns
        due = [each for each in self._later if each[0] <= time.monotonic()]
        for fd, _ in self._poll.poll(0 if due else seconds * 1000):
            call = self._calls.get(fd)
            if call is not None:  # an earlier call may have removed the file
                call()
            if self._turns != this:  # a nested turn has handled the remaining files
                return
        for each in due:
            self._later.remove(each)
            each[1]()
