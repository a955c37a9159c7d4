"""The state of one rank, which every command uses."""

from __future__ import annotations

import functools
import gc
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

import numpy as np

from ..errors import Aborted, SynkhronosError
from ..memory.attach import PoolMap
from ..memory.pool import Pool
from ..sync.barrier import Barrier
from ..sync.barrier_over_hosts import BarrierOverHosts
from ..sync.control_block import ControlBlock
from ..sync.fetching import Fetcher
from ..sync.host_relay import HostRelay, LeaderRelay, RootRelay
from ..sync.hosts import Hosts
from ..sync.link import Link
from ..sync.semaphore import WaitPolicy
from ..trace import point
from ..transports.base import Key, Pending, Transport
from ..transports.shared_memory import SharedMemoryTransport
from .command import Answer, Command, Envelope
from .deposits import Deposits
from .failures import encode
from .news import learn
from .registry import FunctionEntry, Origin, Registry, Replicas, SharedEntry

MAX_TRIED = 16  #: Maximum number of steps that can be undone; the values from before each step are kept in memory.


class RankContext:
    """One rank's state in a session.

    ``pool`` is this rank's memory; ``pools`` maps the memory of all ranks. ``replicas`` builds the registry's
    entries, on the master from the program's objects and on other ranks from received data. ``leading`` is the
    `HostRelay` of a rank that leads a host.

    The keys of three tables are the numbers of a function and of its plan, collective or argument: ``plans`` (data that
    many calls share), ``bytes_inside`` (bytes reduced in the last call), ``row_buffers`` (memory for rows of a batch).
    The keys of three other tables are the numbers of variables: ``started`` (values copied for a pending
    ``all_reduce(wait=False)``), ``begun`` (states of `Transport.begin`), ``errors`` (for error feedback).

    ``results`` keeps alive memory that the master may read until the next command. ``promises`` is `RankEnd.promise` on
    ranks other than the root, if there are several hosts or dead ranks are replaced.
    """

    def __init__(self, barrier: Barrier, pool: Pool, pools: PoolMap, transport: Transport, registry: Registry) -> None:
        self.rank, self.root, self.size = barrier.rank, barrier.root, barrier.block.size
        self.barrier, self.pool, self.pools, self.transport = barrier, pool, pools, transport
        self.is_over_hosts = barrier.block.bridge is not None
        self.registry = registry
        self.shareds: Dict[int, SharedEntry] = registry.shareds
        self.functions: Dict[int, FunctionEntry] = registry.functions
        self.replicas: Optional[Replicas] = None
        self.plans: Dict[Tuple[int, int], Any] = {}
        self.row_buffers: Dict[Tuple[int, int], np.ndarray[Any, Any]] = {}
        self.bytes_inside: Dict[Tuple[int, int], int] = {}
        self.started: Dict[int, Any] = {}
        self.begun: Dict[int, Any] = {}
        self.errors: Dict[int, Any] = {}
        self.results: Any = None
        self.stopped = False
        self.promises: Optional[Callable[[int, bytes], None]] = None
        self.deposits: Optional[Deposits] = None
        self.leading: Optional[HostRelay] = None
        self._changes: Sequence[Callable[[], object]] = ()
        self._commitment: Optional[int] = None
        self._promised = 0
        self._nothing = encode(Answer(self.rank))
        self._tried: List[Tuple[int, Callable[[], object]]] = []

    @classmethod
    def create(
        cls,
        rank: int,
        root: int,
        block: ControlBlock,
        pool: Pool,
        pools: Mapping[int, Union[int, Pool]],
        watch: Callable[[], object],
        policy: WaitPolicy,
        hosts: Optional[Hosts] = None,
        watch_alone: Optional[Callable[[], object]] = None,
        links: Sequence[Link] = (),
    ) -> RankContext:
        """Create a rank's state, for the master and for ranks in processes or threads.

        ``pools`` includes shadows (`sync.fetching`) of other hosts' pools. ``watch`` is called at barriers, and raises
        if the barrier cannot complete. ``watch_alone`` (by default ``watch``) is called while other ranks may have
        finished the command: see `Barrier`. ``links`` are the root's links, or a leader's only link.
        """
        known = PoolMap()
        for ident, each in pools.items():
            known.add(ident, each)
        leading, registry, fetcher = None, Registry(), None
        barrier = Barrier(block, rank, root, watch, policy, watch_alone)
        if hosts is not None and links:
            leading = (RootRelay if rank == root else LeaderRelay)(rank, hosts, block, pool, known, links)
            barrier = BarrierOverHosts(leading, root, watch, policy, watch_alone)
        if hosts is not None:
            fetcher = Fetcher(barrier, pool, watch_alone or watch)
            known.reach(filter(hosts.is_far, pools), fetcher.fetch, fetcher.check_room, hosts.own > 0)
        borrowed = functools.partial(memory_in_cells, registry)
        transport = SharedMemoryTransport(barrier, pool, known, borrowed, hosts, fetcher)
        context = cls(barrier, pool, known, transport, registry)
        context.leading = leading
        return context

    def __repr__(self) -> str:
        return f"RankContext(rank={self.rank} of {self.size}, root={self.root}, {self.registry})"

    @point("command")
    def execute(self, envelope: Envelope) -> Answer:
        """Run the command of an envelope on this rank, and never raise an exception.

        Every exception, even KeyboardInterrupt and SystemExit, becomes part of the answer and releases waiting ranks.
        """
        self.results = None
        if self.deposits is not None:
            self.deposits.pending = {}
        try:
            if self.transport.prepare_thread is not None:
                self.transport.prepare_thread()
            if envelope.forget:
                self.forget(envelope.forget)
            begun = self.transport.traffic.begin() if envelope.command.is_counted else None
            if envelope.enclosed:
                self.transport.traffic.arrive(self.pools.receive(envelope.enclosed))
            if envelope.news and self.rank != self.root:
                learn(self, envelope.news)
            if begun is None:
                return Answer(self.rank, envelope.command.run(self))
            result = envelope.command.run(self)
            self.transport.traffic.end(envelope.command.title, begun)
            return Answer(self.rank, result)
        except Aborted:
            self.abort()
            return Answer(self.rank, aborted=True)
        except BaseException as error:
            self.abort()
            return Answer(self.rank, error=error)
        finally:
            if self._commitment is not None or self._tried or self.deposits is not None and self.deposits.has_begun:
                self.settle()
            if self.is_over_hosts:
                self.pools.drop_taken()

    def abort(self) -> None:
        """Abort the command in progress, which releases the ranks that wait at its barriers."""
        self.barrier.abort()

    def described(self, command: Command) -> str:
        details = command.details(self)
        return f"{command.title} {details}" if details else command.title

    # -- the values of shared variables --------------------------------------------------------------------------

    def bind(self, numbers: Sequence[int]) -> Tuple[List[Key], List[Any]]:
        """Return the transport's keys for variables, and this rank's values in the transport's memory.

        The storage then refers to that memory, so later in-place updates need no copy. Borrowed values are not moved.
        """
        keys, values = [], []
        for number in numbers:
            entry = self.shareds[number]
            keys.append(entry.key)
            values.append(entry.cell[0])
        bound = self.transport.bind(keys, values)
        for number, value, array in zip(numbers, values, bound):
            if array is not value:
                self.shareds[number].set(array, Origin.MOVED)
        return keys, bound

    def name_of(self, numbers: Sequence[int]) -> Callable[[int], str]:
        """Return a function that maps a position in ``numbers`` to the variable's name, for messages."""
        return lambda i: self.shareds[numbers[i]].label(f"shared_vars[{i}]")

    # -- commits -------------------------------------------------------------------------------------------------

    def commit_values(
        self, numbers: Sequence[int], results: Pending, *changes: Callable[[], object], same: bool = False
    ) -> None:
        """Commit the results of a collective as values of variables, on all ranks or on none; this ends the command.

        A result of None leaves this rank's value unchanged; with ``same`` all ranks have the same results.
        """
        if self.promises is not None and self.deposits is None:
            self.answer_if_committed(None)
        self.commit_entries(list(map(self.shareds.__getitem__, numbers)), results, *changes, same=same)

    def commit_entries(
        self, entries: Sequence[SharedEntry], results: Pending, *changes: Callable[[], object], same: bool = False
    ) -> None:
        """Commit results as `commit_values` does, even for entries that are not in the registry yet."""
        for i, entry in enumerate(entries):
            if entry.on_device:
                results.bring(i, entry.engine.to_device, entry.reference())
        if self.deposits is not None:
            self.deposits.note(entries, results.release())
            changes = (*changes, self.deposits.apply)
        origin = Origin.COMMON if same else Origin.OWN

        def change() -> None:
            for entry, result in zip(entries, results.release()):
                if result is not None:
                    self.transport.swap_in(entry.key, result)
                    entry.set(result, origin)
                else:
                    entry.origin = origin

        self.commit(change, *changes)

    @point("commit")
    def commit(self, *changes: Callable[[], object], label: Optional[str] = None) -> None:
        """Make changes on all ranks or on none, at the last barrier of a command that changes values.

        Before this barrier, a rank prepares new values next to the current values. ``changes`` only make the new values
        current: they must not fail, and may be called twice if the master is interrupted. If ranks may differ in the
        number of their collectives, ``label`` names this commit, and `Transport.agree` compares the labels.
        """
        if self.deposits is not None and label is None and self._promised <= self.barrier.current:
            self.answer_if_committed(None)
        self._changes, self._commitment = changes, self.barrier.current + 1
        if label is None:
            self.barrier.wait()
        else:
            try:
                self.transport.agree(label)
            except SynkhronosError:  # all ranks have arrived, but not all of them at this commit
                self._commitment = None
                raise
        self.settle()

    def begin_changes(self, numbers: Sequence[int], keeps: bool = False) -> None:
        """In a session that replaces dead ranks, save variables before a function changes them: see `Deposits`."""
        assert self.deposits is not None
        self.deposits.begin([self.shareds[number] for number in numbers], keeps)

    def commit_changes(self, numbers: Sequence[int], result: Any) -> None:
        """Commit a function's changes on all ranks or on none; ``result`` is the return value of the command."""
        assert self.deposits is not None
        self.deposits.stage([self.shareds[number] for number in numbers])
        self.answer_if_committed(result)
        self.commit(self.deposits.apply)

    def answer_if_committed(self, result: Any) -> None:
        """Promise the command's result; it becomes valid if the next barrier, a commit without a label, completes."""
        number = self.barrier.current + 1
        if self.promises is not None and not self.barrier.is_complete(number):  # otherwise promised early
            told = None if self.deposits is None else self.deposits.pending
            self._promised = number
            self.promises(number, encode(Answer(self.rank, result, deposits=told)))

    def answer_early_if_committed(self, result: Any) -> None:
        """Promise the result before a command's first barrier, if nothing can fail between this barrier and the commit.

        If all ranks do so, the root decides both barriers at its own commit, which saves one network round trip.
        """
        number = self.barrier.current + 2
        if self.promises is not None:
            self.promises(number, self._nothing if result is None else encode(Answer(self.rank, result)))
        else:  # the root
            self.barrier.block.promised[self.rank] = number

    @point("commit")
    def settle(self) -> None:
        """Apply the changes of a commit if it is complete, else discard them; undo unconfirmed tentative changes."""
        if self._commitment is not None:
            if self.barrier.is_complete(self._commitment):
                for change in self._changes:
                    change()
            self._commitment, self._changes = None, ()
        for number, undo in reversed(self._tried):
            if not self.barrier.is_complete(number):
                undo()
        self._tried = []
        if self.deposits is not None and self.deposits.has_begun:
            self.deposits.restore()

    @point("commit")
    def apply_tentatively(self, undo: Callable[[], object], *changes: Callable[[], object], label: str) -> None:
        """Make changes now, and undo them unless all ranks reach the next barrier: a commit without its own barrier.

        Used for steps inside one command, where ranks synchronize anyway; the last step must end with `commit`.
        ``undo`` must not fail, and may be called when only some of the changes, or none, have been made.
        """
        self._tried.append((self.barrier.current + 1, undo))  # first, because Ctrl-C may arrive during the changes
        for change in changes:
            change()
        if len(self._tried) >= MAX_TRIED:  # a condition may skip the collectives of many steps
            self.commit(label=label)

    def drop_undo_log(self) -> None:
        """Drop the undo log of changes that a later barrier has confirmed, to free the memory of old values."""
        if self._tried and self.barrier.is_complete(self._tried[-1][0]):
            self._tried = []

    @point("command")
    def forget(self, things: Iterable[Tuple[str, int]]) -> None:
        """Drop functions and shared variables, identified by ``(kind, number)``, that the program has dropped."""
        for thing in things:
            kind, number = thing
            if kind == "function":
                for table in (self.plans, self.row_buffers, self.bytes_inside):
                    for place in [place for place in table if place[0] == number]:
                        del table[place]
            else:
                if self.deposits is not None:
                    self.deposits.forget(number)
                self.started.pop(number, None)
                self.begun.pop(number, None)
                self.errors.pop(number, None)
            self.registry.forget(thing)
            self.transport.forget(thing)
            if self.replicas is not None:
                self.replicas.forget(thing)
        if self.rank != self.root:
            gc.collect()  # graphs have reference cycles, and a rank may allocate too little to trigger collection


def memory_in_cells(registry: Registry) -> Set[int]:
    """Return the ids of the base arrays of all variables' values.

    All variables count, because a function may move an array from one to another, for example by swapping them.
    """
    return {id(getattr(entry.cell[0], "base", None)) for entry in registry.shareds.values()}
