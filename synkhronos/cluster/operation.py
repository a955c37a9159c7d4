"""Operations of the MPI thread, as state machines, and `Ticket`, the caller's handle on an operation.

Matching operations on all hosts have the same *number*. An operation has two *streams* of messages between any two
hosts; the messages of a stream arrive in the order of sending.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .progress import TransferProgress

logger = logging.getLogger("synkhronos")

Done = Callable[[Optional[BaseException]], Any]

STREAMS = 2  # message streams of an operation between two hosts


class Cancelled(Exception):
    """Error of an operation that was aborted before it was complete."""


class Ticket:
    """The caller's handle on an operation: its completion, its error, and the number of bytes `received`.

    ``done`` is called once at the end, with None or the exception, and must not block. It runs in the MPI thread,
    or in the caller's thread if the MPI thread has already ended.
    """

    def __init__(self, done: Optional[Done] = None) -> None:
        self.error: Optional[BaseException] = None
        self.received = 0
        self._done = done
        self._over = threading.Event()

    def is_over(self) -> bool:
        return self._over.is_set()

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Wait at most ``seconds`` until the operation is over; return whether it is over."""
        return self._over.wait(seconds)

    def result(self, seconds: Optional[float] = None) -> None:
        """Wait until the operation is over; raise its error, if any, or `TimeoutError` after ``seconds``."""
        if not self.wait(seconds):
            raise TimeoutError(f"the operation did not finish within {seconds} s")
        if self.error is not None:
            raise self.error

    def finish(self, error: Optional[BaseException] = None) -> None:
        """Mark the operation as over; later calls are ignored."""
        if self._over.is_set():
            return
        self.error = error
        self._over.set()
        if self._done is not None:
            try:
                self._done(error)
            except Exception:  # the thread continues with other operations
                logger.exception("the callback of an operation between hosts raised an exception")


class BulkOperation:
    """One operation on one host; the MPI thread runs its steps, which must not block.

    ``number`` is equal on all participating hosts. `receives` and `sends` count the pending requests. `error` is the
    reason for an abort.
    """

    def __init__(self, number: int, ticket: Ticket) -> None:
        self.number, self.ticket = number, ticket
        self.receives = self.sends = 0
        self.error: Optional[BaseException] = None

    def begin(self, messages: TransferProgress) -> None:
        raise NotImplementedError

    def landed(self, messages: TransferProgress, what: Any) -> None:
        raise NotImplementedError

    def is_complete(self) -> bool:
        """Return whether the operation is complete; called only if no request is pending."""
        raise NotImplementedError


class Farewell(BulkOperation):
    """The last operation on every host, which is over when all hosts have begun it."""

    def __init__(self) -> None:
        super().__init__(-1, Ticket())

    def begin(self, messages: TransferProgress) -> None:
        messages.meet(self)

    def landed(self, messages: TransferProgress, what: Any) -> None:
        pass

    def is_complete(self) -> bool:
        return True


def in_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
