"""Collectives through shared memory: every rank reads the others' arrays where they lie.

Each key has a *slot* in the memory of each rank: its *current* array, to which the variable's storage normally refers,
and a *spare* one into which results are written::

              rank 0's pool          rank 1's pool
    current   [ x_0         ]        [ x_1         ]     read by both
    spare     [ 0 0 0 | 1 1 ]        [ 0 0 0 | 1 1 ]     each rank writes its share into both

Every rank works out its share of the elements, for all ranks: it reads n current arrays and writes into n spare ones.
So all ranks hold the same bits, no element is computed twice, and the current arrays stay as they are until every rank
has finished; the commit lets current and spare change places.

If the ranks are on several hosts, a rank reads what lies on another one once it has been fetched from there, and writes
into the memory of its own host's ranks alone: each host works out all elements that its ranks take.
"""

from __future__ import annotations

import math
import pickle
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import numpy as np

from ..errors import ArgumentValueError, prefixed
from ..kernels.copy import copy_into, join_into
from ..kernels.reduce import Portion
from ..memory.attach import PoolMap
from ..memory.handles import Handle
from ..memory.pool import Pool
from ..reductions import ReduceOp, reduce_outputs
from ..sync.barrier import Barrier
from ..sync.fetching import Fetcher
from ..sync.hosts import Hosts
from ..trace import point
from .base import Key, Mix, NameOf, Pending, Traffic, Transport
from .layouts import Layout, Layouts, Placed, are_few
from .over_hosts import TAKEN_BYTES, Begun, OverHosts
from .value_buffers import ValueBuffers, kinds_of, participants

#: The largest array, in bytes, that the root reduces alone: sharing the work would take another barrier.
ROOT_REDUCES_BELOW_BYTES = 1 << 16


class Slot:
    """The current and the spare array of one key on one rank; and another one with what the current holds, if any."""

    __slots__ = ("current", "spare", "twin")

    def __init__(self) -> None:
        self.current: Optional[Placed] = None
        self.spare: Optional[Placed] = None
        self.twin: Any = None


