"""The MPI thread of a host, which moves bulk data between the shared memory of different hosts.

::

    any thread    send, receive, all_reduce --> queue --+                              ticket, done()
                  (return immediately)                  v                                     ^
    MPI thread    asleep on the queue <----> begin operations, test requests, step operations |
                                                     |            ^
    MPI           non-blocking requests directly from and to shared memory

Without pending requests, the thread sleeps on its queue. Otherwise, it tests its requests, pausing between tests if
there are no events (`pauses`). It releases the GIL in MPI calls, reductions and pauses, so that other threads can run.

After an exception, the thread ends, and pending operations stay pending; `MpiThread.error` is the reason. If MPI fails,
the usual cause is the loss of another host, which the connection to that host reports later: see `stand_in`.

**Numbers and tags.** Matching operations on all hosts have the same number. Two pending operations between the same
hosts in the same direction never share a number. The MPI tags of an operation follow from its number modulo a limit,
which is at least 2 ** 14 (usually 2 ** 30 with Open MPI).
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Optional, Sequence

from numpy.typing import NDArray

from ..sync.fetching import HostReduction
from .all_reduce import HostAllReduce
from .operation import BulkOperation, Done, Farewell, Ticket
from .pauses import Pauses
from .progress import TransferProgress
from .transfer import Receiving, Sending

#: Size of a transfer's messages and of a reduction's chunks on up to four hosts, and minimum size of the pieces of a
#: full chunk, one per host. With more than four hosts, chunks and messages are therefore larger.
CHUNK_BYTES, LEAST_PIECE_BYTES = 1 << 18, 1 << 16

LEAST_LAST_TAG = 32767  # the largest tag that every MPI implementation supports
MAX_PAUSE_S = 5e-3  # maximum pause between tests


def chunk_bytes_of(hosts: int) -> int:
    """Return the size in bytes of a transfer's messages and, approximately, of a reduction's chunks."""
    return max(CHUNK_BYTES, hosts * LEAST_PIECE_BYTES)


class MpiThread:
    """Moves bulk data between hosts. Methods may be called from any thread; all but `close` return immediately.

    ``comm`` is an mpi4py communicator for this thread alone, with one process per host. ``last_tag`` (``MPI.TAG_UB``)
    and ``chunk_bytes`` (default: `chunk_bytes_of`) must be equal on all hosts. `error` is the exception that has
    stopped the thread, if any.
    """

    def __init__(self, comm: Any, last_tag: int = LEAST_LAST_TAG, chunk_bytes: Optional[int] = None) -> None:
        self.host: int = comm.Get_rank()
        self.hosts: int = comm.Get_size()
        self.last_tag, self._chunk_bytes = last_tag, chunk_bytes or chunk_bytes_of(self.hosts)
        self.error: Optional[BaseException] = None
        self._progress = TransferProgress(comm, last_tag)
        self._begun: queue.SimpleQueue[BulkOperation] = queue.SimpleQueue()
        self._farewell = Farewell(-1, Ticket())
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="synkhronos-courier")
        self._thread.start()

    def __repr__(self) -> str:
        state = f"pending requests: {len(self._progress.requests)}" if self.error is None else f"failed: {self.error!r}"
        return f"<MpiThread of host {self.host} of {self.hosts}: {state}>"

    def send(self, host: int, number: int, buffers: Sequence[NDArray[Any]], done: Optional[Done] = None) -> Ticket:
        """Send arrays to a host that receives the same number of bytes; do not change them until the transfer is over.

        ``number`` is nonnegative and equal on both hosts. For ``done`` see `Ticket`.
        """
        return self._begin(Sending(number, Ticket(done), host, buffers, self._chunk_bytes))

    def receive(self, host: int, number: int, buffers: Sequence[NDArray[Any]], done: Optional[Done] = None) -> Ticket:
        """Receive bytes from a host, and fill one array after another; see `send`."""
        return self._begin(Receiving(number, Ticket(done), host, buffers, self._chunk_bytes))

    def all_reduce(
        self, number: int, reduction: HostReduction, done: Optional[Done] = None, is_abandoned: bool = False
    ) -> Ticket:
        """Reduce the hosts' partial values to bit-identical results; every participating host must call this."""
        ticket = Ticket(done, is_abandoned)
        return self._begin(HostAllReduce(number, ticket, self.host, self.hosts, reduction, self._chunk_bytes))

    def close(self, seconds: float = 10.0) -> bool:
        """End the thread when all hosts have closed theirs, and finished all operations; idempotent.

        Return whether the thread has ended in time without an error. Otherwise, MPI cannot be finalized.
        """
        self._begin(self._farewell)
        self._thread.join(seconds)
        return not self._thread.is_alive() and self.error is None

    def _begin(self, operation: BulkOperation) -> Ticket:
        self._begun.put(operation)
        return operation.ticket

    def _run(self) -> None:
        progress, pauses = self._progress, Pauses()
        try:
            while not self._farewell.ticket.is_over():
                if not progress.requests:
                    if self._is_closing:
                        progress.begin(self._farewell)
                    else:
                        self._begin_next(None)
                        pauses.begin_again()
                elif self._begin_next(pauses.after_test(progress.test(), time.perf_counter(), MAX_PAUSE_S)):
                    pauses.begin_again()
        except BaseException as error:
            self.error = error

    def _begin_next(self, pause: Optional[float]) -> bool:
        """Wait at most ``pause`` seconds (None: forever) for an operation and begin it; return whether there is one."""
        try:
            operation = self._begun.get(pause != 0.0, pause)
        except queue.Empty:
            return False
        if operation is self._farewell:
            self._is_closing = True
        else:
            self._progress.begin(operation)
        return True
