"""The requests that MPI has of the operations under way: tested, and the operations stepped, all by one thread."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import numpy as np
from numpy.typing import NDArray

from ...errors import StateError
from .operation import STREAMS, Cancelled, Messages, Operation, Ticket

#: Memory for what is under way comes in multiples of so many bytes, and so much of it is kept for later operations.
BLOCK_BYTES = 1 << 12
KEPT_BYTES = 64 << 20

#: Cancelled operations, the last ones, whose messages are looked for.
MAX_SWEPT = 128


class MpiFailed(Exception):
    """MPI has failed, and says nothing about any request any more."""


class Landing(NamedTuple):
    """Whom a request belongs to."""

    operation: Operation
    what: Any
    host: int
    nbytes: int
    is_receive: bool


class Progress(Messages):
    """Operations under way on one host; nothing here waits.

    Parameters
    ----------
    comm, last_tag
        As of `Courier`.
    largest : int
        Bytes that no message is larger than.

    Attributes
    ----------
    operations : set of Operation
        Those that are not over.
    requests : list of request
        Those that are not complete. When there is no operation any more, some may be left of what the other side has
        cancelled.
    sent, received : list of int
        See `Courier`.
    """

    def __init__(self, comm: Any, last_tag: int, largest: int) -> None:
        self._comm, self._largest = comm, largest
        self._tags = (last_tag + 1) // STREAMS  # numbers that have tags of their own
        self.operations: Set[Operation] = set()
        self.requests: List[Any] = []
        self._landings: List[Landing] = []  # of the requests, in their order
        self._cancelled: List[Tuple[int, int]] = []  # ranges of numbers
        self._swept: Deque[int] = deque(maxlen=MAX_SWEPT)  # numbers among them
        self._cancelling: List[Tuple[Set[Operation], Ticket]] = []
        self._memory: Dict[int, List[NDArray[np.uint8]]] = {}
        self._kept = 0
        self._has_failed = False
        self._unknown: List[Any] = []  # requests and buffers that MPI may still use
        self.sent, self.received = [0] * comm.Get_size(), [0] * comm.Get_size()

    # -- the life of an operation ----------------------------------------------------------------------------------

    def begin(self, operation: Operation) -> None:
        """Begin an operation, or refuse it if it was cancelled, or its tag may be taken for that of a cancelled one."""
        self.operations.add(operation)
        for first, last in self._cancelled:
            if operation.number >= first and (operation.number - first) % self._tags <= last - first:
                self._give_up(operation, refusal(operation.number, first, last))
                break
        if operation.error is not None or not self._has_failed:
            self._step(operation, lambda: operation.begin(self))

    def test(self) -> bool:
        """Step the operations whose requests are complete; return whether there were any."""
        indices = type(self.requests[0]).Testsome(self.requests)
        if not indices:
            return False
        landings = [self._landings[i] for i in indices]
        for i in sorted(indices, reverse=True):
            self.requests[i], self._landings[i] = self.requests[-1], self._landings[-1]
            self.requests.pop()
            self._landings.pop()
        for landing in landings:
            self._land(landing)
        return True

    def _land(self, landing: Landing) -> None:
        operation = landing.operation
        if landing.is_receive:
            operation.receives -= 1
            operation.ticket.received += landing.nbytes
        else:
            operation.sends -= 1
        if operation.error is None:
            (self.received if landing.is_receive else self.sent)[landing.host] += landing.nbytes
        if operation in self.operations:  # or else it is of one that was given up
            self._step(operation, lambda: operation.landed(self, landing.what))

    def _step(self, operation: Operation, step: Callable[[], None]) -> None:
        """Take a step of an operation, unless it was given up; finish it if nothing is left to do."""
        if operation.error is None:
            try:
                step()
            except MpiFailed:
                raise
            except BaseException as error:
                self._give_up(operation, error)
        if operation.error is not None:
            if not operation.receives:
                self._finish(operation, operation.error)
        elif not operation.receives and not operation.sends and operation.is_complete():
            self._finish(operation, None)

    def _give_up(self, operation: Operation, error: BaseException) -> None:
        """Cancel what an operation receives; what it sends goes on, because MPI cannot take it back."""
        if operation.error is None:
            operation.error = error
            for request, landing in zip(self.requests, self._landings):
                if landing.operation is operation and landing.is_receive:
                    request.Cancel()

    def _finish(self, operation: Operation, error: Optional[BaseException]) -> None:
        self.operations.remove(operation)
        operation.ticket.finish(error)
        for awaited, _ in self._cancelling:
            awaited.discard(operation)
        self._tell_cancelled()

    def _tell_cancelled(self) -> None:
        for awaited, ticket in self._cancelling:
            if not awaited:
                ticket.finish()
        self._cancelling = [each for each in self._cancelling if each[0]]

    def cancel(self, first: int, last: int, ticket: Ticket) -> None:
        """Give up the operations of these numbers, of now and later; the ticket is over when those of now are."""
        self._cancelled.append((first, last))
        awaited = {operation for operation in self.operations if first <= operation.number <= last}
        self._cancelling.append((awaited, ticket))
        self.sweep()
        self._give_up_all(awaited, Cancelled(f"operations {first} to {last} were cancelled"))
        self._tell_cancelled()
        self._swept.extend(range(first, min(last + 1, first + MAX_SWEPT)))

    def _give_up_all(self, operations: Iterable[Operation], error: BaseException) -> None:
        for operation in list(operations):
            self._give_up(operation, error)
            self._step(operation, _nothing)

    def sweep(self) -> None:
        """Take messages of cancelled operations that have arrived, and forget them: MPI would keep them for ever."""
        if self._has_failed:
            return
        others = [host for host in range(self._comm.Get_size()) if host != self._comm.Get_rank()]
        for number, stream, host in itertools.product(self._swept, range(STREAMS), others):
            self._throw_away(host, number % self._tags * STREAMS + stream)

    def _throw_away(self, *of_whom: int) -> None:
        """Take the messages that have arrived, from a host and with a tag, or all."""
        nobody = Operation(-1, Ticket())
        nobody.error = Cancelled("nobody waits for this")
        while True:
            message = self._comm.Improbe(*of_whom)
            if message is None:
                break
            self.requests.append(message.Irecv(np.empty(self._largest, np.uint8)))
            self._landings.append(Landing(nobody, None, self._comm.Get_rank(), 0, True))

    def take_leave(self, farewell: Operation) -> None:
        """Take what still arrives, which nobody waits for in the end; say farewell when others have taken all.

        To be called again and again until the farewell is over: then all hosts have got rid of everything.
        """
        self._throw_away()
        if not self.requests:
            self.begin(farewell)

    def cancel_all(self, error: BaseException) -> None:
        """Give up all operations."""
        self._give_up_all(self.operations, error)

    def use_no_more(self) -> None:
        """Use MPI no more, which has failed: operations that are not given up stay as they are, also those to come."""
        self._has_failed = True
        self._unknown = [self.requests, self._landings]
        self.requests, self._landings = [], []
        for operation in self.operations:
            operation.receives = operation.sends = 0
        given_up = [operation for operation in self.operations if operation.error is not None]
        for awaited in [given_up, *[awaited for awaited, _ in self._cancelling]]:
            self._give_up_all(awaited, Cancelled("it was cancelled when MPI failed"))
        self._tell_cancelled()

    def abandon(self, error: BaseException) -> None:
        """End all operations, without knowing what becomes of their requests."""
        for operation in list(self.operations):
            self._finish(operation, error)

    # -- what operations may ask for -------------------------------------------------------------------------------

    def send(self, operation: Operation, host: int, stream: int, buffer: NDArray[np.uint8], what: Any) -> None:
        self.requests.append(self._posted("Isend", buffer, host, self._tag(operation, stream)))
        self._landings.append(Landing(operation, what, host, buffer.nbytes, False))
        operation.sends += 1

    def receive(self, operation: Operation, host: int, stream: int, buffer: NDArray[np.uint8], what: Any) -> None:
        self.requests.append(self._posted("Irecv", buffer, host, self._tag(operation, stream)))
        self._landings.append(Landing(operation, what, host, buffer.nbytes, True))
        operation.receives += 1

    def meet(self, operation: Operation) -> None:
        self.requests.append(self._posted("Ibarrier"))
        self._landings.append(Landing(operation, None, self._comm.Get_rank(), 0, False))
        operation.sends += 1

    def _posted(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._comm, method)(*arguments)
        except Exception as error:
            raise MpiFailed(str(error)) from error

    def _tag(self, operation: Operation, stream: int) -> int:
        return operation.number % self._tags * STREAMS + stream

    def borrow(self, nbytes: int) -> NDArray[np.uint8]:
        size = -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
        kept = self._memory.get(size)
        if kept:
            self._kept -= size
            return kept.pop()[:nbytes]
        return np.empty(size, np.uint8)[:nbytes]

    def give_back(self, memory: NDArray[np.uint8]) -> None:
        block: Any = memory.base
        if self._kept + block.nbytes <= KEPT_BYTES:
            self._kept += block.nbytes
            self._memory.setdefault(block.nbytes, []).append(block)


def refusal(number: int, first: int, last: int) -> BaseException:
    """Return why an operation cannot begin after those of a range were cancelled."""
    if number <= last:
        return Cancelled(f"operation {number} was cancelled before it began")
    return StateError(
        f"operation {number} between hosts has the tag of one of the operations {first} to {last}, which were "
        "cancelled and whose messages may still be on their way: close the session and fork again"
    )


def _nothing() -> None:
    """Take no step."""
