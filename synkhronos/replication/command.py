"""Commands that send functions and shared variables to all ranks.

All ranks run the same code on registries of the same type. `Replicas` hides the origin of the entries: the master
registers the program's own objects, and all other ranks build replicas. ::

    rank     values of arrays               other values          functions
    -----    ---------------------------    ------------------    --------------------
    root     its own, copied to the pool    its own, or jumped    the program's, weakly
    other    transport.broadcast            unpickled, jumped     unpickled
                               \\                  |                   /
                                 one commit: on all ranks or on none
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..host import machine
from ..host.heap import return_freed_memory
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.registry import FunctionEntry, Origin, Replicas, SharedEntry
from ..trace import point
from ..transports.base import Pending
from ..transports.common import SPARES

#: Minimum size in bytes of pickled functions; loading them frees so much memory that it is returned to the kernel.
TRIM_FROM_BYTES = 1 << 16


class SharedItem(NamedTuple):
    """A shared variable to be sent to the ranks.

    ``blueprint`` is the pickled input of `Engine.build`. ``value`` is pickled, or None if the transport sends it or if
    variable number ``storage_of`` has the same storage. Rank ``begins`` starts at the random state ``value``, and the
    following ranks (cyclically) start 1, 2, ... long jumps further on.
    """

    number: int
    engine: Any
    blueprint: bytes
    value: Optional[bytes]
    on_device: bool = False
    storage_of: Optional[int] = None
    begins: Optional[int] = None

    @property
    def is_dense(self) -> bool:
        """Whether the transport sends the value."""
        return self.value is None and self.storage_of is None


class FunctionItem(NamedTuple):
    """Functions of one engine to be sent to the ranks, with their numbers, in one pickle."""

    engine: Any
    numbers: List[int]
    pickled: bytes


class ImportPaths(NamedTuple):
    """The program's module search path and working directory, which ranks adopt."""

    path: List[str]
    directory: str

    def enter(self) -> None:
        if sys.path != self.path:
            sys.path[:] = self.path
        if self.directory and machine.working_directory() != self.directory:
            os.chdir(self.directory)


class Distribute(Command):
    """Send functions and their shared variables to the ranks; the functions update variables ``apart`` on each rank."""

    title = "distribute"
    counts = "modules and functions ready"

    def __init__(
        self, shareds: Sequence[SharedItem], functions: Sequence[FunctionItem], apart: Sequence[int] = ()
    ) -> None:
        self.shareds, self.items, self.apart = list(shareds), list(functions), list(apart)
        self.place = ImportPaths(list(sys.path), machine.working_directory())

    def details(self, context: RankContext) -> str:
        return f"functions: {sum(len(item.numbers) for item in self.items)}, variables: {len(self.shareds)}"

    def run(self, context: RankContext) -> None:
        self.place.enter()
        registry = context.registry
        if registry.replicas is None:
            registry.replicas = ReplicaBuilder(context)
        source, held, others = registry.replicas, dict(registry.shareds), []
        for item in self.shareds:
            held[item.number], value = source.shared(item, held, context.rank, context.size)
            if item.value is not None:
                others.append((held[item.number], value, Origin.COMMON if item.begins is None else Origin.OWN))
        dense = [held[item.number] for item in self.shareds if item.is_dense]
        apart, common = [held[number] for number in self.apart], context.transport.common
        for entry in apart:
            if entry.number not in registry.shareds:  # (if the command fails, its new variables are forgotten)
                common.keep_apart(entry.key)
        for entry in apart:
            if entry.common is entry.cell[0] is not None:
                others.append((entry, entry.cell[0].copy(), Origin.MOVED))
        arrays = context.transport.broadcast(
            [entry.key for entry in dense], [source.value(entry.number) for entry in dense], context.root
        )
        functions: List[FunctionEntry] = []
        for some in self.items:
            functions += source.functions(some.engine, some.numbers, some.pickled, held, context.pools)

        if context.rank == context.root:
            keep_borrowed(dense, arrays)

        def add() -> None:
            registry.add([held[item.number] for item in self.shareds], functions)
            for entry in apart:
                common.keep_apart(entry.key)
                entry.common = None

        context.transaction.commit_values(dense, arrays, add, others=others, same=True)


def keep_borrowed(entries: Sequence[SharedEntry], arrays: Pending) -> None:
    """On the master, restore the program's borrowed arrays in place of their copies in shared memory."""
    for entry, array in zip(entries, arrays):
        if entry.borrowed is not None:
            entry.set(array, Origin.MOVED)


