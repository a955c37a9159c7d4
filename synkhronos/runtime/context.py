"""What one rank knows and holds: the second argument of every command."""

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
from ..sync.hosts import Hosts
from ..sync.leading import Leader, Leading, Root
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

#: Steps that can be undone, at most: what they have changed is kept for it.
MAX_TRIED = 16


class RankContext:
    """One rank's place in the session, and what it holds.

    Attributes
    ----------
    rank, size, root : int
        This rank, the number of ranks, and the rank of the master.
    barrier : Barrier
        At which ranks wait for each other.
    is_over_hosts : bool
        Whether some of them are on other hosts.
    pool : Pool
        The shared memory that this rank allocates; the others read it through their ``pools``.
    pools : PoolMap
        The shared memory of all ranks.
    transport : Transport
        How arrays move between ranks.
    registry : Registry
        The functions and shared variables that the ranks hold.
    replicas : Replicas, optional
        Makes the entries of the registry: on the master from what the program has, elsewhere from what was sent.
    plans : dict of (int, int) to object
        What calls of functions have in common, by the function's number and the plan's.
    bytes_inside : dict of (int, int) to int
        What each collective inside a function has reduced, the last time: by the function's number and its own.
    started : dict of int to array
        By the variable's number, the value that an ``all_reduce(wait=False)`` has found, until it is waited for.
    begun : dict of int to object
        Or by that of the first variable, what `Transport.begin` has begun with the values.
    errors : dict of int to array
        By the variable's number, what has been left out of its last value by ``all_reduce(exchange=, feedback=True)``.
    row_buffers : dict of (int, int) to array
        Reusable buffers for the rows of a batch, by the function's number and the argument's.
    results : object
        What the master may read of this rank's memory until the next command: kept alive so long.
    stopped : bool
        Whether the rank was told to end.
    promises : callable, optional
        `RankEnd.promise`, on ranks but the root if there are several hosts, or if dead ranks are replaced.
    deposits : Deposits, optional
        If dead ranks are replaced.
    leading : Leading, optional
        If this rank speaks for its host.
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
        self.leading: Optional[Leading] = None
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
        watch_hosts: Optional[Callable[[], object]] = None,
        links: Sequence[Link] = (),
    ) -> RankContext:
        """Assemble a rank's state: the one place that does it, for the master, for processes and for threads.

        Parameters
        ----------
        rank, root : int
        block : ControlBlock
        pool : Pool
            This rank's own memory.
        pools : dict of int to Pool or descriptor
            The memory of every rank, by the pools' idents.
        watch : callable
            Called while the rank waits at a barrier; raises if waiting has become pointless.
        policy : WaitPolicy
        hosts : Hosts, optional
            If the ranks are on several; then the pools of other hosts' ranks are shadows.
        watch_hosts : callable, optional
            Called instead while it waits for what it fetches from another host, or until another host takes what it
            is told: then others may be done with the command. By default ``watch``.
        links : sequence of Link
            If this rank speaks for its host: of the root those to all other hosts, of another one that to the root.
        """
        known = PoolMap()
        for ident, each in pools.items():
            known.add(ident, each)
        leading, barrier, registry, fetcher = None, Barrier(block, rank, root, watch, policy), Registry(), None
        if hosts is not None and links:
            leading = (Root if rank == root else Leader)(rank, hosts, block, pool, known, links)
            barrier = BarrierOverHosts(leading, root, watch, policy, watch_hosts or watch)
        if hosts is not None:
            fetcher = Fetcher(barrier, pool, watch_hosts or watch)
            known.reach(filter(hosts.is_far, pools), fetcher.fetch, fetcher.check_room, hosts.own > 0)
        borrowed = functools.partial(memory_in_cells, registry)
        transport = SharedMemoryTransport(barrier, pool, known, borrowed, hosts, fetcher)
        context = cls(barrier, pool, known, transport, registry)
        context.leading = leading
        return context

    def __repr__(self) -> str:
        return f"RankContext(rank={self.rank} of {self.size}, root={self.root}, {self.registry})"

    # -- commands ------------------------------------------------------------------------------------------------

    @point("command")
    def execute(self, envelope: Envelope) -> Answer:
        """Run what the envelope holds on this rank; never raises.

        Whatever goes wrong, KeyboardInterrupt and SystemExit included, is in the answer, and the peers that wait for
        this rank are freed.
        """
        self.results = None
        if self.deposits is not None:
            self.deposits.told = {}
        try:
            if envelope.forget:
                self.forget(envelope.forget)
            begun = self.transport.traffic.begin() if envelope.command.is_counted else None
            if envelope.enclosed:
                self.transport.traffic.arrive(self.pools.take(envelope.enclosed))
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
        """Free the peers that wait for this rank."""
        self.barrier.abort()

    def described(self, command: Command) -> str:
        """Return the command as a line of the log says it."""
        details = command.details(self)
        return f"{command.title} {details}" if details else command.title

    # -- the values of shared variables --------------------------------------------------------------------------

    def bind(self, numbers: Sequence[int]) -> Tuple[List[Key], List[Any]]:
        """Return the keys of variables for transports, and this rank's values, in the transport's memory.

        The storage of the variables refers to that memory from then on, so that what a function writes in place is
        there already the next time. What the program has borrowed stays where it is.
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
        """Return how messages name the i-th of the variables with these numbers."""
        return lambda i: self.shareds[numbers[i]].label(f"shared_vars[{i}]")

    # -- commits -------------------------------------------------------------------------------------------------

    def commit_values(
        self, numbers: Sequence[int], results: Pending, *changes: Callable[[], object], same: bool = False
    ) -> None:
        """Make the results of a collective the values of variables, on all ranks or on none: a command's last call.

        A result that is None leaves this rank's value as it is. For ``changes`` see `commit`; ``same`` says that all
        ranks have the same results.
        """
        if self.promises is not None and self.deposits is None:
            self.promise(None)
        self.commit_entries(list(map(self.shareds.__getitem__, numbers)), results, *changes, same=same)

    def commit_entries(
        self, entries: Sequence[SharedEntry], results: Pending, *changes: Callable[[], object], same: bool = False
    ) -> None:
        """Do the same for variables that need not be in the registry yet."""
        for i, entry in enumerate(entries):
            if entry.on_device:
                results.bring(i, entry.engine.to_device, entry.reference())
        if self.deposits is not None:
            self.deposits.note(entries, results.release())
            changes = (*changes, self.deposits.accept)
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
        """Commit atomically: make the changes on all ranks or on none.

        This is the last barrier of a command that changes values. Up to it a rank prepares what it will change,
        beside the current values; the changes themselves only make that current.

        Parameters
        ----------
        changes : callables
            Must not fail, and may be called twice (if the master is interrupted in the middle).
        label : str, optional
            What ends here, if functions have decided how many collectives there were before: `Transport.agree` checks
            that all ranks have come to the same end.
        """
        if self.deposits is not None and label is None and self._promised <= self.barrier.current:
            self.promise(None)
        self._changes, self._commitment = changes, self.barrier.current + 1
        if label is None:
            self.barrier.wait()
        else:
            try:
                self.transport.agree(label)
            except SynkhronosError:  # all ranks have arrived, but not here
                self._commitment = None
                raise
        self.settle()

    def begin_changes(self, numbers: Sequence[int], keeps: bool = False) -> None:
        """Begin to change variables by a function, if dead ranks are replaced: see `Deposits.begin`."""
        assert self.deposits is not None
        self.deposits.begin([self.shareds[number] for number in numbers], keeps)

    def commit_changes(self, numbers: Sequence[int], result: Any) -> None:
        """Commit what a function has changed, on all ranks or on none; ``result`` is what the command returns."""
        assert self.deposits is not None
        self.deposits.stage([self.shareds[number] for number in numbers])
        self.promise(result)
        self.commit(self.deposits.accept)

    def promise(self, result: Any) -> None:
        """Say what the command will return if the next barrier, a commit without a label, is complete."""
        number = self.barrier.current + 1
        if self.promises is not None and not self.barrier.is_complete(number):  # else it was promised early
            told = None if self.deposits is None else self.deposits.told
            self._promised = number
            self.promises(number, encode(Answer(self.rank, result, deposits=told)))

    def promise_early(self, result: Any) -> None:
        """Say so at the first barrier of a command, of which the commit is the second, if nothing can fail between.

        If all ranks do, the root decides both barriers at once, so that they cross the network once. It does so when
        it has come to the commit itself.
        """
        number = self.barrier.current + 2
        if self.promises is not None:
            self.promises(number, self._nothing if result is None else encode(Answer(self.rank, result)))
        else:  # the root
            self.barrier.block.promised[self.rank] = number

    @point("commit")
    def settle(self) -> None:
        """Make the changes of a commit that was decided, and forget those of one that was not; as for `try_out`."""
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
    def try_out(self, undo: Callable[[], object], *changes: Callable[[], object], label: str) -> None:
        """Make changes now, and undo them if not all ranks come to the next barrier: a commit without one of its own.

        For steps of one command in which ranks meet anyway. It ends with a `commit`.

        Parameters
        ----------
        undo : callable
            Must not fail, and may be called when some of the changes, or none, have been made.
        changes, label
            As in `commit`.
        """
        self._tried.append((self.barrier.current + 1, undo))  # first: Ctrl-C may come before the changes are made
        for change in changes:
            change()
        if len(self._tried) >= MAX_TRIED:  # a condition may leave out the collectives of step after step
            self.commit(label=label)

    def forget_tried(self) -> None:
        """Forget how to undo changes after which all ranks have come to a barrier: the values before need memory."""
        if self._tried and self.barrier.is_complete(self._tried[-1][0]):
            self._tried = []

    # -- what the program has dropped ----------------------------------------------------------------------------

    @point("command")
    def forget(self, things: Iterable[Tuple[str, int]]) -> None:
        """Drop functions and shared variables, ``(kind, number)`` each, that the program has dropped."""
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
            gc.collect()  # graphs are cycles, and a rank may make too little garbage to have them collected by itself


def memory_in_cells(registry: Registry) -> Set[int]:
    """Return the ids of the memory that variables hold now: of every array the one of which it is a view.

    A function may have put one variable's array into another's storage, by an update that swaps them for example.
    """
    return {id(getattr(entry.cell[0], "base", None)) for entry in registry.shareds.values()}
