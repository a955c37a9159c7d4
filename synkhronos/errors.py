"""Exceptions raised by the library.

A wrong argument raises a ``TypeError`` or ``ValueError`` with details in attributes (`ArgumentError`). A valid call at
the wrong time raises `StateError`. Failures of other ranks raise subclasses of `RankFailure`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Mapping, Optional, Sequence


class ArgumentError(Exception):
    """Base class of errors about a wrong argument; only its subclasses are raised.

    Parameters
    ----------
    argument : str
        The argument, in the caller's terms: ``"batch"``, ``"updates[2]"``, ``"input 'x' (argument 0)"``.
    expected, got : str
        The requirement and the actual value.
    hint : str, optional
        A suggested remedy.

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
    """Error for an argument of an unsupported type."""


class ArgumentValueError(ArgumentError, ValueError):
    """Error for an argument of a supported type with an invalid value."""


class SynkhronosError(RuntimeError):
    """Base class of the library's own exceptions."""


class StateError(SynkhronosError):
    """Error for a call at the wrong time, such as before `fork`, after `close`, or on a rank other than the master."""


class SharedMemoryError(SynkhronosError, MemoryError):
    """Failure to allocate or map shared memory."""


class RankFailure(SynkhronosError):
    """Base class of errors for failures on ranks other than the master.

    Attributes
    ----------
    rank : int
        The rank that failed, or the first of several.
    updated : list of str
        The names of shared variables that the failed call may have updated on some ranks only.
    command : str
        The command that failed, e.g. ``"all_reduce"`` or ``"call of function loss"``.
    function : str or None
        The name of the function, if the command was a call or `Function.steps`.
    step : int or None
        The failed step, counted from 0, if the command was `Function.steps`.
    steps : list of int or None
        The number of steps that each rank has completed and not undone. An interrupted rank may also have applied the
        updates of its next step.
    """

    command = ""
    step: Optional[int] = None
    steps: Optional[List[int]] = None

    def __init__(self, message: str, rank: int, updated: Sequence[str] = ()) -> None:
        if updated:
            message += "\nThe failed call may have updated these variables on some ranks: " + ", ".join(updated)
        super().__init__(message)
        self.rank = rank
        self.updated = list(updated)

    @property
    def function(self) -> Optional[str]:
        """The name of the function, or None if the command was neither a call nor `Function.steps`."""
        for title in ("call of function ", "steps of function "):
            if self.command.startswith(title):
                return self.command[len(title) :]
        return None


class WorkerError(RankFailure):
    """Exception on a rank other than the master; the session continues.

    Its ``__cause__`` shows the tracebacks of all ranks that failed.

    Attributes
    ----------
    remote_tracebacks : dict of int to str
        The traceback of each rank that failed, as text.
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
    """End of a rank's process during a session; the session is closed, and `fork` may be called again.

    Attributes
    ----------
    pid : int
        The id of the process.
    exitcode : int or None
        The exit status of the process, or the negative number of the signal that ended it; None if unknown.
    memory : int
        The peak memory of the process in bytes; 0 if unknown.
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
    """Failure of a rank to answer in time; the session is closed, and `fork` may be called again."""


class LoaderError(SynkhronosError):
    """Failure of a `loader` process: it died or was too slow, or its source raised an exception.

    The failure ends the pass over the data. The ``__cause__`` shows the traceback of the source's exception, if any.

    Attributes
    ----------
    batch : int
        The number of the batch that the program waited for, counted from 0.
    pid : int
        The id of the loader process.
    """

    def __init__(self, message: str, batch: int, pid: int) -> None:
        super().__init__(message)
        self.batch, self.pid = batch, pid


class RemoteTraceback(Exception):
    """The traceback of another rank or of a loader, as text: the ``__cause__`` of a `RankFailure` or `LoaderError`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


class Aborted(BaseException):
    """Exception inside a rank whose peers aborted the current command; never leaves the library."""


def error_text(error: BaseException) -> str:
    """Return an error's text (decoded if it is bytes, as from pygpu), or the error's type name if the text is empty."""
    text = error.args[0] if error.args else ""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(error) or type(error).__name__


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Add a prefix to the argument name of an `ArgumentValueError` raised in the block."""
    try:
        yield
    except ArgumentValueError as error:
        raise ArgumentValueError(f"{prefix}: {error.argument}", error.expected, error.got, error.hint) from error
