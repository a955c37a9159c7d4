"""Pending operations and their MPI requests: one thread tests the requests and advances the operations."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .operation import STREAMS, BulkOperation

BLOCK_BYTES = 1 << 12  # buffer sizes are multiples of this size
KEPT_BYTES = 64 << 20  # maximum total size of buffers kept for later operations


class Landing(NamedTuple):
    """Record of a pending request: its operation and direction."""

    operation: BulkOperation
    what: Any
    is_receive: bool


class TransferProgress:
    """Pending operations of one host; no method blocks. For ``comm`` and ``last_tag`` see `MpiThread`."""

    def __init__(self, comm: Any, last_tag: int) -> None:
        self._comm = comm
        self._tags = (last_tag + 1) // STREAMS  # number of operations with distinct tags
        self.requests: List[Any] = []
        self._landings: List[Landing] = []  # records of the requests, in the same order
        self._memory: Dict[int, List[NDArray[np.uint8]]] = {}
        self._kept = 0

    def begin(self, operation: BulkOperation) -> None:
        operation.begin(self)
        self._finish_if_complete(operation)

    def test(self) -> bool:
        """Advance the operations whose requests are complete; return whether any request was complete."""
        statuses: List[Any] = []
        indices = type(self.requests[0]).Testsome(self.requests, statuses)
        if not indices:
            return False
        landings = [self._landings[i] for i in indices]
        for i in sorted(indices, reverse=True):
            self.requests[i], self._landings[i] = self.requests[-1], self._landings[-1]
            self.requests.pop()
            self._landings.pop()
        for landing, status in zip(landings, statuses):
            operation = landing.operation
            operation.pending -= 1
            if landing.is_receive:
                nbytes = status.Get_count()
                operation.ticket.received += nbytes
                if not nbytes:
                    operation.ticket.is_abandoned = True
            operation.landed(self, landing.what)
            self._finish_if_complete(operation)
        return True

    @staticmethod
    def _finish_if_complete(operation: BulkOperation) -> None:
        if not operation.pending and operation.is_complete():
            operation.ticket.finish()

    # -- services for operations: MPI owns a buffer until `landed` is called with ``what`` ----------------------------

    def send(self, operation: BulkOperation, host: int, stream: int, buffer: NDArray[np.uint8], what: Any) -> None:
        if operation.ticket.is_abandoned:
            buffer = buffer[:0]
        self._post(Landing(operation, what, False), "Isend", buffer, host, self._tag(operation, stream))

    def receive(self, operation: BulkOperation, host: int, stream: int, buffer: NDArray[np.uint8], what: Any) -> None:
        self._post(Landing(operation, what, True), "Irecv", buffer, host, self._tag(operation, stream))

    def meet(self, operation: BulkOperation) -> None:
        self._post(Landing(operation, None, False), "Ibarrier")

    def _post(self, landing: Landing, method: str, *arguments: Any) -> None:
        self.requests.append(getattr(self._comm, method)(*arguments))
        self._landings.append(landing)
        landing.operation.pending += 1

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