class Rejoin(Command):
    """Restore functions, variables and values on replaced ranks; on all other ranks, undo unfinished changes.

    ``held`` maps a replaced rank to the saved values of its variables; ``kept`` are the states of features, and
    ``common`` is the record of common memory.
    """

    title = "restoration of a replaced rank"
    repeats = False

    def __init__(
        self,
        shareds: Sequence[SharedItem],
        functions: Sequence[FunctionItem],
        held: Mapping[int, Mapping[int, Any]],
        kept: Mapping[Any, Any],
        common: Any,
        place: ImportPaths,
    ) -> None:
        self.shareds, self.items, self.held, self.kept = list(shareds), list(functions), held, kept
        self.common, self.place = common, place

    def run(self, context: RankContext) -> None:
        deposits, registry = context.transaction.deposits, context.registry
        assert deposits is not None
        deposits.restore(even_kept=True)
        # collectives in functions, and common memory, have state that all ranks create together
        context.transport.forget({("function",), SPARES})
        if context.rank not in self.held:
            return
        self.place.enter()
        common = context.transport.common
        common.restore(self.common, context.pool, context.pools)
        source = registry.replicas = ReplicaBuilder(context)
        found: Dict[int, SharedEntry] = {}
        for item in self.shareds:
            value = None
            if item.storage_of is None:
                deposit = self.held[context.rank][item.number]
                value = deposits.restored(item.number, deposit, item.on_device)
            entry, _ = source.shared(item, found, context.rank, context.size, value)
            entry.common = None if common.placed(entry.key, value) is None else value
            found[item.number] = entry
        context.pool.free_unadopted()
        registry.add(found.values(), ())
        functions: List[FunctionEntry] = []
        for some in self.items:
            functions += source.functions(some.engine, some.numbers, some.pickled, found, context.pools)
        registry.add((), functions)
        for kind, saved in self.kept.items():
            context.kept(kind).restore(saved, context)


class ReplicaBuilder(Replicas):
    """Builder of the replicas on a rank other than the master."""

    def __init__(self, context: RankContext) -> None:
        self._rank, self._barrier = context.rank, context.barrier

    @point("replication")
    def shared(
        self, item: SharedItem, held: Mapping[int, SharedEntry], rank: int, size: int, value: Any = None
    ) -> Tuple[SharedEntry, Any]:
        engine, value = item.engine, value if item.value is None else pickle.loads(item.value)
        base = None if item.storage_of is None else held[item.storage_of].reference()
        replica = engine.build(pickle.loads(item.blueprint), value, base)
        if item.begins is not None:
            value = jumped_from(item.begins, engine, replica, value, rank, size)
        return SharedEntry(item.number, engine, lambda: replica, engine.storage(replica), item.on_device), value

    def value(self, number: int) -> Any:
        return None

    @point("replication")
    def functions(
        self, engine: Any, numbers: Sequence[int], pickled: bytes, held: Mapping[int, SharedEntry], pools: Any
    ) -> List[FunctionEntry]:
        variables: Dict[int, Any] = {number: entry.reference() for number, entry in held.items()}
        with self._counting(engine) as count:
            loaded = engine.loads(pickled, variables, pools.lasting)
            for compiled in loaded:
                engine.warm_up(compiled)
                count()
        if len(pickled) >= TRIM_FROM_BYTES:
            return_freed_memory()
        return [_owned(number, engine, compiled) for number, compiled in zip(numbers, loaded)]

    @contextmanager
    def _counting(self, engine: Any) -> Iterator[Callable[..., object]]:
        """Count loaded functions and modules, so the master can log progress if loading on another host is slow."""
        block, rank = self._barrier.block, self._rank
        # Ranks that are threads share the engine's only hook.
        watch = engine.watch_modules if threading.current_thread() is threading.main_thread() else bool

        def count(*_: object) -> None:
            block.steps[rank] += 1

        block.steps[rank] = block.undone[rank] = 0
        block.steps_command[rank] = self._barrier.command
        watch(count)
        try:
            yield count
        finally:
            watch(None)

    def forget(self, thing: Tuple[str, int]) -> None:
        pass  # the registry held the only reference


def _owned(number: int, engine: Any, compiled: Any) -> FunctionEntry:
    return FunctionEntry(number, engine, lambda: compiled)


def jumped_from(begins: int, engine: Any, shared: Any, state: Any, rank: int, size: int) -> Any:
    """Return a rank's initial state of a random stream that starts at ``state`` on rank ``begins``."""
    return engine.jumped(shared, state, (rank - begins) % size)
