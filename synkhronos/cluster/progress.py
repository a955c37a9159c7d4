"""Pending operations and their MPI requests: one thread tests the requests and advances the operations."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import StateError
from .operation import STREAMS, BulkOperation, Cancelled, Ticket

BLOCK_BYTES = 1 << 12  # buffer sizes are multiples of this size
KEPT_BYTES = 64 << 20  # maximum total size of buffers kept for later operations
MAX_SWEPT = 128  # maximum number of canceled operations whose messages are discarded


class MpiFailed(Exception):
    """Error of an MPI call, which leaves the state of all requests unknown."""


class Landing(NamedTuple):
    """Record of a pending request: its operation, size and direction."""

    operation: BulkOperation
    what: Any
    nbytes: int
    is_receive: bool


class TransferProgress:
    """Pending operations of one host; no method blocks.

    ``largest`` is the maximum size of a message; for ``comm`` and ``last_tag`` see `MpiThread`. A request may stay
    pending if another host has canceled its operation.
    """

    def __init__(self, comm: Any, last_tag: int, largest: int) -> None:
        self._comm, self._largest = comm, largest
        self._tags = (last_tag + 1) // STREAMS  # number of operations with distinct tags
        self.operations: Set[BulkOperation] = set()
        self.requests: List[Any] = []
        self._landings: List[Landing] = []  # records of the requests, in the same order
        self._cancelled: List[Tuple[int, int]] = []  # ranges of numbers
        self._swept: Deque[int] = deque(maxlen=MAX_SWEPT)  # canceled numbers whose messages are discarded
        self._cancelling: List[Tuple[Set[BulkOperation], Ticket]] = []
        self._memory: Dict[int, List[NDArray[np.uint8]]] = {}
        self._kept = 0
        self._has_failed = False
        self._unknown: List[Any] = []  # requests and buffers that MPI may still use

    def begin(self, operation: BulkOperation) -> None:
        """Begin an operation; refuse it if it was canceled, or if it has the tag of a canceled operation."""
        self.operations.add(operation)
        for first, last in self._cancelled:
            if operation.number >= first and (operation.number - first) % self._tags <= last - first:
                self._give_up(operation, refusal(operation.number, first, last))
                break
        if operation.error is not None or not self._has_failed:
            self._step(operation, lambda: operation.begin(self))

    def test(self) -> bool:
        """Advance the operations whose requests are complete; return whether any request was complete."""
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
        if operation in self.operations:  # otherwise the operation was aborted
            self._step(operation, lambda: operation.landed(self, landing.what))

    def _step(self, operation: BulkOperation, step: Callable[[], None]) -> None:
        """Advance an operation unless it was aborted; finish it if it is complete, or aborted and not receiving."""
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

    def _give_up(self, operation: BulkOperation, error: BaseException) -> None:
        """Abort an operation and cancel its receives; its sends continue, because MPI cannot reliably cancel sends."""
        if operation.error is None:
            operation.error = error
            for request, landing in zip(self.requests, self._landings):
                if landing.operation is operation and landing.is_receive:
                    request.Cancel()

    def _finish(self, operation: BulkOperation, error: Optional[BaseException]) -> None:
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
        """Abort operations ``first`` to ``last``, pending or future; finish the ticket once none is pending."""
        self._cancelled.append((first, last))
        awaited = {operation for operation in self.operations if first <= operation.number <= last}
        self._cancelling.append((awaited, ticket))
        self.sweep()
        self._give_up_all(awaited, Cancelled(f"the operations with numbers from {first} to {last} were canceled"))
        self._tell_cancelled()
        self._swept.extend(range(first, min(last + 1, first + MAX_SWEPT)))

    def _give_up_all(self, operations: Iterable[BulkOperation], error: BaseException) -> None:
        for operation in list(operations):
            self._give_up(operation, error)
            self._step(operation, _nothing)

    def sweep(self) -> None:
        """Receive and discard messages of canceled operations, which MPI would otherwise keep forever."""
        if self._has_failed:
            return
        others = [host for host in range(self._comm.Get_size()) if host != self._comm.Get_rank()]
        for number, stream, host in itertools.product(self._swept, range(STREAMS), others):
            self._throw_away(host, number % self._tags * STREAMS + stream)

    def _throw_away(self, *of_whom: int) -> None:
        """Discard messages that have arrived: the messages from one host with one tag, or all messages."""
        nobody = BulkOperation(-1, Ticket())
        nobody.error = Cancelled("a discarded message")
        while True:
            message = self._comm.Improbe(*of_whom)
            if message is None:
                break
            self.requests.append(message.Irecv(np.empty(self._largest, np.uint8)))
            self._landings.append(Landing(nobody, None, 0, True))

    def take_leave(self, farewell: BulkOperation) -> None:
        """Discard messages; begin ``farewell`` once no request is left. Call this until ``farewell`` is over."""
        self._throw_away()
        if not self.requests:
            self.begin(farewell)

    def cancel_all(self, error: BaseException) -> None:
        self._give_up_all(self.operations, error)

    def use_no_more(self) -> None:
        """Stop using MPI after it has failed; current and future operations stay pending unless aborted."""
        self._has_failed = True
        self._unknown = [self.requests, self._landings]
        self.requests, self._landings = [], []
        for operation in self.operations:
            operation.receives = operation.sends = 0
        given_up = [operation for operation in self.operations if operation.error is not None]
        for awaited in [given_up, *[awaited for awaited, _ in self._cancelling]]:
            self._give_up_all(awaited, Cancelled("the operation was canceled when MPI failed"))
        self._tell_cancelled()

    def abandon(self, error: BaseException) -> None:
        """End all operations despite unfinished requests."""
        for operation in list(self.operations):
            self._finish(operation, error)

    # -- services for operations: MPI owns a buffer until `landed` is called with ``what``, except after an abort -----

    def send(self, operation: BulkOperation, host: int, stream: int, buffer: NDArray[np.uint8], what: Any) -> None:
        landing = Landing(operation, what, buffer.nbytes, is_receive=False)
        self._post(landing, "Isend", buffer, host, self._tag(operation, stream))

    def receive(self, operation: BulkOperation, host: int, stream: int, buffer: NDArray[np.uint8], what: Any) -> None:
        landing = Landing(operation, what, buffer.nbytes, is_receive=True)
        self._post(landing, "Irecv", buffer, host, self._tag(operation, stream))

    def meet(self, operation: BulkOperation) -> None:
        self._post(Landing(operation, None, 0, is_receive=False), "Ibarrier")

    def _post(self, landing: Landing, method: str, *arguments: Any) -> None:
        try:
            self.requests.append(getattr(self._comm, method)(*arguments))
        except Exception as error:
            raise MpiFailed(str(error)) from error
        self._landings.append(landing)
        if landing.is_receive:
            landing.operation.receives += 1
        else:
            landing.operation.sends += 1

    def _tag(self, operation: BulkOperation, stream: int) -> int:
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
    """Return the error for an operation that was canceled, or has the MPI tag of a canceled operation."""
    if number <= last:
        return Cancelled(f"operation {number} was canceled before it began")
    return StateError(
        f"operation {number} between hosts has the tag of a canceled operation (a number from {first} to {last}), "
        "whose messages may still arrive: close the session and fork again"
    )


def _nothing() -> None:
    """Step of an aborted operation, which only needs to be finished."""
