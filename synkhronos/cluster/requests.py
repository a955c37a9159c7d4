"""Requests of a host's ranks to other hosts, for remote memory and for reductions over hosts.

A rank writes a request into its slot (`sync.fetching`). The process that serves the rank's host fetches the memory from
the host that has it, and signals the rank on completion. The MPI thread, if any, moves large data between hosts.

When a command is aborted, its operations in the MPI thread are abandoned: all hosts finish them with empty messages and
drop the results. Until then, the operations may write into memory. No fetch or reduction begins before their end, and
no command on hosts other than the first. Reductions of earlier commands continue.
"""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SharedMemoryError, SynkhronosError
from ..memory import messages
from ..memory.attach import PoolMap
from ..memory.ranges import Ranges, by_pool
from ..sync.barrier import BARRIERS_PER_COMMAND
from ..sync.control_block import ABORTED, ControlBlock
from ..sync.fetching import HostReduction
from ..sync.hosts import Hosts
from .bulk_transfers import CARRIED_BYTES, BulkTransfers, as_bytes
from .host_memory import HostMemory
from .messages import FetchMemory, FinishReduction, Handlers, Memory
from .operation import Ticket

UNREADABLE_S = 5.0  # time limit for a request to become readable after the rank has announced it


class Requests:
    """The requests of one host's ranks to other hosts, in one session.

    Methods run in the event loop's thread, except callbacks of the MPI thread. ``pools`` maps ids to descriptors of the
    pools of the host's ranks, of shadows of other ranks' pools, and of the program's pools or their shadows.
    ``lines[host]``: a connection to the host, possibly through the first host. ``bulk`` moves large arrays if
    ``hosts.places`` is set.
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
        self._places = hosts.places or ()
        self._lock = threading.RLock()
        self._ended = False
        self.waiting: Set[int] = set()  # ranks that wait for an answer
        self._asked = [0] * hosts.size  # by rank: number of the last request seen
        self._unreadable: Dict[int, Tuple[int, float]] = {}  # by rank: unreadable request, time of first attempt
        self._epoch = -1
        self.aborted = 0  # the last aborted command
        self._operations: List[Tuple[int, Ticket]] = []  # in the MPI thread, with the last barrier before each
        self._postponed: List[Callable[[], None]] = []
        self._reductions: Dict[int, _Reduced] = {}  # by barrier
        self._fetched: Dict[Ranges, _Fetch] = {}
        self._constants: Dict[Tuple[int, int], _Fetch] = {}  # by pool and number: arrays that never change
        self._rooms: Dict[int, List[Tuple[_Waits, List[Ranges]]]] = {}  # by barrier: requests to check free memory
        self._fetches: Dict[int, _Fetch] = {}
        self._number = 0

    def end(self) -> None:
        with self._lock:
            self._give_up(-1)
            self._operations, self._ended = [], True  # callbacks of tickets refer to this object

    def give_up_all(self) -> None:
        """Abort all requests, and reductions of earlier commands; the other hosts must do the same."""
        with self._lock:
            self._give_up(-1)

    def look(self) -> None:
        """Process new requests of this host's ranks."""
        block = self.block
        if self.bulk is not None and self.bulk.courier.error is not None:
            raise SynkhronosError("the MPI thread has failed") from self.bulk.courier.error
        self._begin_postponed()
        for rank in self.hosts.near:
            asked = block.fetch_asked[rank]
            if asked == self._asked[rank]:
                continue
            if block.words[ABORTED] > self.aborted:  # the request may be of the next command
                break
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
            if epoch >= self._first_valid:
                with self._lock:
                    self.waiting.add(rank)
                    self.kinds[kind](self, _Waits(rank, asked), epoch, *request)

    @property
    def _first_valid(self) -> int:
        """The first barrier after the last aborted command."""
        return (self.aborted + 1) * BARRIERS_PER_COMMAND

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
        ranges, host, bulk, carried = fetch.ranges, self.hosts.of(fetch.ranges.pool), self.bulk, -1
        if bulk is not None and ranges.nbytes >= CARRIED_BYTES:
            memory = self.memory[ranges.pool].up_to(int(ranges.stops.max()))
            buffers = [as_bytes(part) for part in ranges.of(memory)]
            carried = bulk.new_fetch()
            done = partial(self._on_carried, fetch.number)
            self._note(self._epoch, bulk.courier.receive(self._places[host], carried, buffers, done))
        message = FetchMemory(host, self.hosts.own, fetch.number, self._epoch, carried, *ranges[:3])
        self.lines[host].send(message)

    def _note(self, epoch: int, *tickets: Ticket) -> None:
        self._operations = [each for each in self._operations if not each[1].is_over()]
        self._operations += [(epoch, ticket) for ticket in tickets]

    @property
    def is_draining(self) -> bool:
        """Whether the MPI thread may still write into an aborted command's memory; ``block.bridge`` signals the end."""
        return any([ticket.is_abandoned and not ticket.is_over() for _, ticket in self._operations])

    def _after_drain(self, begin: Callable[[], None]) -> None:
        """Call ``begin`` once the MPI thread has finished with aborted commands."""
        self._postponed.append(begin)
        self._begin_postponed()

    def _begin_postponed(self) -> None:
        with self._lock:
            while self._postponed and not self.is_draining:
                self._postponed.pop(0)()

    def on_fetch(
        self, to: int, asker: int, number: int, epoch: int, carried: int, pool: int, starts: Any, stops: Any
    ) -> None:
        parts = Ranges(pool, starts, stops).of(self.memory[pool].up_to(int(stops.max())))
        if carried < 0 or self.bulk is None:
            self.lines[asker].send(Memory(asker, number, b"".join(parts)))
        else:
            buffers = [as_bytes(part) for part in parts]
            ticket = self.bulk.courier.send(self._places[asker], carried, buffers, self._on_over)
            ticket.is_abandoned = epoch < self._first_valid
            self._note(epoch, ticket)

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

    def _on_carried(self, number: int, ticket: Ticket) -> None:
        with self._lock:
            if not ticket.is_abandoned:
                self._end_fetch(number)
        self._on_over(ticket)

    def _on_over(self, ticket: Ticket) -> None:
        """Report the end of an abandoned operation, whose result is dropped; called in the MPI thread."""
        with self._lock:
            if ticket.is_abandoned and not self._ended:
                self.block.bridge.release()

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
        self.waiting.discard(waits.rank)
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
            reduced.parts = parts
            self._after_drain(partial(self._reduce, reduced, meanwhile))

    def _reduce(self, reduced: _Reduced, meanwhile: bool) -> None:
        bulk = self.bulk
        assert bulk is not None
        reduced.number, bulk.reductions = bulk.reductions, bulk.reductions + 1
        mine = self._mine(reduced.parts, self.pools.attach)
        reduced.tickets = bulk.all_reduce(reduced.number, mine, partial(self._on_reduced, reduced))
        self._note(reduced.epoch, *reduced.tickets)
        if meanwhile:  # the reduction is in progress, so the ranks continue
            began, reduced.waiting = reduced.waiting, []
            for waits in began:
                self._tell(waits)
        elif not reduced.tickets:
            self._end_reduction(reduced)

    def _mine(
        self, parts: Sequence[HostReduction], array: Callable[[Any], NDArray[Any]]
    ) -> List[Tuple[int, HostReduction]]:
        """Return this host's parts of a reduction, with their indices and arrays."""
        own, places = self.hosts.own, self._places
        return [
            (
                i,
                part._replace(
                    partial=array(part.partial),
                    result=array(part.result),
                    sources=[places[host] for host in part.sources],
                    destinations=[places[host] for host in part.destinations],
                ),
            )
            for i, part in enumerate(parts)
            if own in part.sources or own in part.destinations
        ]

    def _on_reduced(self, reduced: _Reduced, ticket: Ticket) -> None:
        with self._lock:
            if self._reductions.get(reduced.epoch) is reduced:
                self._end_reduction(reduced)
        self._on_over(ticket)

    def on_finish(self, to: int, number: int, parts: Sequence[HostReduction]) -> None:
        """Take part in a reduction that another host has abandoned, unless this host had begun it."""
        bulk = self.bulk
        if bulk is not None and number in bulk.skipped:
            bulk.skipped.remove(number)
            mine = self._mine(parts, lambda handle: np.empty(handle.shape, handle.dtype))
            self._note(-1, *bulk.all_reduce(number, mine, self._on_over, is_abandoned=True))

    def _begin_finish(self, waits: _Waits, epoch: int, number: int) -> None:
        """Signal a rank when a reduction that began earlier is over."""
        reduced = self._reductions.get(number)
        if reduced is None:
            waits.error = "the reduction over hosts was aborted"
            self._tell(waits)
            return
        reduced.waiting.append(waits)
        self._end_reduction(reduced)

    def _end_reduction(self, reduced: _Reduced) -> None:
        """Signal the waiting ranks if a reduction is over, and drop it when all ranks have been signaled."""
        if not all([ticket.is_over() and not ticket.is_abandoned for ticket in reduced.tickets]):
            return
        for waits in reduced.waiting:
            if not reduced.signalled:  # count the bytes for one rank only
                waits.received += sum(ticket.received for ticket in reduced.tickets)
            reduced.signalled.add(waits.rank)
            self._tell(waits)
        reduced.waiting = []
        if len(reduced.signalled) == len(self.hosts.near):
            del self._reductions[reduced.epoch]

    # -- aborting -------------------------------------------------------------------------------------------------

    def abort(self, aborted: int, reductions: int) -> None:
        """Abort all requests of commands up to number ``aborted``; ``reductions`` is the next reduction's number."""
        with self._lock:
            self.aborted = aborted
            if self.bulk is not None:
                self.bulk.skip_to(reductions)
            self._give_up(aborted * BARRIERS_PER_COMMAND)

    def _give_up(self, first: int) -> None:
        """Give up requests and operations, except reductions that began before barrier ``first``."""
        self._fetches, self._fetched = {}, {}
        self._constants = {key: fetch for key, fetch in self._constants.items() if fetch.is_done}
        self._rooms, self._postponed, self.waiting = {}, [], set()
        for epoch, ticket in self._operations:
            if epoch >= first:
                ticket.is_abandoned = True
        self._reductions, under_way = {}, self._reductions
        for epoch, reduced in under_way.items():
            if epoch < first:
                self._reductions[epoch], reduced.waiting = reduced, []
            elif reduced.tickets:
                self._send_parts(reduced)

    def _send_parts(self, reduced: _Reduced) -> None:
        """Let hosts take part that have not begun a reduction, so that it ends on this host."""
        for host, line in enumerate(self.lines):
            if host != self.hosts.own:
                with suppress(ConnectionError):  # the host is lost
                    line.send(FinishReduction(host, reduced.number, reduced.parts))

    #: The methods for ranks' requests, by kind (see `sync.fetching`), and for messages of other hosts.
    kinds: Handlers = {"fetch": _begin_fetch, "room": _begin_room, "reduce": _begin_reduce, "finish": _begin_finish}
    handlers: Handlers = {FetchMemory: on_fetch, Memory: on_memory, FinishReduction: on_finish}


class _Waits:
    """A request whose rank waits for the answer; ``open`` counts its unfinished fetches."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank, self.number, self.open, self.error = rank, number, 0, ""
        self.received = 0  # bytes received for the request from other hosts


class _Reduced:
    """A reduction over hosts; ``epoch`` is the last barrier before the ranks requested it."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.number = epoch, -1
        self.parts: Sequence[HostReduction] = ()
        self.waiting: List[_Waits] = []
        self.tickets: List[Ticket] = []  # of this host's parts
        self.signalled: Set[int] = set()  # ranks that have been signaled


class _Fetch:
    """A fetch of memory ranges, pending or complete."""

    def __init__(self, number: int, ranges: Ranges) -> None:
        self.number, self.ranges, self.is_done, self.error = number, ranges, False, ""
        self.ranks: Set[int] = set()
        self.waiting: List[_Waits] = []
