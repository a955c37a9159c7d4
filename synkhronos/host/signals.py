"""Deferring the program's signal handlers while an exception out of one would leave something half done.

Ctrl-C raises ``KeyboardInterrupt`` between any two steps of the main thread: also after a process was forked and before
its id was noted. Blocking the signal does not help, because another thread of the process may take it (BLAS has some),
and Python runs the handler in the main thread all the same.
"""

from __future__ import annotations

import signal
import threading
from typing import Any, Dict, List, Tuple


class DeferredSignals:
    """A context in which signal handlers of the program wait; those of signals that came are called at its end.

    For short work whose time is bounded. May be nested.

    Examples
    --------
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
            return  # handlers run in the main thread only
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
        except BaseException:  # a signal that came in between; once more, for those that are left
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            raise