class SharedMemoryTransport(Transport):
    """Collectives over the pools of the ranks; see the module.

    Parameters
    ----------
    barrier : Barrier
    pool : Pool
        This rank's memory.
    pools : PoolMap
        All ranks' memory.
    borrowed : callable
        Returns the ids of the memory to which the storage of any variable refers now. A variable may have *borrowed*
        an array of another one's slot (an update can swap two variables): then it is left to the borrower, and not
        written to.
    hosts : Hosts, optional
        If there are several.
    fetcher : Fetcher, optional
        If there are several.
    """

    def __init__(
        self,
        barrier: Barrier,
        pool: Pool,
        pools: PoolMap,
        borrowed: Callable[[], Set[int]] = set,
        hosts: Optional[Hosts] = None,
        fetcher: Optional[Fetcher] = None,
    ) -> None:
        self.barrier, self.pool, self.pools, self._borrowed = barrier, pool, pools, borrowed
        self.rank, self.root, self.size = barrier.rank, barrier.root, barrier.block.size
        self.everybody = range(self.size)
        #: The ranks of this host, in whose memory this one can write, and of others.
        self.near: Sequence[int] = self.everybody if hosts is None else hosts.near
        self.far: Sequence[int] = () if hosts is None else hosts.far
        self._over_hosts: Optional[OverHosts] = None
        if hosts is not None and hosts.places is not None and fetcher is not None:
            self._over_hosts = OverHosts(hosts, barrier.rank, pool, fetcher)
        self._slots: Dict[Key, Slot] = {}
        self._values: Dict[Key, ValueBuffers] = {}
        self._replaced: Optional[ValueBuffers] = None
        is_first = barrier.rank == self.near[0]
        self.traffic = Traffic() if fetcher is None else Traffic(lambda: fetcher.received, is_first)
        self._layouts = Layouts(pools, self.far, self.traffic.arrive)

    # -- the slots of this rank ----------------------------------------------------------------------------------

    @point("transport")
    def bind(self, keys: Sequence[Key], values: Sequence[np.ndarray[Any, Any]]) -> List[np.ndarray[Any, Any]]:
        bound: List[np.ndarray[Any, Any]] = []
        borrowed: Optional[Set[int]] = None
        for key, value in zip(keys, values):
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = Slot()
            current = slot.current
            if current is None or current.array is not value:
                if current is None or not (slot.twin is value or _is_same_memory(value, current.array)):
                    borrowed = self._borrowed() if borrowed is None else borrowed
                    current = slot.current = self._fitting(current, value.shape, value.dtype, borrowed)
                    copy_into(current.array, value)
                    slot.twin = None
            bound.append(current.array)
        return bound

    def copies(self, keys: Sequence[Key], values: Sequence[np.ndarray[Any, Any]]) -> List[np.ndarray[Any, Any]]:
        return self.bind(keys, values)

    def allocate(self, key: Key, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return self._spares([key], [(shape, dtype)])[0].array

    @point("transport")
    def _spares(self, keys: Sequence[Key], kinds: Sequence[Tuple[Tuple[int, ...], np.dtype[Any]]]) -> List[Placed]:
        """Return the spare arrays of the keys, with these shapes and dtypes."""
        borrowed, found = self._borrowed(), []
        for key, (shape, dtype) in zip(keys, kinds):
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = Slot()
            slot.spare = self._fitting(slot.spare, shape, dtype, borrowed)
            found.append(slot.spare)
        return found

    def _fitting(
        self, placed: Optional[Placed], shape: Tuple[int, ...], dtype: np.dtype[Any], borrowed: Set[int]
    ) -> Placed:
        """Return the array if it can be overwritten with a value of that shape and dtype, else another one."""
        if placed is not None and placed.array.shape == shape and placed.array.dtype == dtype:
            if id(placed.array.base) not in borrowed:
                return placed
        array = self.pool.allocate(shape, dtype)
        return Placed.at(array, self.pool.handle(array))

    @point("transport")
    def swap_in(self, key: Key, result: np.ndarray[Any, Any]) -> None:
        slot = self._slots.get(key)
        if slot is not None and slot.spare is not None and result is slot.spare.array:
            before, after = slot.current, slot.spare
            slot.spare = None  # first: an array must never be both, wherever this is interrupted
            slot.current = after
            slot.spare = before
            slot.twin = None

    def current(self, key: Key) -> Optional[np.ndarray[Any, Any]]:
        """Return the current array of a key, None if there is none. Local."""
        slot = self._slots.get(key)
        return None if slot is None or slot.current is None else slot.current.array

    def keeps(self, key: Key, array: Any) -> bool:
        return self.current(key) is array

    def take_over(self, key: Key, array: np.ndarray[Any, Any]) -> None:
        """Make an array in this rank's pool the current one of a key. Local."""
        slot = self._slots[key] = Slot()
        slot.current = Placed.at(array, self.pool.handle(array))

    def pair(self, key: Key, twin: np.ndarray[Any, Any]) -> None:
        """Note that an array holds what the current one of the key does: `bind` need not copy it. Local."""
        self._slots[key].twin = twin

    def forget(self, prefix: Tuple[Any, ...]) -> None:
        tables: Sequence[Dict[Key, Any]] = (self._slots, self._values)
        for table in tables:
            for key in [key for key in table if key[: len(prefix)] == prefix]:
                del table[key]
        if self._over_hosts is not None:
            self._over_hosts.forget(prefix)

    # -- telling each other --------------------------------------------------------------------------------------

    def exchange(self, notice: Any) -> List[Any]:
        notices = self.barrier.exchange(pickle.dumps(notice, pickle.HIGHEST_PROTOCOL), self.pool, self.pools)
        return [notice if rank == self.rank else pickle.loads(each) for rank, each in enumerate(notices)]

    @point("transport")
    def _layout(self, placed: Sequence[Optional[Placed]], label: Optional[str] = None, n_given: int = 0) -> Layout:
        """Tell all ranks where this rank's arrays lie, and what for; return where all lie.

        Of the first ``n_given`` the others read what is there now.
        """
        notice = self._layouts.notice(placed, label, n_given)
        return self._layouts.of(self.barrier.exchange(notice, self.pool, self.pools))

    def agree(self, label: str) -> None:
        self._layout([], label)

    def _current(self, keys: Sequence[Key], arrays: Sequence[Optional[np.ndarray[Any, Any]]]) -> List[Optional[Placed]]:
        """Bring arrays into their slots, if they are not there; return the slots' current arrays."""
        found: List[Optional[Placed]] = []
        for key, array in zip(keys, arrays):
            slot = self._slots.get(key)
            if array is None:
                found.append(None)
            elif slot is not None and slot.current is not None and slot.current.array is array:
                found.append(slot.current)
            else:
                self.bind([key], [array])
                found.append(self._slots[key].current)
        return found

    # -- collectives ---------------------------------------------------------------------------------------------

    def all_reduce(
        self,
        keys: Sequence[Key],
        arrays: Sequence[np.ndarray[Any, Any]],
        op: ReduceOp,
        mixes: Sequence[Mix],
        name_of: NameOf,
        into: Optional[Sequence[Key]] = None,
    ) -> Pending:
        if self._over_hosts is not None and sum([array.nbytes for array in arrays]) >= TAKEN_BYTES:
            begun = self._begin(keys, arrays, op, mixes, name_of, into=into or keys)
            if begun is not None:
                return self.finish(begun, into or keys)
        placed: List[Optional[Placed]] = self._current(keys, arrays)
        results: List[Any] = [None] * len(keys)
        if mixes and mixes[0].takers is None or self._takes(mixes):
            spares = self._spares(into or keys, [(array.shape, array.dtype) for array in arrays])
            placed, results = [*placed, *spares], [spare.array for spare in spares]
        layout = self._layout(placed, n_given=len(keys))
        for mix in mixes:
            key = ("all_reduce", mix.takers, mix.sharers)
            plan = layout.plans.get(key)
            if plan is None:
                takers = self.everybody if mix.takers is None else mix.takers
                portion = self._portion_of(layout, len(keys), takers, mix.sharers or self.everybody, name_of)
                if layout.is_all_eager:
                    takers = (self.rank,)
                plan = layout.plans[key] = portion, takers, self._moved(portion, None, takers)
            portion, takers, (read, sent) = plan
            if self.far and portion.nbytes and not layout.is_all_eager:
                self._fetch(layout, range(len(keys)), participants(mix.weights))
            portion.combine(op, mix.weights)
            if mix.weights is not None:
                read, sent = self._moved(portion, mix.weights, takers)
            self.traffic.read += read
            self.traffic.sent += sent
        return Pending(results)  # the others' shares are complete at the next barrier

    def meets_once(self, arrays: Sequence[np.ndarray[Any, Any]]) -> bool:
        return bool(self.far) and are_few(arrays)

    def carries(self, arrays: Sequence[Any], op: ReduceOp, mixes: Sequence[Mix], keeps_errors: bool) -> bool:
        return self._over_hosts is not None and self._over_hosts.ways(arrays, op, mixes, True, keeps_errors) is not None

    def begin(
        self,
        keys: Sequence[Key],
        arrays: Sequence[Any],
        op: ReduceOp,
        mixes: Sequence[Mix],
        name_of: NameOf,
        wire: Optional[str] = None,
        keeps_errors: bool = False,
        into: Optional[Sequence[Key]] = None,
    ) -> Optional[Begun]:
        begun = self._begin(keys, arrays, op, mixes, name_of, wire, keeps_errors, into)
        if begun is None and self._over_hosts is not None:  # other ranks, with other arrays, may see it differently
            layout = self._layout(self._current(keys, arrays))
            for i in range(len(keys)):
                check_same(layout.of_ranks(i), name_of, i)
        return begun

    def _begin(
        self,
        keys: Sequence[Key],
        arrays: Sequence[Any],
        op: ReduceOp,
        mixes: Sequence[Mix],
        name_of: NameOf,
        wire: Optional[str] = None,
        keeps_errors: bool = False,
        into: Optional[Sequence[Key]] = None,
    ) -> Optional[Begun]:
        over_hosts = self._over_hosts
        ways = None if over_hosts is None else over_hosts.ways(arrays, op, mixes, wire is not None, keeps_errors)
        if over_hosts is None or ways is None:
            return None
        meanwhile = into is None
        given: List[Any] = list(self._current(keys, arrays))
        targets: List[Placed] = []
        if into is not None and self._takes(mixes):
            targets = self._spares(into, kinds_of(arrays))
        names = tuple([(*key, "started") for key in keys] if meanwhile else keys)
        room = over_hosts.room(names, given, targets, len(mixes), not (meanwhile or keeps_errors))
        lent = []
        if into is not None and room.takes:  # they are spare arrays again when it is over, and not if it is given up
            lent = [spare.array for spare in targets]
            for key in into:
                self._slots[key].spare = None
        layout = self._layout([*given, *room.placed])
        for i in range(len(keys)):
            check_same(layout.of_ranks(i), name_of, i)
        begun = over_hosts.begin(layout, names, room, arrays, op, mixes, ways, wire, keeps_errors, meanwhile, lent)
        if into is not None:
            for key, spare in zip(into, targets):
                self._slots[key].spare = spare
        return begun

    def finish(
        self, begun: Begun, into: Sequence[Key], errors: Optional[Sequence[np.ndarray[Any, Any]]] = None
    ) -> Pending:
        assert self._over_hosts is not None
        results: List[Any] = [None] * len(begun.kinds)
        if begun.own is not None:
            results = [spare.array for spare in self._spares(into, begun.kinds)]
        self.traffic.add(*self._over_hosts.finish(begun, results, errors))
        return Pending(results)

    def _takes(self, mixes: Sequence[Mix]) -> bool:
        """Return whether this rank takes the result of a mix."""
        return any([mix.takers is None or self.rank in mix.takers for mix in mixes])

    def _moved(
        self, portion: Portion, weights: Optional[Sequence[float]], takers: Sequence[int]
    ) -> Tuple[float, float]:
        """Return the bytes that this rank reads of the others for its share, and writes to those that take the result.

        It reads none of ranks without weight.
        """
        counting = participants(weights) or (True,) * self.size
        read_from, sent_to = sum(counting) - counting[self.rank], len(takers) - (self.rank in takers)
        return portion.nbytes * read_from, portion.nbytes * sent_to

    def _portion_of(
        self, layout: Layout, n: int, takers: Sequence[int], sharers: Sequence[int], name_of: NameOf
    ) -> Portion:
        """Return this rank's share of n arrays, whose results follow them in the layout of the takers.

        If it has the values of all ranks, its share is its own results.
        """
        for i in range(n):
            check_same(layout.of_ranks(i), name_of, i)
        if self.far:
            near = (self.rank,) if layout.is_all_eager else self.near
            takers = [rank for rank in takers if rank in near]
            sharers = takers and ([rank for rank in sharers if rank in near] or takers)
        if self.rank not in sharers:
            return Portion([], [], 0, 1)
        targets = [[layout.array(taker, n + i) for taker in takers] for i in range(n)]
        return Portion([layout.arrays(i) for i in range(n)], targets, sharers.index(self.rank), len(sharers))

    def all_reduce_values(
        self,
        key: Key,
        arrays: Sequence[np.ndarray[Any, Any]],
        op: ReduceOp,
        weights: Optional[Sequence[float]],
        label: Callable[[], str],
    ) -> List[np.ndarray[Any, Any]]:
        if self.size == 1:
            self.barrier.wait()  # as in every collective: steps before it need not be undone any more
            return list(arrays)
        kinds = kinds_of(arrays)
        buffers = self._values.get(key)
        if buffers is None or buffers.kinds != kinds:
            self._replaced = buffers  # until all meet again, others may read what lies in there
            buffers = self._values[key] = ValueBuffers(self.pool, kinds, label())
        staged = buffers.stage(arrays)
        result = None if buffers.is_small else buffers.result()
        over_hosts, mixes = self._over_hosts, (Mix(None if weights is None else tuple(weights)),)
        ways = None if over_hosts is None or result is None else over_hosts.ways(arrays, op, mixes)
        if over_hosts is not None and result is not None and ways is not None:
            lent = result.lend()
            room = over_hosts.room((key,), staged, result.placed, gives=True)
            layout = self._layout([*staged, *room.placed], buffers.label)
            for i in range(len(kinds)):
                check_same(layout.of_ranks(i), lambda i: f"array {i} of {buffers.label}", i)
            begun = over_hosts.begin(layout, (key,), room, arrays, op, mixes, ways, lent=lent)
            self.traffic.add(*over_hosts.finish(begun, lent))
            return lent
        placed = staged if result is None else [*staged, *result.placed]
        layout = self._layout(placed, buffers.label, len(staged))
        counting = participants(weights)
        plan = layout.plans.get(("all_reduce_values", counting))
        if plan is None:
            plan = layout.plans["all_reduce_values", counting] = self._values_plan(layout, buffers, counting)
        portion, own = plan
        if self.far:
            self._fetch(layout, range(len(kinds)), counting)
        portion.combine(op, weights)
        self.traffic.add(*self._moved(portion, weights, (self.rank,) if own else self.everybody))
        if result is None:
            return [array.copy() for array in own]
        lent = result.lend()  # before the others can know that this rank is done with the result of the last time
        self.barrier.wait()
        return lent

    def _values_plan(
        self,
        layout: Layout,
        buffers: ValueBuffers,
        counting: Optional[Tuple[bool, ...]],
    ) -> Tuple[Portion, List[np.ndarray[Any, Any]]]:
        """Return what this rank reduces, and where it puts it if that is for itself alone."""
        kinds, label = buffers.kinds, buffers.label
        n = len(kinds)
        own: List[np.ndarray[Any, Any]] = []
        if {len(handles) for handles in layout.handles} == {n}:
            own = [np.empty(shape, dtype) for shape, dtype in kinds]
        for i in range(n):
            check_same(layout.of_ranks(i), lambda i: f"array {i} of {label}", i)
        parts = [
            [array if counting is None or counting[rank] else None for rank, array in enumerate(layout.arrays(i))]
            for i in range(n)
        ]
        if own:
            return Portion(parts, [[array] for array in own], 0, 1), own
        targets = [[layout.array(rank, n + i) for rank in self.near] for i in range(n)]
        return Portion(parts, targets, self.near.index(self.rank), len(self.near)), own

    @point("transport")
    def reduce(
        self,
        keys: Sequence[Key],
        arrays: Sequence[Optional[np.ndarray[Any, Any]]],
        ops: Sequence[ReduceOp],
        weights: Optional[Sequence[float]],
        name_of: NameOf,
        keep_dtype: bool = True,
    ) -> Optional[List[np.ndarray[Any, Any]]]:
        layout = self._layout(self._current(keys, arrays), n_given=self._given_to_root(keys))
        names = tuple([op.name for op in ops])
        together = layout.plans.get(("reduce", names))
        if together is None:
            for i, name in enumerate(names):
                if name not in (None, "gather"):
                    check_same(layout.of_ranks(i), name_of, i)
            together = layout.plans["reduce", names] = [
                i for i, name in enumerate(names) if self._is_worth_sharing(layout.of_ranks(i), name)
            ]
        results = self._reduced_together(keys, layout, ops, weights, together) if together else {}
        if self.rank != self.root:
            return None
        if self.far:
            self._fetch(layout, [i for i, op in enumerate(ops) if i not in results])
        for i, op in enumerate(ops):
            if i not in results:
                parts = layout.arrays(i)
                with prefixed(name_of(i)):
                    results[i] = reduce_outputs(op, parts, weights, self.root, keep_dtype)
                self._count_read(parts if op.name is not None else [])
        return [results[i] for i in range(len(ops))]

    def _reduced_together(
        self,
        keys: Sequence[Key],
        layout: Layout,
        ops: Sequence[ReduceOp],
        weights: Optional[Sequence[float]],
        chosen: Sequence[int],
    ) -> Dict[int, np.ndarray[Any, Any]]:
        """Reduce the chosen arrays, each rank its share; return copies of the results on the root."""
        spares: List[Optional[Placed]] = [None] * len(chosen)
        if self.rank == self.root:  # it says where the results will lie, which takes an exchange of its own
            spares = list(self._spares([keys[i] for i in chosen], [_kind_of(layout.of_ranks(i)) for i in chosen]))
        targets = self._layout(spares)
        if self.root in self.near:
            if self.far:
                self._fetch(layout, chosen, participants(weights))
            share = self.near.index(self.rank), len(self.near)
            for j, i in enumerate(chosen):
                portion = Portion([layout.arrays(i)], [[targets.arrays(j)[self.root]]], *share)
                portion.combine(ops[i], weights)
                self.traffic.add(*self._moved(portion, weights, (self.root,)))
        self.barrier.wait()
        return {i: spare.array.copy() for i, spare in zip(chosen, spares) if spare is not None}

    def _is_worth_sharing(self, handles: Sequence[Optional[Handle]], name: Optional[str]) -> bool:
        if name in (None, "gather") or self.size == 1:
            return False
        shape, dtype = _kind_of(handles)
        return dtype.itemsize * math.prod(shape) > ROOT_REDUCES_BELOW_BYTES and dtype != np.bool_

    def gather(
        self, keys: Sequence[Key], arrays: Sequence[np.ndarray[Any, Any]]
    ) -> Optional[List[List[np.ndarray[Any, Any]]]]:
        layout = self._layout(self._current(keys, arrays), n_given=self._given_to_root(keys))
        if self.rank != self.root:
            return None
        if self.far:
            self._fetch(layout, range(len(keys)))
        gathered = [layout.arrays(i) for i in range(len(keys))]
        for parts in gathered:
            self._count_read(parts)
        return gathered

    def all_gather(
        self, keys: Sequence[Key], arrays: Sequence[np.ndarray[Any, Any]], name_of: NameOf, on_host: bool = False
    ) -> Pending:
        layout = self._layout(self._current(keys, arrays), n_given=len(keys))
        if self.far:
            self._fetch(layout, range(len(keys)))
        results = []
        for i, key in enumerate(keys):
            of_ranks = layout.of_ranks(i)
            check_same(of_ranks, name_of, i, but_lengths=True)
            length = sum([handle.shape[0] for handle in of_ranks if handle is not None])
            shape, dtype = _kind_of(of_ranks)
            result = self.allocate(key, (length,) + shape[1:], dtype)
            join_into(result, layout.arrays(i))
            self._count_read(layout.arrays(i))
            results.append(result)
        return Pending(results)

    def broadcast(
        self, keys: Sequence[Key], arrays: Sequence[Optional[np.ndarray[Any, Any]]], root: int, on_host: bool = False
    ) -> Pending:
        if self.size == 1:  # nobody else reads it where it is
            self.barrier.wait()
            return Pending(list(arrays))
        if self.rank == root:
            current = self._current(keys, arrays)
            self._layout(current, n_given=len(keys))
            return Pending([None if placed is None else placed.array for placed in current])
        results = []
        layout = self._layout([])
        if root in self.far:
            self._fetch(layout, range(len(keys)), [rank == root for rank in range(self.size)])
        for i, key in enumerate(keys):
            value = layout.array(root, i)
            results.append(self.allocate(key, value.shape, value.dtype))
            copy_into(results[-1], value)
            self.traffic.add(value.nbytes, 0)
        return Pending(results)

    def _fetch(self, layout: Layout, positions: Iterable[int], counting: Optional[Sequence[bool]] = None) -> None:
        """Bring what ranks of other hosts have at these positions, except those that do not count.

        What has come with their notices is here.
        """
        ranks = [rank for rank in self.far if counting is None or counting[rank]]
        self.pools.fetch(layout.handles[rank][i] for i in positions for rank in ranks if not layout.is_eager(rank, i))

    def _given_to_root(self, keys: Sequence[Key]) -> int:
        """Return how many arrays of this rank others read, if the root alone reads what the others have."""
        return 0 if self.rank == self.root else len(keys)

    def _count_read(self, parts: Sequence[Optional[np.ndarray[Any, Any]]]) -> None:
        """Count that this rank has read the others' arrays."""
        for rank, part in enumerate(parts):
            if part is not None and rank != self.rank:
                self.traffic.add(part.nbytes, 0)


def _is_same_memory(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays are views of the same elements in the same order; ``b`` is C-contiguous."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.flags.c_contiguous
        and a.__array_interface__["data"] == b.__array_interface__["data"]
    )


def _kind_of(handles: Sequence[Optional[Handle]]) -> Tuple[Tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the dtype that the ranks' arrays have in common."""
    handle = next(handle for handle in handles if handle is not None)
    return handle.shape, handle.dtype


def check_same(handles: Sequence[Any], name_of: NameOf, i: int, but_lengths: bool = False) -> None:
    """Raise if shapes or dtypes differ; every rank sees the same handles, so all raise or none."""
    there = [(rank, handle) for rank, handle in enumerate(handles) if handle is not None]
    if len({(handle.shape[but_lengths:], len(handle.shape), handle.dtype) for _, handle in there}) > 1:
        raise ArgumentValueError(
            name_of(i),
            f"the same shape{' (except axis 0)' if but_lengths else ''} and dtype on all ranks",
            "; ".join(f"{handle.dtype} {handle.shape} on rank {rank}" for rank, handle in there),
        )
