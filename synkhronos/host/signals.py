"""Deferred signal handlers, for code that an exception from a handler would leave unfinished.

Ctrl-C raises ``KeyboardInterrupt`` between any two instructions of the main thread, for example after a fork but before
the child's id is recorded. Blocking the signal does not help, because another thread (of BLAS, for example) may receive
it. Python then still runs the handler in the main thread.
"""

from __future__ import annotations

import signal
import threading
from typing import Any, Dict, List, Tuple


class DeferredSignals:
    """Context manager that defers the program's signal handlers until its block ends; for short blocks; nestable.

    >>> before = signal.signal(signal.SIGALRM, lambda *_: print("called"))
    >>> with DeferredSignals():
    ...     signal.raise_signal(signal.SIGALRM)
    ...     print("not yet")
    not yet
    called
    >>> signal.signal(signal.SIGALRM, before) is not None
    True
    """

    def __init__(self) -> None:
        self._handlers: Dict[int, Any] = {}
        self._came: List[Tuple[int, Any]] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # handlers run only in the main thread
        try:
            for number in range(1, signal.NSIG):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *exception: object) -> None:
        self._restore()
        for number, frame in self._came:
            self._handlers[number](number, frame)

    def _note(self, number: int, frame: Any) -> None:
        self._came.append((number, frame))

    def _restore(self) -> None:
        try:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        except BaseException:  # a signal arrived in between: restore the remaining handlers
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            raise
