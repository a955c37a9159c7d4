"""Requests of a host's ranks to other hosts, for remote memory and for reductions over hosts.

A rank writes a request into its slot (`sync.fetching`). The process that serves the rank's host fetches the memory from
the host that has it, and signals the rank on completion. The MPI thread, if any, moves large data between hosts. After
an abort, no fetch or reduction begins until that thread has ended the aborted operations, which may still write into
memory. On hosts other than the first, the next command also waits. Reductions of earlier commands are not aborted.
"""

from __future__ import annotations

import pickle
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..errors import SharedMemoryError
from ..memory import messages
from ..memory.attach import PoolMap
from ..memory.ranges import Ranges, by_pool
from ..sync.barrier import BARRIERS_PER_COMMAND
from ..sync.control_block import ABORTED, ControlBlock
from ..sync.fetching import HostReduction
from ..sync.hosts import Hosts
from .bulk_transfers import CARRIED_BYTES, BulkTransfers, as_bytes
from .host_memory import HostMemory
from .messages import FetchMemory, FetchRefused, ForgetFetch, Handlers, Memory
from .operation import Cancelled, Ticket

UNREADABLE_S = 5.0  # time limit for a request to become readable after the rank has announced it


class Requests:
    """The requests of one host's ranks to other hosts, in one session.

    Methods run in the event loop's thread, except callbacks of the MPI thread. ``pools`` maps ids to descriptors of the
    pools of the host's ranks, of shadows of other ranks' pools, and of the program's pools or their shadows.
    ``lines[host]``: a connection to the host, possibly through the first host. ``bulk`` moves large arrays if
    ``hosts.places`` is set. `next_reduction` is the number of the next reduction over hosts, as of the last abort.
    """

    def __init__(
        self,
        hosts: Hosts,
        block: ControlBlock,
        pools: Mapping[int, int],
        lines: Sequence[Any],
        bulk: Optional[BulkTransfers],
    ) -> None:
        self.hosts, self.block, self.lines, self.pools = hosts, block, lines, PoolMap()
        for ident, fd in pools.items():
            self.pools.add(ident, fd)
        self.memory = {ident: HostMemory(fd) for ident, fd in pools.items()}
        self.bulk = None if hosts.places is None else bulk
        self.next_reduction = 0
        self._places = hosts.places or ()
        self._lock = threading.RLock()
        self._ended = False
        self._asked = [0] * hosts.size  # by rank: number of the last request seen
        self._unreadable: Dict[int, Tuple[int, float]] = {}  # by rank: unreadable request, time of first attempt
        self._epoch = -1
        self._given_up = 0  # the last aborted command
        self._cancelling = 0  # pending cancellations in the MPI thread
        self._postponed: List[Callable[[], None]] = []
        self._reductions: Dict[int, _Reduced] = {}  # by barrier
        self._fetched: Dict[Ranges, _Fetch] = {}
        self._constants: Dict[Tuple[int, int], _Fetch] = {}  # by pool and number: arrays that never change
        self._rooms: Dict[int, List[Tuple[_Waits, List[Ranges]]]] = {}  # by barrier: requests to check free memory
        self._fetches: Dict[int, _Fetch] = {}
        self._number = 0

    def end(self) -> None:
        with self._lock:
            self._give_up(everything=True)
            self._ended = True

    def give_up_all(self) -> None:
        """Abort all requests, and reductions of earlier commands; the other hosts must do the same."""
        with self._lock:
            self._give_up(everything=True)

    def look(self) -> None:
        """Process an abort, if any, and new requests of this host's ranks."""
        block = self.block
        self.look_at_aborted()
        self._begin_postponed()
        for rank in self.hosts.near:
            asked = block.fetch_asked[rank]
            if asked == self._asked[rank]:
                continue
            self.look_at_aborted()  # otherwise an abort would also drop requests made after it
            try:
                payload = messages.get(block.fetch_length[rank], block.fetch_slots[rank], self.pools)
                number, epoch, kind, *request = pickle.loads(payload)
                if number != asked:
                    raise ValueError(f"expected request {asked} of rank {rank}, got request {number}")
            except Exception:  # after an abort, the rank may be writing its next request
                first, since = self._unreadable.setdefault(rank, (asked, time.monotonic()))
                if first != asked:
                    del self._unreadable[rank]
                elif time.monotonic() > since + UNREADABLE_S:
                    raise
                continue
            self._unreadable.pop(rank, None)
            self._asked[rank] = asked
            if epoch >= (self._given_up + 1) * BARRIERS_PER_COMMAND:
                with self._lock:
                    self.kinds[kind](self, _Waits(rank, asked), epoch, *request)

    def _begin_fetch(self, waits: _Waits, epoch: int, wanted: Sequence[Tuple[Any, ...]]) -> None:
        """Fetch memory of other hosts, once for all ranks that request it."""
        if epoch != self._epoch:  # after a barrier, values fetched earlier may have changed
            self._epoch, self._fetched = epoch, {}
        for ranges in [Ranges(*each) for each in wanted]:
            known: Any = self._constants if ranges.constant else self._fetched
            key = (ranges.pool, ranges.constant) if ranges.constant else ranges
            fetch = known.get(key)
            if fetch is None or (fetch.error if ranges.constant else waits.rank in fetch.ranks):
                fetch = known[key] = self._ask(ranges)
                waits.received += ranges.nbytes
            fetch.ranks.add(waits.rank)
            waits.error = waits.error or fetch.error
            if not fetch.is_done:
                fetch.waiting.append(waits)
                waits.open += 1
        if not waits.open:
            self._tell(waits)

    def _ask(self, ranges: Ranges) -> _Fetch:
        self._number += 1
        fetch = self._fetches[self._number] = _Fetch(self._number, ranges)
        try:
            self.memory[ranges.pool].reserve(ranges)
        except (OSError, SharedMemoryError) as error:
            self._end_fetch(fetch.number, str(error))
            return fetch
        self._after_drain(partial(self._ask_for, fetch))
        return fetch

    def _ask_for(self, fetch: _Fetch) -> None:
        ranges, host, bulk = fetch.ranges, self.hosts.of(fetch.ranges.pool), self.bulk
        if bulk is not None and ranges.nbytes >= CARRIED_BYTES:
            memory = self.memory[ranges.pool].up_to(int(ranges.stops.max()))
            buffers = [as_bytes(part) for part in ranges.of(memory)]
            fetch.carried = bulk.new_fetch()
            bulk.courier.receive(self._places[host], fetch.carried, buffers, partial(self._on_carried, fetch.number))
        self.lines[host].send(FetchMemory(host, self.hosts.own, fetch.number, fetch.carried, *ranges[:3]))

    @property
    def is_draining(self) -> bool:
        """Whether the MPI thread may still write into an aborted command's memory; ``block.bridge`` signals the end."""
        return self._cancelling > 0

    def _after_drain(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` once the MPI thread has finished with aborted commands."""
        if self.is_draining:
            self._postponed.append(begin)
        else:
            begin()

    def _begin_postponed(self) -> None:
        with self._lock:
            while self._postponed and not self.is_draining:
                self._postponed.pop(0)()

    def on_fetch(self, to: int, asker: int, number: int, carried: int, pool: int, starts: Any, stops: Any) -> None:
        parts = Ranges(pool, starts, stops).of(self.memory[pool].up_to(int(stops.max())))
        if carried < 0 or self.bulk is None:
            self.lines[asker].send(Memory(asker, number, b"".join(parts)))
        else:
            done = partial(self._on_sent, asker, number)
            self.bulk.courier.send(self._places[asker], carried, [as_bytes(part) for part in parts], done)

    def _on_sent(self, asker: int, number: int, error: Optional[BaseException]) -> None:
        if error is not None and not isinstance(error, Cancelled):
            self.lines[asker].send(FetchRefused(asker, number, str(error)))

    def on_refused(self, to: int, number: int, reason: str) -> None:
        """Handle another host's failure to send memory."""
        with self._lock:
            if number in self._fetches:
                self._cancel(self._fetches[number])
                self._end_fetch(number, reason)

    def on_memory(self, to: int, number: int, content: bytes) -> None:
        """Write memory into a shadow and complete the fetch."""
        with self._lock:
            fetch = self._fetches.get(number)
            if fetch is not None:  # otherwise the command was aborted
                self._end_fetch(number, self._write(fetch.ranges, memoryview(content)))

    def _write(self, ranges: Ranges, content: memoryview) -> str:
        """Write received memory into the shadow of another host's pool; return an error message, or ""."""
        memory, place = self.memory[ranges.pool], 0
        try:
            for start, stop in zip(ranges.starts.tolist(), ranges.stops.tolist()):
                memory.write(content[place : place + stop - start], start)
                place += stop - start
        except OSError as error:
            return str(error)
        return ""

    def _on_carried(self, number: int, error: Optional[BaseException]) -> None:
        with self._lock:
            if not self._ended:
                self._end_fetch(number, "" if error is None else str(error))

    def _end_fetch(self, number: int, reason: str = "") -> None:
        """Complete a fetch, unless it was aborted, and signal ranks that wait for no other fetch."""
        fetch = self._fetches.pop(number, None)
        if fetch is None:
            return
        fetch.is_done = True
        if reason:
            there, here = (self.hosts.names[i] for i in (self.hosts.of(fetch.ranges.pool), self.hosts.own))
            fetch.error = f"memory on host {there} could not be fetched to host {here}: {reason}"
        for waits in fetch.waiting:
            waits.error = waits.error or fetch.error
            waits.open -= 1
            if not waits.open:
                self._tell(waits)

    def _tell(self, waits: _Waits) -> None:
        block, slot = self.block, self.block.fetch_slots[waits.rank]
        if waits.error:
            words = waits.error.encode()[: len(slot) - 1] + b"\0"
            slot[: len(words)] = words
        block.received[waits.rank] += waits.received
        block.fetch_done[waits.rank] = -waits.number if waits.error else waits.number
        block.fetched[waits.rank].release()

    def _begin_room(self, waits: _Waits, epoch: int, wanted: Sequence[Tuple[Any, ...]]) -> None:
        """Once all ranks of this host have asked, answer whether the host has memory for all their fetches."""
        asking = self._rooms.setdefault(epoch, [])
        asking.append((waits, [Ranges(*each) for each in wanted]))
        if len(asking) < len(self.hosts.near):
            return
        del self._rooms[epoch]
        error = ""
        together = by_pool(ranges for _, of_rank in asking for ranges in of_rank)
        try:
            missing = {ranges.pool: self.memory[ranges.pool].missing(ranges) for ranges in together}
            for pool in missing:
                self.memory[pool].check_free(sum(missing.values()))
        except (OSError, SharedMemoryError) as failure:
            error = f"host {self.hosts.names[self.hosts.own]} lacks memory for its ranks' arguments: {failure}"
        for each, _ in asking:
            each.error = error
            self._tell(each)

    # -- reductions over hosts -----------------------------------------------------------------------------------

    def _begin_reduce(self, waits: _Waits, epoch: int, parts: Sequence[HostReduction], meanwhile: bool) -> None:
        """Reduce this host's partial values over hosts, once all its ranks have requested the reduction."""
        reduced = self._reductions.setdefault(epoch, _Reduced(epoch))
        reduced.waiting.append(waits)
        if len(reduced.waiting) == len(self.hosts.near):
            bulk = self.bulk
            assert bulk is not None
            reduced.number, bulk.reductions = bulk.reductions, bulk.reductions + 1
            self._after_drain(partial(self._reduce, bulk, reduced, parts, meanwhile))

    def _reduce(self, bulk: BulkTransfers, reduced: _Reduced, parts: Sequence[HostReduction], meanwhile: bool) -> None:
        own = self.hosts.own
        mine = [i for i, part in enumerate(parts) if own in part.sources or own in part.destinations]
        reductions = [(i, self._attached(parts[i])) for i in mine]
        reduced.left = len(reductions)
        reduced.tickets = bulk.all_reduce(reduced.number, reductions, partial(self._on_reduced, reduced))
        if meanwhile:  # the reduction is in progress, so the ranks continue
            began, reduced.waiting = reduced.waiting, []
            for waits in began:
                self._tell(waits)
        elif not reduced.left:
            self._end_reduction(reduced)

    def _attached(self, part: HostReduction) -> HostReduction:
        places, attach = self._places, self.pools.attach
        return part._replace(
            partial=attach(part.partial),
            result=attach(part.result),
            sources=[places[host] for host in part.sources],
            destinations=[places[host] for host in part.destinations],
        )

    def _on_reduced(self, reduced: _Reduced, error: Optional[BaseException]) -> None:
        with self._lock:
            if self._ended or self._reductions.get(reduced.epoch) is not reduced:
                return
            reduced.left -= 1
            if error is not None:
                reduced.error = f"the reduction over hosts failed: {error}"
            if not reduced.left:
                self._end_reduction(reduced)

    def _begin_finish(self, waits: _Waits, epoch: int, number: int) -> None:
        """Signal a rank when a reduction that began earlier is over."""
        reduced = self._reductions.get(number)
        if reduced is None:
            waits.error = "the reduction over hosts was aborted"
            self._tell(waits)
            return
        reduced.waiting.append(waits)
        if not reduced.left:
            self._end_reduction(reduced)

    def _end_reduction(self, reduced: _Reduced) -> None:
        """Signal the waiting ranks that a reduction is over, and drop it when all ranks have been signaled."""
        for waits in reduced.waiting:
            waits.error = reduced.error
            if not reduced.signalled:  # count the bytes for one rank only
                waits.received += sum(ticket.received for ticket in reduced.tickets)
            reduced.signalled.add(waits.rank)
            self._tell(waits)
        reduced.waiting = []
        if len(reduced.signalled) == len(self.hosts.near):
            del self._reductions[reduced.epoch]

    # -- aborting -------------------------------------------------------------------------------------------------

    def look_at_aborted(self) -> None:
        self.abort(self.block.words[ABORTED])

    def abort(self, aborted: int) -> None:
        """Abort all requests of commands up to number ``aborted``."""
        if aborted > self._given_up:
            with self._lock:
                self._given_up = aborted
                self._give_up()

    def _give_up(self, everything: bool = False) -> None:
        """Cancel pending requests and their transfers; unless ``everything``, keep reductions of earlier commands."""
        fetches, self._fetches, self._fetched = self._fetches, {}, {}
        self._constants = {key: fetch for key, fetch in self._constants.items() if fetch.is_done}
        self._rooms, self._postponed = {}, []
        first = -1 if everything else self._given_up * BARRIERS_PER_COMMAND
        self._reductions, under_way = {}, self._reductions
        for epoch, reduced in under_way.items():
            if epoch < first:  # an earlier command began this reduction
                self._reductions[epoch], reduced.waiting = reduced, []
        for fetch in fetches.values():
            self._cancel(fetch)
        if self.bulk is not None:
            self.next_reduction = self.bulk.reductions
            kept = {reduced.number for reduced in self._reductions.values()}
            ranges = self.bulk.skip_reductions(
                kept, {reduced.number for reduced in under_way.values() if reduced.number >= 0}
            )
            self._cancelling += len(ranges)
            for first, last in ranges:
                self.bulk.courier.cancel(first, last, self._on_cancelled)

    def _cancel(self, fetch: _Fetch) -> None:
        if self.bulk is None or fetch.carried < 0:
            return
        self._cancelling += 1
        self.bulk.cancel_fetch(fetch.carried, self._on_cancelled)
        host = self.hosts.of(fetch.ranges.pool)
        try:
            self.lines[host].send(ForgetFetch(host, fetch.carried))
        except OSError:  # the host is lost
            pass

    def on_forget(self, to: int, carried: int) -> None:
        """Stop sending memory that another host no longer needs."""
        if self.bulk is not None:
            self.bulk.cancel_fetch(carried)

    def _on_cancelled(self, error: Optional[BaseException]) -> None:
        with self._lock:
            self._cancelling -= 1
            if not self._cancelling and not self._ended:
                self.block.bridge.release()

    #: The methods for ranks' requests, by kind (see `sync.fetching`), and for messages of other hosts.
    kinds: Handlers = {"fetch": _begin_fetch, "room": _begin_room, "reduce": _begin_reduce, "finish": _begin_finish}
    handlers: Handlers = {FetchMemory: on_fetch, Memory: on_memory, FetchRefused: on_refused, ForgetFetch: on_forget}


class _Waits:
    """A request whose rank waits for the answer; ``open`` counts its unfinished fetches."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank, self.number, self.open, self.error = rank, number, 0, ""
        self.received = 0  # bytes received for the request from other hosts


class _Reduced:
    """A reduction over hosts; ``epoch`` is the last barrier before the ranks requested it."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.number, self.error = epoch, -1, ""
        self.waiting: List[_Waits] = []
        self.tickets: List[Ticket] = []
        self.left = 0  # unfinished parts
        self.signalled: Set[int] = set()  # ranks that have been signaled


class _Fetch:
    """A fetch of memory ranges, pending or complete."""

    def __init__(self, number: int, ranges: Ranges) -> None:
        self.number, self.ranges, self.is_done, self.error = number, ranges, False, ""
        self.carried = -1  # the operation number of this fetch in the MPI thread; -1 if MPI does not carry it
        self.ranks: Set[int] = set()
        self.waiting: List[_Waits] = []
