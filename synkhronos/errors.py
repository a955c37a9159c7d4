"""The exceptions that the library raises besides ``TypeError`` and ``ValueError``.

Arguments that are wrong raise ``TypeError`` or ``ValueError``; what is right
but comes at the wrong time raises `StateError`; what goes wrong on another
rank raises one of the other three.
"""

from __future__ import annotations

from typing import Mapping, Optional, Sequence


class SynkhronosError(RuntimeError):
    """Base class of the library's own exceptions."""


class StateError(SynkhronosError):
    """A call that is right in itself but not now: before `fork`, after `close`, inside a rank."""


class SharedMemoryError(SynkhronosError, MemoryError):
    """Shared memory that is needed cannot be had; nothing was changed."""


class RankFailure(SynkhronosError):
    """Base class of what can go wrong on a rank other than the master.

    Attributes
    ----------
    rank : int
        The (first) rank that failed.
    updated : list of str
        Shared variables that the interrupted call of a function may have updated, on some ranks and not on others.
    """

    def __init__(self, message: str, rank: int, updated: Sequence[str] = ()) -> None:
        if updated:
            message += "\nThe call itself may have updated, on some ranks: " + ", ".join(updated)
        super().__init__(message)
        self.rank = rank
        self.updated = list(updated)


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
        Bytes of memory that it held at most; 0 where that is not known.
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


class RemoteTraceback(Exception):
    """The traceback of another rank, as text; stands as the ``__cause__`` of a `WorkerError`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


class Aborted(BaseException):
    """Raised inside a rank whose peers gave up the command in progress; never leaves the library."""
