"""The exceptions that the library raises.

An argument that is wrong raises a ``TypeError`` or a ``ValueError`` that carries what is wrong as fields
(`ArgumentError`). A call that is right in itself but comes at the wrong time raises `StateError`, and what goes wrong
on another rank raises one of the `RankFailure`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Mapping, Optional, Sequence


class ArgumentError(Exception):
    """An argument is wrong; raised before anything has changed.

    Always one of its two subclasses, which are a ``TypeError`` and a ``ValueError``.

    Parameters
    ----------
    argument : str
        Which argument, as the caller knows it: ``"batch"``, ``"updates[2]"``, ``"input 'x' (argument 0)"``.
    expected : str
        What it must be.
    got : str
        What it is.
    hint : str, optional
        What to do about it.

    Examples
    --------
    >>> raise ArgumentValueError("num_slices", "at least 1", "0", "leave it out to call each rank once")
    Traceback (most recent call last):
        ...
    synkhronos.errors.ArgumentValueError: num_slices: expected at least 1, got 0; leave it out to call each rank once
    """

    def __init__(self, argument: str, expected: str, got: str, hint: Optional[str] = None) -> None:
        super().__init__(f"{argument}: expected {expected}, got {got}" + (f"; {hint}" if hint else ""))
        self.argument, self.expected, self.got, self.hint = argument, expected, got, hint

    def __reduce__(self) -> Any:
        return type(self), (self.argument, self.expected, self.got, self.hint)


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type that cannot be used."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has the right type but a value that cannot be used."""


class SynkhronosError(RuntimeError):
    """Base class of the library's own exceptions."""


class StateError(SynkhronosError):
    """A call that is right in itself but not now: before `fork`, after `close`, inside a rank."""


class SharedMemoryError(SynkhronosError, MemoryError):
    """Shared memory cannot be allocated; nothing was changed."""


class RankFailure(SynkhronosError):
    """Base class of what can go wrong on a rank other than the master.

    Attributes
    ----------
    rank : int
        The (first) rank that failed.
    updated : list of str
        Shared variables that the interrupted call of a function may have updated, on some ranks and not on others.
    command : str
        The command in which it happened, e.g. ``"all_reduce"`` or ``"call of function loss"``.
    function : str or None
        The name of the function, if the command was a call of one, or its `steps`.
    step : int or None
        In which of the `steps` of a function it happened.
    steps : list of int or None
        How many of them each rank had made, its own updates included. (The next one of a rank that was interrupted may
        have updated, too.)
    """

    command = ""
    step: Optional[int] = None
    steps: Optional[List[int]] = None

    def __init__(self, message: str, rank: int, updated: Sequence[str] = ()) -> None:
        if updated:
            message += "\nThe call itself may have updated, on some ranks: " + ", ".join(updated)
        super().__init__(message)
        self.rank = rank
        self.updated = list(updated)

    @property
    def function(self) -> Optional[str]:
        """Return the name of the function that was called."""
        for title in ("call of function ", "steps of function "):
            if self.command.startswith(title):
                return self.command[len(title) :]
        return None


class WorkerError(RankFailure):
    """An exception was raised on a rank other than the master; the session goes on.

    Its ``__cause__`` shows the traceback of the rank.

    Attributes
    ----------
    rank : int
        The first rank that failed.
    remote_tracebacks : dict of int to str
        The traceback, as text, of every rank that failed.
    """

    def __init__(
        self,
        message: str,
        rank: int,
        remote_tracebacks: Optional[Mapping[int, str]] = None,
        updated: Sequence[str] = (),
    ) -> None:
        super().__init__(message, rank, updated)
        self.remote_tracebacks = dict(remote_tracebacks or {})


class WorkerDied(RankFailure):
    """The process of a rank ended; the session is closed and `fork` may be called again.

    Attributes
    ----------
    rank : int
        The rank that died.
    pid : int
        Its process id.
    exitcode : int or None
        Its exit status, or minus the number of the signal that ended it.
    memory : int
        Peak memory in bytes; 0 if unknown.
    """

    def __init__(
        self,
        message: str,
        rank: int,
        pid: int = 0,
        exitcode: Optional[int] = None,
        memory: int = 0,
        updated: Sequence[str] = (),
    ) -> None:
        super().__init__(message, rank, updated)
        self.pid = pid
        self.exitcode = exitcode
        self.memory = memory


class WorkerTimeout(RankFailure):
    """A rank did not finish before the deadline; the session is closed and `fork` may be called again."""


class LoaderError(SynkhronosError):
    """A process of a `loader` cannot go on: its source raised an exception, or it ended; the pass is over.

    Its ``__cause__`` shows the traceback of the loader process, if there was one.

    Attributes
    ----------
    batch : int
        The number of the batch that was awaited, from 0.
    pid : int
        The process.
    """

    def __init__(self, message: str, batch: int, pid: int) -> None:
        super().__init__(message)
        self.batch, self.pid = batch, pid


class RemoteTraceback(Exception):
    """The traceback of another process, as text: the ``__cause__`` of a `WorkerError` or a `LoaderError`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


class Aborted(BaseException):
    """Raised inside a rank whose peers gave up the command in progress; never leaves the library."""


def error_text(error: BaseException) -> str:
    """Return the text of an error, which is in bytes in pygpu's errors; its type if it has none.

    Examples
    --------
    >>> error_text(ValueError(b"no device")), error_text(MemoryError())
    ('no device', 'MemoryError')
    """
    text = error.args[0] if error.args else ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(error) or type(error).__name__


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Say in the `ArgumentValueError` of a block what it is about.

    Examples
    --------
    >>> with prefixed("outputs[0]"):
    ...     raise ArgumentValueError("values of 'sum'", "one shape", "two")
    Traceback (most recent call last):
    ...
    synkhronos.errors.ArgumentValueError: outputs[0]: values of 'sum': expected one shape, got two
    """
    try:
        yield
    except ArgumentValueError as error:
        raise ArgumentValueError(f"{prefix}: {error.argument}", error.expected, error.got, error.hint) from error
