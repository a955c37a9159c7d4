"""The courier of a host: the one thread that talks to MPI, and carries bulk data between the hosts' shared memories.

::

    any thread    send, receive, all_reduce --> queue --+                              ticket, done()
                  (return at once)                      v                                     ^
    courier       asleep on the queue <----> begin operations, test requests, step operations |
                                                     |            ^
    MPI           non-blocking requests straight out of, and into, shared memory

While nothing is under way the thread sleeps on its queue. Else it tests its requests: a few times at once after
something has happened, then after pauses (`pauses`). In MPI, in what reduces and in its pauses it does without the GIL,
so that other threads of the process get their turn.

If MPI fails, nothing is known of any request. As a rule another host was lost, of which others learn by their
connection to it, and give up what was under way. Operations that failed before would hide that. So the thread uses MPI
no more, and waits a while before it fails what is left.

**Numbers and tags.** Operations of all hosts that belong together have the same number, which is their own: two
operations between the same two hosts, in the same direction, never have the same one. MPI's tags are the numbers,
modulo as many as there are: 2 ** 30 with Open MPI, no less than 2 ** 14 with any. What was sent for an operation that
the other side has cancelled is looked for there, and thrown away, with the next cancellation and in the end. But nobody
knows when the last of it has arrived, and it would be taken for a message of a later operation with the same tag.
Therefore an operation whose tag is that of a cancelled one is refused, on all hosts that have cancelled that one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from functools import partial
from typing import Any, Callable, List, Optional, Sequence, Tuple, Type

from numpy.typing import NDArray

from ...errors import ArgumentValueError, StateError
from .all_reduce import AllReduce, Reduction, largest_message
from .operation import Cancelled, Done, Farewell, Operation, Ticket
from .pauses import Pauses
from .progress import Progress
from .transfer import Receiving, Sending, Transfer

logger = logging.getLogger("synkhronos")

#: The size of messages of a transfer, and about that of chunks of a reduction; chunks of many hosts are larger, so that
#: the pieces of each do not get smaller than those of four.
CHUNK_BYTES, LEAST_PIECE_BYTES = 1 << 18, 1 << 16

#: The largest tag that every MPI has.
LEAST_LAST_TAG = 32767

#: The longest pause between tests.
MAX_PAUSE_S = 5e-3

#: The longest pause if only messages are left that the other side has cancelled.
MAX_LEFT_OVER_PAUSE_S = 0.05

#: Seconds after an error of MPI in which somebody must have learned that a host was lost: `wire` needs up to five.
LOSS_TIMEOUT_S = 6.0


def chunk_bytes_of(hosts: int) -> int:
    """Return about how many bytes a chunk of a reduction has over so many hosts.

    Examples
    --------
    >>> [chunk_bytes_of(hosts) >> 10 for hosts in (2, 4, 8, 64)]
    [256, 256, 512, 4096]
    """
    return max(CHUNK_BYTES, hosts * LEAST_PIECE_BYTES)


class Courier:
    """Carries bulk data between hosts; its methods may be called from any thread, and return at once.

    Parameters
    ----------
    comm : communicator
        Of mpi4py, with a process per host, for the courier alone. Or what has its methods ``Get_rank``, ``Get_size``,
        ``Isend``, ``Irecv``, ``Improbe`` and ``Ibarrier``; requests with ``Cancel`` and the class method ``Testsome``.
    last_tag : int
        The largest tag: ``comm.Get_attr(MPI.TAG_UB)``. The same on all hosts, as is the next.
    chunk_bytes : int, optional
        The size of messages; that of `chunk_bytes_of` by default.

    Attributes
    ----------
    host, hosts : int
        This one, and how many there are.
    last_tag : int
    """

    def __init__(self, comm: Any, last_tag: int = LEAST_LAST_TAG, chunk_bytes: Optional[int] = None) -> None:
        self.host: int = comm.Get_rank()
        self.hosts: int = comm.Get_size()
        self.last_tag, self._chunk_bytes = last_tag, chunk_bytes or chunk_bytes_of(self.hosts)
        self._progress = Progress(comm, last_tag, largest_message(self._chunk_bytes, self.hosts))
        self._orders: queue.SimpleQueue[Tuple[Callable[[], None], Ticket]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # no order is given after the thread has taken the last one
        self._ended: Optional[BaseException] = None
        self._closing = False
        self._farewell: Optional[Farewell] = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="synkhronos-courier")
        self._thread.start()

    def __repr__(self) -> str:
        state = f"{len(self._progress.operations)} operations under way" if self._ended is None else str(self._ended)
        return f"<Courier of host {self.host} of {self.hosts}: {state}>"

    @property
    def sent(self) -> List[int]:
        """The bytes sent to each host, by operations that were not given up by then."""
        return list(self._progress.sent)

    @property
    def received(self) -> List[int]:
        """The bytes received from each host, likewise."""
        return list(self._progress.received)

    def send(self, host: int, number: int, buffers: Sequence[NDArray[Any]], done: Optional[Done] = None) -> Ticket:
        """Send the bytes of arrays, one after the other, to a host, which receives as many.

        Parameters
        ----------
        host : int
        number : int
            Of the operation, 0 or more; the same at the other host.
        buffers : sequence of ndarray
            C-contiguous; they must not change before the operation is over.
        done : callable, optional
            See `Ticket`.

        Returns
        -------
        Ticket

        Raises
        ------
        ValueError
            If an argument cannot be used.
        """
        return self._transfer(Sending, host, number, buffers, done)

    def receive(self, host: int, number: int, buffers: Sequence[NDArray[Any]], done: Optional[Done] = None) -> Ticket:
        """Receive bytes into arrays, one after the other: as many as the other host sends; see `send`."""
        for i, buffer in enumerate(buffers):
            if not buffer.flags.writeable:
                raise ArgumentValueError(f"buffers[{i}]", "a writable array", "a read-only one")
        return self._transfer(Receiving, host, number, buffers, done)

    def _transfer(
        self, end: Type[Transfer], host: int, number: int, buffers: Sequence[NDArray[Any]], done: Optional[Done]
    ) -> Ticket:
        if host == self.host or not 0 <= host < self.hosts:
            raise ArgumentValueError("host", f"another one than {self.host}, 0 to {self.hosts - 1}", str(host))
        for i, buffer in enumerate(buffers):
            if not buffer.flags.c_contiguous:
                raise ArgumentValueError(f"buffers[{i}]", "a C-contiguous array", f"strides {buffer.strides}")
        return self._begin(end(number, Ticket(done), host, buffers, self._chunk_bytes))

    def all_reduce(self, number: int, reduction: Reduction, done: Optional[Done] = None) -> Ticket:
        """Reduce the partial results of hosts, and give all the same bits; called on every host that gives or takes.

        Parameters
        ----------
        number : int
            Of the operation, 0 or more; the same on all hosts.
        reduction : Reduction
        done : callable, optional
            See `Ticket`.

        Returns
        -------
        Ticket

        Raises
        ------
        TypeError, ValueError
            If arrays, op and others do not fit each other.
        """
        return self._begin(AllReduce(number, Ticket(done), self.host, self.hosts, reduction, self._chunk_bytes))

    def cancel(self, first: int, last: int, done: Optional[Done] = None) -> Ticket:
        """Give up the operations with numbers from ``first`` to ``last``, those that have not come yet included.

        They end by `Cancelled`, if they are not over. Once the returned ticket is over, nothing writes into their
        buffers any more. (Where data is arriving already, this takes until it is there: for ever, if the other host is
        gone.) All hosts have to cancel the same numbers.
        """
        ticket = Ticket(done)
        self._order(partial(self._progress.cancel, first, last, ticket), ticket)
        return ticket

    def take_leave(self) -> Ticket:
        """Begin to throw away whatever arrives, until no host has anything left that others have cancelled.

        `MPI.Finalize` would wait for that. All hosts have to call this, when nothing is under way any more; the
        ticket is over when all are rid of everything.
        """
        farewell = Farewell()
        self._order(partial(setattr, self, "_farewell", farewell), farewell.ticket)
        return farewell.ticket

    def close(self, seconds: Optional[float] = 10.0) -> bool:
        """Give up everything that is under way, and end the thread; return whether it has ended in time.

        May be called again. If it has not ended, because data is arriving and does not get here, the buffers must
        stay where they are, and MPI cannot be finalised.
        """
        self._order(self._close, Ticket())
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _begin(self, operation: Operation) -> Ticket:
        if operation.number < 0:
            raise ArgumentValueError("number", "0 or more", str(operation.number))
        self._order(partial(self._progress.begin, operation), operation.ticket)
        return operation.ticket

    def _order(self, order: Callable[[], None], ticket: Ticket) -> None:
        """Have the thread do something; the ticket is over at once if there is no thread any more."""
        with self._lock:
            ended = self._ended
            if ended is None:
                self._orders.put((order, ticket))
        if ended is not None:
            ticket.finish(StateError(f"the courier of host {self.host} has ended: {ended}"))

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        progress = self._progress
        end: BaseException = Cancelled("the courier was closed")
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
                logger.error("the courier of host %d cannot go on", self.host, exc_info=error)
        with self._lock:
            self._ended = end
        progress.abandon(end)
        while not self._orders.empty():
            self._orders.get()[1].finish(end)

    def _take_order(self, pause: Optional[float]) -> bool:
        """Do what a caller wants, waiting for it for so long (None: for ever); return whether there was anything."""
        try:
            order, _ = self._orders.get(pause != 0.0, pause)
        except queue.Empty:
            return False
        order()
        return True

    def _close(self) -> None:
        self._closing = True
        self._progress.cancel_all(Cancelled("the courier was closed"))
        self._progress.sweep()
