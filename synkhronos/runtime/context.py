"""The state of one rank, which every command uses."""

from __future__ import annotations

import gc
from functools import partial
from typing import (
    Any,
    Callable,
    ClassVar,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
)

from ..errors import Aborted
from ..memory.attach import PoolMap
from ..memory.pool import Pool
from ..sync.barrier import Barrier
from ..sync.barrier_over_hosts import BarrierOverHosts
from ..sync.control_block import ControlBlock
from ..sync.fetching import Fetcher
from ..sync.host_relay import NO_RELAY, LeaderRelay, Relay, RootRelay
from ..sync.hosts import Hosts
from ..sync.link import Link
from ..sync.semaphore import WaitPolicy
from ..trace import point
from ..transports.base import Key, Transport
from ..transports.over_hosts import HostsTransport
from ..transports.shared_memory import SharedMemoryTransport
from .command import Answer, Command, Envelope
from .news import learn
from .registry import Origin, Registry, SharedEntry
from .transaction import Transaction

K = TypeVar("K", bound="Kept")


class Kept:
    """The state that a feature keeps on each rank between commands, in dicts: see `RankContext.kept`.

    Keys are the numbers of functions or shared variables (``of``), or tuples that begin with them. ``loss`` describes,
    as a clause, what the death of a rank would lose.
    """

    of: ClassVar[str] = "shared"
    loss: ClassVar[str] = ""

    @staticmethod
    def drop(table: Dict[Any, Any], numbers: Collection[int]) -> None:
        """Drop the entries of functions or shared variables."""
        for key in [key for key in table if (key[0] if type(key) is tuple else key) in numbers]:
            del table[key]

    def saved(self) -> Any:
        """Return what the master sends to a rank that replaces a dead one."""

    def restore(self, saved: Any, context: RankContext) -> None:
        """Restore the state on a replacement from what `saved` returned."""


class RankContext:
    """One rank's state in a session.

    ``pool`` is this rank's memory; ``pools`` maps the memory of all ranks. ``registry`` has the rank's functions and
    variables, and ``transaction`` changes their values. ``leading`` is the `Relay` of this rank.
    """

    def __init__(self, barrier: Barrier, pool: Pool, pools: PoolMap, transport: Transport, registry: Registry) -> None:
        self.rank, self.root, self.size = barrier.rank, barrier.root, barrier.block.size
        self.barrier, self.pool, self.pools, self.registry = barrier, pool, pools, registry
        self.transaction = Transaction(self.rank, barrier, transport)
        self.transport = transport
        self.leading: Relay = NO_RELAY
        self.stopped = False
        self._kept: Dict[Type[Kept], Kept] = {}

    @classmethod
    def create(
        cls,
        rank: int,
        root: int,
        block: ControlBlock,
        pool: Pool,
        pools: Mapping[int, Any],
        watch: Callable[[], object],
        policy: WaitPolicy,
        hosts: Hosts,
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
        registry, leading = Registry(), NO_RELAY
        barrier, borrowed = Barrier(block, rank, root, watch, policy, watch_alone), partial(memory_in_cells, registry)
        if not hosts.are_several:
            return cls(barrier, pool, known, SharedMemoryTransport(barrier, pool, known, borrowed), registry)
        if links:
            leading = (RootRelay if rank == root else LeaderRelay)(rank, hosts, block, pool, known, links)
            barrier = BarrierOverHosts(leading, root, watch, policy, watch_alone)
        fetcher = Fetcher(barrier, pool, watch_alone or watch)
        known.reach(filter(hosts.is_far, pools), fetcher, hosts.own > 0)
        context = cls(barrier, pool, known, HostsTransport(hosts, fetcher, barrier, pool, known, borrowed), registry)
        context.leading = leading
        return context

    def __repr__(self) -> str:
        return f"RankContext(rank={self.rank} of {self.size}, root={self.root}, {self.registry})"

    @point("command")
    def execute(self, envelope: Envelope) -> Answer:
        """Run the command of an envelope on this rank, and never raise an exception.

        Every exception, even KeyboardInterrupt and SystemExit, becomes part of the answer and releases waiting ranks.
        """
        self.transaction.results = None
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
            if self.transaction.is_open:
                self.transaction.settle()
            self.pools.taken.clear()

    def abort(self) -> None:
        """Abort the command in progress, which releases the ranks that wait at its barriers."""
        self.barrier.abort()

    def described(self, command: Command) -> str:
        details = command.details(self)
        return f"{command.title} {details}" if details else command.title

    # -- what commands use -----------------------------------------------------------------------------------------

    def use(self, transport: Transport) -> None:
        """Use another transport from now on."""
        self.transport = self.transaction.transport = transport

    def kept(self, kind: Type[K]) -> K:
        """Return this rank's state of a feature; it is created at the first use."""
        found = self._kept.get(kind)
        if found is None:
            found = self._kept[kind] = kind()
        return found  # type: ignore[return-value]  # each class maps to its own instance

    def all_kept(self) -> List[Kept]:
        """Return the states of all features that are not empty."""
        return [kept for kept in self._kept.values() if any(vars(kept).values())]

    def entries(self, numbers: Iterable[int]) -> List[SharedEntry]:
        return list(map(self.registry.shareds.__getitem__, numbers))

    def bind(self, numbers: Sequence[int], is_read: bool = True) -> Tuple[List[Key], List[Any]]:
        """Return the transport's keys for variables, and this rank's values in the transport's memory.

        The storage then refers to that memory, so later in-place updates need no copy. Borrowed values are not moved.
        Unless ``is_read`` by other ranks, values stay where they are.
        """
        keys, values = [], []
        for number in numbers:
            entry = self.registry.shareds[number]
            keys.append(entry.key)
            values.append(entry.cell[0])
        bound = self.transport.bind(keys, values) if is_read else values
        for number, value, array in zip(numbers, values, bound):
            if array is not value:
                self.registry.shareds[number].set(array, Origin.MOVED)
        return keys, bound

    def name_of(self, numbers: Sequence[int], i: int) -> str:
        """Return the name of the i-th of these variables, for messages."""
        return self.registry.shareds[numbers[i]].label(f"shared_vars[{i}]")

    @point("command")
    def forget(self, things: Iterable[Tuple[str, int]]) -> None:
        """Drop functions and shared variables, identified by ``(kind, number)``, that the program has dropped.

        Each table is searched once for all of them, because a program may drop thousands at a time.
        """
        things = set(things)
        numbers: Dict[str, Set[int]] = {}
        for kind, number in things:
            numbers.setdefault(kind, set()).add(number)
        if self.transaction.deposits is not None:
            self.transaction.deposits.forget(numbers.get("shared", ()))
        for kept in self._kept.values():
            for table in vars(kept).values() if kept.of in numbers else ():
                kept.drop(table, numbers[kept.of])
        for thing in things:
            self.registry.forget(thing)
        self.transport.forget(things)
        if self.rank != self.root:
            gc.collect()  # graphs have reference cycles, and a rank may allocate too little to trigger collection


def memory_in_cells(registry: Registry) -> Set[int]:
    """Return the ids of the base arrays of all variables' values.

    All variables count, because a function may move an array from one to another, for example by swapping them.
    """
    return {id(getattr(entry.cell[0], "base", None)) for entry in registry.shareds.values()}
