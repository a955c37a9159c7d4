"""Named points of the library at which logs, tests and timelines can look.

A method is declared to be one by ``@point("barrier")`` where it is defined. As long as there is no observer it stays
the plain method, so a point that is not observed costs nothing. The points that an observer wants to see are wrapped;
with the last observer gone the methods are themselves again.

======================  ================================================
point                   what happens between its two sides
======================  ================================================
``call``                the program calls: from its call to what is returned to it
``command``             this rank executes a command
``copy``                arguments, or the rows that a rank takes, are brought to where they are needed
``collective``          a collective inside a function
``commit``              it makes the results of a command current, or not
``barrier``             it waits until all ranks have arrived
``engine``              it calls a compiled function
``transport``           it brings arrays into shared memory, or reduces
``channel``             a command or an answer is sent, awaited or read
``replication``         it builds replicas and loads functions
``memory``              it allocates or attaches shared memory
``loader``              a pass of a `loader` begins, or a batch is awaited
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
    """Prints messages to stderr in programs that have set up no logging, as Python's own does, but with a prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("synkhronos: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message, unless the program has a handler of its own for it."""
        has_others = len(logger.handlers) > 1 or (logger.propagate and logging.root.handlers)
        if not has_others and record.levelno >= (logger.level or logging.WARNING):
            self.stream = sys.stderr  # that of the moment: a test's, a notebook's
            super().emit(record)


if not logger.handlers:
    logger.addHandler(LastResort())

Method = TypeVar("Method", bound=Callable[..., Any])


class Point(NamedTuple):
    """A method that observers see."""

    name: str
    owner: type
    method: str

    @property
    def label(self) -> str:
        """How records name the method, e.g. ``Barrier.wait``."""
        return f"{self.owner.__name__}.{self.method}"


class Observer:
    """Looks at points: `begin` is called before the method, `end` after it, whatever it raises."""

    def wants(self, point: Point) -> bool:
        """Return whether to look at that point; by default at all."""
        return True

    def begin(self, point: Point, owner: Any, arguments: Any) -> None:
        """Look at a method that is about to run; ``arguments`` are those given by position."""

    def end(self, point: Point, owner: Any, arguments: Any) -> None:
        """Look at it again."""

    def around(self, point: Point, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands in for the method; an observer that has to be quick may return something else."""

        @functools.wraps(method)
        def seen(owner: Any, *args: Any, **kwargs: Any) -> Any:
            self.begin(point, owner, args)
            try:
                return method(owner, *args, **kwargs)
            finally:
                self.end(point, owner, args)

        return seen


#: Every point of the modules that have been imported.
POINTS: List[Point] = []

_observers: List[Observer] = []
_plain: Dict[Point, Callable[..., Any]] = {}  # the methods as they were, of points at which some observer looks


def point(name: str) -> Callable[[Method], Method]:
    """Declare a method to be a point of that name."""

    def declare(method: Method) -> Method:
        return _Declaration(name, method)  # type: ignore[return-value]

    return declare


class _Declaration:
    """Stands in a class body for the method, until the class is there and gets the method itself."""

    def __init__(self, name: str, method: Any) -> None:
        self.name, self.method = name, method

    def __set_name__(self, owner: type, attribute: str) -> None:
        setattr(owner, attribute, self.method)
        POINTS.append(Point(self.name, owner, attribute))
        if _observers:
            _look(POINTS[-1])


def observe(observer: Observer) -> None:
    """Have an observer see its points from now on, in this process and in those that are forked from it."""
    _observers.append(observer)
    for each in POINTS:
        _look(each)


def ignore(observer: Observer) -> None:
    """Undo `observe`."""
    _observers.remove(observer)
    for each in POINTS:
        _look(each)


def _look(each: Point) -> None:
    """Have the observers see a point that want to, the first outermost; with none, its method is as it was."""
    observers = [observer for observer in _observers if observer.wants(each)]
    method = plain = _plain.pop(each, None) or vars(each.owner)[each.method]
    for observer in reversed(observers):
        method = observer.around(each, method)
    if observers:
        _plain[each] = plain
    if vars(each.owner)[each.method] is not method:
        setattr(each.owner, each.method, method)


class CommandLog(Observer):
    """Logs a line per command and rank, at debug level: ``r1 | all_reduce W (800, 800) float32 avg | 0.41 ms``."""

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
    """Log commands if ``SYNK_LOG=debug`` is set; called by `fork` and at the start of every rank.

    Raises
    ------
    ArgumentValueError
        If the variable has a value that means nothing.
    """
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
