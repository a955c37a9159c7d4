"""What the courier carries: one operation, as a state machine, and the ticket that its caller holds.

Operations of all hosts that belong together have the same *number*. Between two hosts an operation has two *streams* of
messages; those of one stream arrive in the order in which they were sent.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger("synkhronos")

Done = Callable[[Optional[BaseException]], Any]

#: Streams of messages that an operation has between two hosts.
STREAMS = 2


class Cancelled(Exception):
    """The operation was given up before it was complete."""


class Ticket:
    """What the caller of an operation holds: whether it is over, and how it ended.

    Parameters
    ----------
    done : callable, optional
        Called once when it is over, in the courier's thread, which it must not hold up: with None, or the exception
        that ended it. (If the courier had ended before, by the caller's thread, and at once.)

    Attributes
    ----------
    error : exception or None
        What ended it, if it is over and failed.
    """

    def __init__(self, done: Optional[Done] = None) -> None:
        self.error: Optional[BaseException] = None
        self._done = done
        self._over = threading.Event()

    def is_over(self) -> bool:
        """Return whether the operation is complete, or has failed."""
        return self._over.is_set()

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Wait until the operation is over; return whether it is."""
        return self._over.wait(seconds)

    def result(self, seconds: Optional[float] = None) -> None:
        """Wait until the operation is over, and raise what ended it.

        Raises
        ------
        TimeoutError
            It is not over after so many seconds.
        """
        if not self.wait(seconds):
            raise TimeoutError(f"the operation is not over after {seconds} s")
        if self.error is not None:
            raise self.error

    def finish(self, error: Optional[BaseException] = None) -> None:
        """Declare the operation to be over; only the first time counts."""
        if self._over.is_set():
            return
        self.error = error
        self._over.set()
        if self._done is not None:
            try:
                self._done(error)
            except Exception:  # the thread carries on with the operations of others
                logger.exception("what was to be called after an operation between hosts failed")


class Messages:
    """What an operation may ask of the courier: to send, to receive, and memory for what is under way.

    Every request calls `Operation.landed` with its ``what`` when it is complete; until then its buffer belongs to MPI.
    """

    def send(self, operation: Operation, host: int, stream: int, buffer: NDArray[np.uint8], what: Any) -> None:
        """Begin to send a buffer to a host."""
        raise NotImplementedError

    def receive(self, operation: Operation, host: int, stream: int, buffer: NDArray[np.uint8], what: Any) -> None:
        """Begin to receive the next message of a stream, which has as many bytes as the buffer."""
        raise NotImplementedError

    def meet(self, operation: Operation) -> None:
        """Begin what is complete when all hosts have begun it."""
        raise NotImplementedError

    def borrow(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory with undefined contents."""
        raise NotImplementedError

    def give_back(self, memory: NDArray[np.uint8]) -> None:
        """Give back what was borrowed; no request may use it any more."""
        raise NotImplementedError


class Operation:
    """One operation on one host, stepped by the courier's thread: no step may wait.

    Parameters
    ----------
    number : int
        The same on all hosts that take part.
    ticket : Ticket

    Attributes
    ----------
    receives, sends : int
        Its requests that are under way; the courier counts them.
    error : exception or None
        Why it was given up.
    """

    def __init__(self, number: int, ticket: Ticket) -> None:
        self.number, self.ticket = number, ticket
        self.receives = self.sends = 0
        self.error: Optional[BaseException] = None

    def begin(self, messages: Messages) -> None:
        """Begin the first requests."""
        raise NotImplementedError

    def landed(self, messages: Messages, what: Any) -> None:
        """Go on after a request is complete."""
        raise NotImplementedError

    def is_complete(self) -> bool:
        """Return whether nothing is left to do; called while the operation has no request under way."""
        raise NotImplementedError


class Farewell(Operation):
    """The last operation of all hosts, which is over when it has begun on all."""

    def __init__(self) -> None:
        super().__init__(-1, Ticket())

    def begin(self, messages: Messages) -> None:
        messages.meet(self)

    def landed(self, messages: Messages, what: Any) -> None:
        pass

    def is_complete(self) -> bool:
        return True


def in_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of a C-contiguous array, as a view."""
    return array.reshape(-1).view(np.uint8)
