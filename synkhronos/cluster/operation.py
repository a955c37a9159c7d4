"""Operations of the MPI thread, as state machines, and `Ticket`, the caller's handle on an operation.

Matching operations on all hosts have the same *number*. An operation has two *streams* of messages between any two
hosts; the messages of a stream arrive in the order of sending. If one host abandons an operation, all hosts finish it
with empty messages: no request is canceled, no message remains, and the result is dropped.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .progress import TransferProgress

Done = Callable[["Ticket"], Any]

STREAMS = 2  # message streams of an operation between two hosts
WINDOW = 4  # maximum number of chunks or messages of an operation in progress
EMPTY_WINDOW = 64  # the same if they contain no data, so that an abandoned operation ends soon


class Ticket:
    """The caller's handle on an operation: its completion, and the number of bytes `received`.

    Any thread may set `is_abandoned`. The operation then sends empty messages, and an empty message sets `is_abandoned`
    on the receiving host. Until the operation is over, it may still write into its buffers. ``done`` is called once at
    the end, in the MPI thread, with this ticket; it must not block.
    """

    def __init__(self, done: Optional[Done] = None, is_abandoned: bool = False) -> None:
        self.is_abandoned = is_abandoned
        self.received = 0
        self._done = done
        self._over = threading.Event()

    def is_over(self) -> bool:
        return self._over.is_set()

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Wait at most ``seconds`` until the operation is over; return whether it is over."""
        return self._over.wait(seconds)

    def finish(self) -> None:
        """Mark the operation as over."""
        self._over.set()
        if self._done is not None:
            self._done(self)


class BulkOperation:
    """One operation on one host; the MPI thread runs its steps, which must not block.

    ``number`` is equal on all participating hosts; `pending` counts the pending requests. Which messages an operation
    sends and receives must not depend on `Ticket.is_abandoned`.
    """

    def __init__(self, number: int, ticket: Ticket) -> None:
        self.number, self.ticket = number, ticket
        self.pending = 0

    @property
    def window(self) -> int:
        return EMPTY_WINDOW if self.ticket.is_abandoned else WINDOW

    def begin(self, messages: TransferProgress) -> None:
        raise NotImplementedError

    def landed(self, messages: TransferProgress, what: Any) -> None:
        raise NotImplementedError

    def is_complete(self) -> bool:
        """Return whether the operation is complete; called only if no request is pending."""
        raise NotImplementedError


class Farewell(BulkOperation):
    """The last operation on every host, which is over when all hosts have begun it."""

    def begin(self, messages: TransferProgress) -> None:
        messages.meet(self)

    def landed(self, messages: TransferProgress, what: Any) -> None:
        pass

    def is_complete(self) -> bool:
        return True


def in_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
