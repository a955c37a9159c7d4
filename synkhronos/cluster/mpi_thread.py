"""The MPI thread of a host, which moves bulk data between the shared memory of different hosts.

::

    any thread    send, receive, all_reduce --> queue --+                              ticket, done()
                  (return immediately)                  v                                     ^
    MPI thread    asleep on the queue <----> begin operations, test requests, step operations |
                                                     |            ^
    MPI           non-blocking requests directly from and to shared memory

Without pending requests, the thread sleeps on its queue. Otherwise, it tests its requests, pausing between tests if
there are no events (`pauses`). It releases the GIL in MPI calls, reductions and pauses, so that other threads can run.

If MPI fails, the state of every request is unknown. The usual cause is the loss of another host. The connection to that
host reports the loss, and the pending operations are aborted. Operations that failed before this report would hide the
cause, so the thread stops using MPI and waits before it fails the remaining operations.

**Numbers and tags.** Matching operations on all hosts have the same number. Two pending operations between the same
hosts in the same direction never share a number. The MPI tags of an operation follow from its number modulo a limit,
which is at least 2 ** 14 (usually 2 ** 30 with Open MPI). Messages of a canceled operation are received and discarded
at the next cancellation and at the end. A message that arrives later could match another operation with its tag. All
hosts that have canceled an operation therefore refuse later operations with the same tag.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from functools import partial
from typing import Any, Callable, Optional, Sequence, Tuple

from numpy.typing import NDArray

from ..errors import StateError
from ..sync.fetching import HostReduction
from .all_reduce import HostAllReduce, largest_message
from .operation import BulkOperation, Cancelled, Done, Farewell, Ticket
from .pauses import Pauses
from .progress import TransferProgress
from .transfer import Receiving, Sending

logger = logging.getLogger("synkhronos")

#: Size of a transfer's messages and of a reduction's chunks on up to four hosts, and minimum size of the pieces of a
#: full chunk, one per host. With more than four hosts, chunks and messages are therefore larger.
CHUNK_BYTES, LEAST_PIECE_BYTES = 1 << 18, 1 << 16

LEAST_LAST_TAG = 32767  # the largest tag that every MPI implementation supports
MAX_PAUSE_S = 5e-3  # maximum pause between tests
MAX_LEFT_OVER_PAUSE_S = 0.05  # maximum pause if only messages to discard are left
LOSS_TIMEOUT_S = 6.0  # time for detecting a lost host after an MPI error; `wire` needs up to five seconds


def chunk_bytes_of(hosts: int) -> int:
    """Return the size in bytes of a transfer's messages and, approximately, of a reduction's chunks."""
    return max(CHUNK_BYTES, hosts * LEAST_PIECE_BYTES)


class MpiThread:
    """Moves bulk data between hosts. Methods may be called from any thread; all but `close` return immediately.

    ``comm`` is an mpi4py communicator for this thread alone, with one process per host. ``last_tag`` (``MPI.TAG_UB``)
    and ``chunk_bytes`` (default: `chunk_bytes_of`) must be equal on all hosts.
    """

    def __init__(self, comm: Any, last_tag: int = LEAST_LAST_TAG, chunk_bytes: Optional[int] = None) -> None:
        self.host: int = comm.Get_rank()
        self.hosts: int = comm.Get_size()
        self.last_tag, self._chunk_bytes = last_tag, chunk_bytes or chunk_bytes_of(self.hosts)
        self._progress = TransferProgress(comm, last_tag, largest_message(self._chunk_bytes, self.hosts))
        self._orders: queue.SimpleQueue[Tuple[Callable[[], None], Ticket]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # prevents queuing an order after the thread has processed the last order
        self._ended: Optional[BaseException] = None
        self._closing = False
        self._farewell: Optional[Farewell] = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="synkhronos-courier")
        self._thread.start()

    def __repr__(self) -> str:
        state = f"operations in progress: {len(self._progress.operations)}" if self._ended is None else str(self._ended)
        return f"<MpiThread of host {self.host} of {self.hosts}: {state}>"

    def send(self, host: int, number: int, buffers: Sequence[NDArray[Any]], done: Optional[Done] = None) -> Ticket:
        """Send arrays to a host that receives the same number of bytes; do not change them until the transfer is over.

        ``number`` is nonnegative and equal on both hosts. For ``done`` see `Ticket`.
        """
        return self._begin(Sending(number, Ticket(done), host, buffers, self._chunk_bytes))

    def receive(self, host: int, number: int, buffers: Sequence[NDArray[Any]], done: Optional[Done] = None) -> Ticket:
        """Receive bytes from a host, and fill one array after another; see `send`."""
        return self._begin(Receiving(number, Ticket(done), host, buffers, self._chunk_bytes))

    def all_reduce(self, number: int, reduction: HostReduction, done: Optional[Done] = None) -> Ticket:
        """Reduce the hosts' partial values to bit-identical results; every participating host must call this."""
        return self._begin(HostAllReduce(number, Ticket(done), self.host, self.hosts, reduction, self._chunk_bytes))

    def cancel(self, first: int, last: int, done: Optional[Done] = None) -> Ticket:
        """Abort operations ``first`` to ``last``, pending or future; every participating host must call this.

        Unfinished operations end with `Cancelled`. Once the returned ticket is over, nothing writes to their buffers.
        Data that is already arriving must be received first, which takes forever if the other host is lost.
        """
        ticket = Ticket(done)
        self._order(partial(self._progress.cancel, first, last, ticket), ticket)
        return ticket

    def take_leave(self) -> Ticket:
        """Discard arriving messages until no host has messages of canceled operations left.

        `MPI.Finalize` would wait for such messages. All hosts must call this when no operation is pending. The ticket
        is over when all hosts have finished.
        """
        farewell = Farewell()
        self._order(partial(setattr, self, "_farewell", farewell), farewell.ticket)
        return farewell.ticket

    def close(self, seconds: Optional[float] = 10.0) -> bool:
        """Abort all operations and end the thread; return whether it ended in time; idempotent.

        If incomplete messages keep the thread alive, the buffers must stay allocated, and MPI cannot be finalized.
        """
        self._order(self._close, Ticket())
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _begin(self, operation: BulkOperation) -> Ticket:
        self._order(partial(self._progress.begin, operation), operation.ticket)
        return operation.ticket

    def _order(self, order: Callable[[], None], ticket: Ticket) -> None:
        """Queue a call for the thread; if the thread has ended, finish the ticket immediately."""
        with self._lock:
            ended = self._ended
            if ended is None:
                self._orders.put((order, ticket))
        if ended is not None:
            ticket.finish(StateError(f"the MPI thread of host {self.host} has ended: {ended}"))

    def _run(self) -> None:
        progress = self._progress
        end: BaseException = Cancelled("the MPI thread was closed")
        try:
            pauses = Pauses()
            while not self._closing or progress.operations:
                if self._farewell is not None and not self._farewell.ticket.is_over():
                    progress.take_leave(self._farewell)
                if not progress.requests:
                    self._take_order(None)
                    pauses.begin_again()
                    continue
                has_found = progress.test()
                most = MAX_PAUSE_S if progress.operations else MAX_LEFT_OVER_PAUSE_S
                if self._take_order(pauses.after_test(has_found, time.perf_counter(), most)):
                    pauses.begin_again()
        except BaseException as error:
            end = error
            progress.use_no_more()
            until = time.monotonic() + LOSS_TIMEOUT_S
            while not self._closing and time.monotonic() < until:
                self._take_order(until - time.monotonic())
            if progress.operations:
                logger.error("the MPI thread of host %d cannot continue", self.host, exc_info=error)
        with self._lock:
            self._ended = end
        progress.abandon(end)
        while not self._orders.empty():
            self._orders.get()[1].finish(end)

    def _take_order(self, pause: Optional[float]) -> bool:
        """Wait at most ``pause`` seconds (None: forever) for a queued call and run it; return whether there was one."""
        try:
            order, _ = self._orders.get(pause != 0.0, pause)
        except queue.Empty:
            return False
        order()
        return True

    def _close(self) -> None:
        self._closing = True
        self._progress.cancel_all(Cancelled("the MPI thread was closed"))
        self._progress.sweep()
