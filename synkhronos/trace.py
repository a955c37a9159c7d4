"""Trace points: named methods of the library. Logs, tests and timelines can observe them.

``@point("barrier")`` marks a method as a trace point. Only points that an observer requests are wrapped, so all other
points cost nothing. Removing the last observer restores the methods.

======================  ================================================
point                   activity
======================  ================================================
``call``                a call to a function, or a command by the program, until it returns
``command``             execution of a command on this rank
``copy``                copying of arguments, or of the rows that a rank selects, to their destination
``collective``          a collective inside a function
``commit``              commit or rollback of the results of a command
``barrier``             waiting until all ranks have arrived
``engine``              the call to a compiled function
``transport``           copying or reduction of arrays in shared memory, or exchange of their locations
``channel``             sending, awaiting or reading of a command, an answer or a request to other hosts
``replication``         building of replicas and loading of functions
``memory``              allocation or attachment of shared memory
``loader``              start of a pass of a `loader`, or waiting for a batch
======================  ================================================
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, TypeVar

from .errors import ArgumentValueError

logger = logging.getLogger("synkhronos")


class LastResort(logging.StreamHandler):  # type: ignore[type-arg]  # not generic at run time in Python 3.8
    """Logging handler that prints messages to stderr, with a prefix, if the program has not configured logging."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("synkhronos: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message unless the program has a handler for it."""
        has_others = len(logger.handlers) > 1 or (logger.propagate and logging.root.handlers)
        if not has_others and record.levelno >= (logger.level or logging.WARNING):
            self.stream = sys.stderr  # read anew for every message, because tests and notebooks replace it
            super().emit(record)


if not logger.handlers:
    logger.addHandler(LastResort())

Method = TypeVar("Method", bound=Callable[..., Any])


class Point(NamedTuple):
    """A trace point: a method of a class that observers can wrap."""

    name: str
    owner: type
    method: str

    @property
    def label(self) -> str:
        """The method's name in records, e.g. ``Barrier.wait``."""
        return f"{self.owner.__name__}.{self.method}"


class TraceObserver:
    """Observer of trace points: `begin` runs before the method, and `end` after it, even if the method raises."""

    def wants(self, point: Point) -> bool:
        """Return whether to observe the point; by default, all points are observed."""
        return True

    def begin(self, point: Point, owner: Any, arguments: Any) -> None:
        """Observe a method that is about to run; ``arguments`` are the positional arguments."""

    def end(self, point: Point, owner: Any, arguments: Any) -> None:
        """Observe the end of a method; parameters as for `begin`."""

    def around(self, point: Point, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of the method; subclasses may override `around` to return a faster wrapper."""

        @functools.wraps(method)
        def seen(owner: Any, *args: Any, **kwargs: Any) -> Any:
            self.begin(point, owner, args)
            try:
                return method(owner, *args, **kwargs)
            finally:
                self.end(point, owner, args)

        return seen


#: All trace points of the modules imported so far.
POINTS: List[Point] = []

_observers: List[TraceObserver] = []
_plain: Dict[Point, Callable[..., Any]] = {}  # the original methods of observed points


def point(name: str) -> Callable[[Method], Method]:
    """Mark a method as a trace point with this name."""

    def declare(method: Method) -> Method:
        return _Declaration(name, method)  # type: ignore[return-value]

    return declare


class _Declaration:
    """Placeholder for a trace point in a class body; the method replaces it once the class exists."""

    def __init__(self, name: str, method: Any) -> None:
        self.name, self.method = name, method

    def __set_name__(self, owner: type, attribute: str) -> None:
        setattr(owner, attribute, self.method)
        POINTS.append(Point(self.name, owner, attribute))
        if _observers:
            _look(POINTS[-1])


def observe(observer: TraceObserver) -> None:
    """Register an observer of trace points, in this process and in processes forked from it."""
    _observers.append(observer)
    for each in POINTS:
        _look(each)


def ignore(observer: TraceObserver) -> None:
    """Unregister an observer of trace points."""
    _observers.remove(observer)
    for each in POINTS:
        _look(each)


def _look(each: Point) -> None:
    """Wrap a point's method for all observers that request the point, the first outermost; if none does, unwrap it."""
    observers = [observer for observer in _observers if observer.wants(each)]
    method = plain = _plain.pop(each, None) or vars(each.owner)[each.method]
    for observer in reversed(observers):
        method = observer.around(each, method)
    if observers:
        _plain[each] = plain
    if vars(each.owner)[each.method] is not method:
        setattr(each.owner, each.method, method)


class CommandLog(TraceObserver):
    """Observer that logs each command of each rank: ``r1 | all_reduce W (800, 800) float32 avg | 0.41 ms``."""

    def __init__(self) -> None:
        self._began: Dict[int, float] = {}  # by the id of the rank's context, which lives as long as the rank

    def begin(self, point: Point, owner: Any, arguments: Any) -> None:
        if point.method == "execute":
            self._began[id(owner)] = time.perf_counter()

    def end(self, point: Point, owner: Any, arguments: Any) -> None:
        if point.method == "execute":
            took = 1e3 * (time.perf_counter() - self._began.pop(id(owner)))
            logger.debug("r%d | %s | %.2f ms", owner.rank, owner.described(arguments[0].command), took)


_log: Optional[CommandLog] = None


def log_as_the_environment_says() -> None:
    """Set the log level from ``SYNK_LOG``; "debug" logs every command. Called by `fork` and at the start of a rank."""
    global _log
    value = os.environ.get("SYNK_LOG", "")
    level = value.upper()
    if not level:
        return
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ArgumentValueError("SYNK_LOG", "debug, info, warning or error", repr(value))
    logger.setLevel(level)
    if level == "DEBUG" and _log is None:
        _log = CommandLog()
        observe(_log)
