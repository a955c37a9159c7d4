"""Collectives through shared memory: every rank reads the other ranks' arrays in place.

Each key has a *slot* in the memory of each rank: a *current* array, which normally is the variable's storage, and a
*spare* array for results::

              rank 0's pool          rank 1's pool
    current   [ x_0         ]        [ x_1         ]     read by both
    spare     [ 0 0 0 | 1 1 ]        [ 0 0 0 | 1 1 ]     each rank writes its share into both

Every rank computes its share of the elements for all ranks: it reads n current arrays and writes into n spare arrays,
or into a single one in common memory (`common`). So all ranks get identical bits, and no element is computed twice. The
current arrays stay unchanged until every rank has finished; the commit then swaps current and spare.

`over_hosts` has the same collectives for ranks on several hosts.
"""

from __future__ import annotations

import math
import pickle
from collections import defaultdict
from functools import partial
from typing import (
    Any,
    Callable,
    Collection,
    Container,
    DefaultDict,
    Dict,
    Iterable,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import numpy as np

from ..errors import prefixed
from ..kernels.copy import copy_into, copy_outside, join_into
from ..kernels.encoding import rounded
from ..kernels.reduce import Portion, can_be_own, share_of
from ..memory.attach import PoolMap
from ..memory.pool import Pool
from ..reductions import ReduceOp, Weights, reduce_outputs
from ..sync.barrier import Barrier
from ..trace import point
from .base import Arrays, Key, Keys, Label, NameOf, Pending, TrafficCounter, Transport
from .common import CommonMemory, beginning_with, part_of
from .layouts import Layout, Layouts, PooledArray
from .strategy import EQUAL, Algorithm, Reduction, Weighting, participants, strategy
from .value_buffers import ValueBuffers

#: Minimum size of new values that a rank copies only as far as other ranks read them, which takes a few us to prepare.
OWN_FROM_BYTES = 3 << 18


class Slot:
    """One rank's current and spare array for a key; ``mirror`` is a known copy of the current array, or None.

    ``stays`` means that the arrays stay when the value moves to common memory, because the rank's next own value is
    copied into them before the next collective.
    """

    __slots__ = ("current", "spare", "mirror", "stays")

    def __init__(self) -> None:
        self.current: Optional[PooledArray] = None
        self.spare: Optional[PooledArray] = None
        self.mirror: Any = None
        self.stays = False

    def holds(self, value: np.ndarray[Any, Any]) -> bool:
        """Return whether the current array has the elements of an array."""
        current = self.current
        return current is not None and (
            current.array is value or self.mirror is value or _is_same_memory(value, current.array)
        )


class SharedMemoryTransport(Transport):
    """Collectives over the ranks' memory pools.

    ``borrowed`` returns the ids of the base arrays of all variables' values. Such an array is never overwritten. It may
    be in another variable's slot, because an update can swap two variables.
    """

    reads_whole = False

    def __init__(self, barrier: Barrier, pool: Pool, pools: PoolMap, borrowed: Callable[[], Set[int]] = set) -> None:
        self.barrier, self.pool, self.pools, self._borrowed = barrier, pool, pools, borrowed
        self.rank, self.root, self.size = barrier.rank, barrier.root, barrier.block.size
        self.everybody = range(self.size)
        self.near: Sequence[int] = self.everybody  # the ranks whose memory this rank can write to
        self.home = self.root  # the rank whose pool contains these ranks' common memory
        self._to_root = (Weighting(destinations=(self.root,)),)
        self._slots: DefaultDict[Key, Slot] = defaultdict(Slot)
        self._values: Dict[Key, ValueBuffers] = {}
        self._replaced: Optional[ValueBuffers] = None
        self.traffic, self._layouts, self.common = TrafficCounter(), Layouts(pools), CommonMemory(self.size > 1)

    # -- the slots of this rank ----------------------------------------------------------------------------------

    @point("transport")
    def bind(self, keys: Keys, values: Arrays) -> List[np.ndarray[Any, Any]]:
        bound: List[np.ndarray[Any, Any]] = []
        borrowed, common = None, self.common.slots
        for key, value in zip(keys, values):
            if key in common and self.common.placed(key, value) is not None:
                bound.append(value)
                continue
            slot = self._slots[key]
            current = slot.current
            if current is None or current.array is not value:
                value = np.asarray(value)  # a value on a device is copied to the host
                borrowed = borrowed or once(self._borrowed)
                room = self._room_for(key, value, borrowed)
                if room is not None:
                    copy_into(room, value)
            bound.append(slot.current.array)  # type: ignore[union-attr]
        return bound

    def _room_for(
        self, key: Key, value: np.ndarray[Any, Any], borrowed: Callable[[], Set[int]]
    ) -> Optional[np.ndarray[Any, Any]]:
        """Return memory for a value, which becomes the key's current array; None if the slot already has the value."""
        slot = self._slots[key]
        if slot.holds(value):
            return None
        slot.current = self._fitting(slot.current, value.shape, value.dtype, borrowed)
        slot.mirror = None
        return slot.current.array

    def copies(self, keys: Keys, values: Arrays) -> List[np.ndarray[Any, Any]]:
        return self.bind(keys, values)

    def allocate(self, key: Key, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return self._spares([key], [(shape, dtype)])[0].array

    @point("transport")
    def _spares(self, keys: Keys, kinds: Sequence[Tuple[Tuple[int, ...], np.dtype[Any]]]) -> List[PooledArray]:
        borrowed, found = once(self._borrowed), []
        for key, (shape, dtype) in zip(keys, kinds):
            slot = self._slots[key]
            slot.spare = self._fitting(slot.spare, shape, dtype, borrowed)
            found.append(slot.spare)
        return found

    def _fitting(
        self,
        placed: Optional[PooledArray],
        shape: Tuple[int, ...],
        dtype: np.dtype[Any],
        borrowed: Callable[[], Set[int]],
    ) -> PooledArray:
        """Return ``placed`` if a value of that shape and dtype can overwrite its array, otherwise a new array.

        If something refers to the array, ``borrowed`` searches all variables, so a loop over variables must pass a
        function that caches its result.
        """
        if placed is not None and placed.array.shape == shape and placed.array.dtype == dtype:
            if placed.is_alone or id(placed.array.base) not in borrowed():
                return placed
        array = self.pool.allocate(shape, dtype)
        return PooledArray.at(array, self.pool.handle(array))

    @point("transport")
    def swap_in(self, key: Key, result: np.ndarray[Any, Any]) -> bool:
        slot = self._slots.get(key)
        if key in self.common.slots and self.common.swap_in(key, result):
            if slot is None or not slot.stays:
                self._slots.pop(key, None)
            else:
                slot.mirror = None
            return True
        if slot is not None and slot.spare is not None and result is slot.spare.array:
            before, after = slot.current, slot.spare
            slot.spare = None  # first, so that an interrupt never leaves one array in both roles
            slot.current = after
            slot.spare = before
            slot.mirror = None
        return False

    def _keep_slot(self, key: Key) -> None:
        """Let the arrays of a slot stay when its value moves to common memory."""
        slot = self._slots.get(key)
        if slot is not None:
            slot.stays = True

    def current(self, key: Key) -> Optional[np.ndarray[Any, Any]]:
        slot = self._slots.get(key)
        return None if slot is None or slot.current is None else slot.current.array

    def keeps(self, key: Key, array: Any) -> bool:
        return self.current(key) is array

    def take_over(self, key: Key, array: np.ndarray[Any, Any]) -> None:
        """Make an array in this rank's pool the current array of a key. Local."""
        slot = self._slots[key] = Slot()
        slot.current = PooledArray.at(array, self.pool.handle(array))

    def set_mirror(self, key: Key, twin: np.ndarray[Any, Any]) -> None:
        """Record that an array is a copy of the key's current array, so that `bind` need not copy it. Local."""
        self._slots[key].mirror = twin

    def forget(self, things: Collection[Key]) -> None:
        tables: Sequence[Dict[Key, Any]] = (self._slots, self._values)
        for table in tables:
            for key in beginning_with(things, table):
                del table[key]
        self.common.forget(things)

    # -- exchanging locations ------------------------------------------------------------------------------------

    def exchange(self, notice: Any) -> List[Any]:
        notices = self.barrier.exchange(pickle.dumps(notice, pickle.HIGHEST_PROTOCOL), self.pool, self.pools)
        return [notice if rank == self.rank else pickle.loads(each) for rank, each in enumerate(notices)]

    @point("transport")
    def _layout(
        self,
        placed: Sequence[Optional[PooledArray]],
        label: Optional[str] = None,
        n_given: int = 0,
        results: Tuple[Weighting, ...] = EQUAL,
    ) -> Layout:
        """Exchange array locations and a label; peers read the first ``n_given`` arrays for ``results``."""
        notice = self._layouts.notice(placed, label)
        return self._layouts.of(self.barrier.exchange(notice, self.pool, self.pools))

    def agree(self, label: str) -> None:
        notice = self._layouts.notice([], label)
        notices = self.barrier.exchange(notice, self.pool, self.pools)
        if notices.count(notice) < self.size:
            self._layouts.of(notices)  # raises

    def _current(self, keys: Keys, arrays: Arrays, shown: Container[int] = ()) -> List[Optional[PooledArray]]:
        """Bind the values, except those at positions in ``shown``: the slots have what other ranks read of these."""
        found: List[Optional[PooledArray]] = []
        unbound = []
        for i, (key, array) in enumerate(zip(keys, arrays)):
            slot, placed = self._slots.get(key), None
            if array is not None:
                current = None if slot is None else slot.current
                is_there = current is not None and (current.array is array or i in shown)
                placed = current if is_there else self.common.placed(key, array)
                if placed is None:
                    unbound.append(i)
            found.append(placed)
        if unbound:
            self.bind([keys[i] for i in unbound], [arrays[i] for i in unbound])
            for i in unbound:
                found[i] = self._slots[keys[i]].current
        return found

    @point("transport")
    def common_spares(
        self, keys: Keys, kinds: Sequence[Tuple[Tuple[int, ...], np.dtype[Any]]]
    ) -> List[np.ndarray[Any, Any]]:
        """Return the common memory's spare arrays for new values, whose shapes and dtypes are equal on all ranks."""
        found = [self.common.spare(key, *kind) for key, kind in zip(keys, kinds)]
        spares = [placed for placed in found if placed is not None]
        if len(spares) < len(found):
            if self.rank == self.home:
                borrowed = once(self._borrowed)
                spares = [self._fitting(placed, *kind, borrowed) for placed, kind in zip(found, kinds)]
            layout = self._layout(spares if self.rank == self.home else [])
            if self.rank != self.home:
                spares = [self._mapped(key, layout, i) for i, key in enumerate(keys)]
            for key, placed in zip(keys, spares):
                self.common.slots[key].spare = placed
            self._note_copies(keys, layout)
        return [placed.array for placed in spares]

    def part(self, size: int) -> Tuple[int, int]:
        return part_of(size, self.near.index(self.rank), len(self.near))

    def share(self, keys: Keys, arrays: Arrays) -> List[np.ndarray[Any, Any]]:
        layout = self._layout(self._offered(keys, arrays) if self.rank == self.home else [])
        self._note_copies(keys, layout)
        return [self._mapped(key, layout, i).array for i, key in enumerate(keys)]

    def _offered(self, keys: Keys, arrays: Arrays) -> List[PooledArray]:
        """Return arrays in common memory, in this rank's pool."""
        fitting = partial(self._fitting, borrowed=once(self._borrowed))
        return [self.common.offered(key, array, fitting) for key, array in zip(keys, arrays)]

    def _shared(self, keys: Keys, layout: Layout, chosen: Sequence[int]) -> List[np.ndarray[Any, Any]]:
        """Return the chosen arrays of the root, which its layout lists, in common memory."""
        return [self._mapped(keys[i], layout, i).array for i in chosen]

    def _note_copies(self, keys: Keys, layout: Layout) -> None:
        """Record, on the root, where other hosts have these keys' spare arrays; on one host, there are none."""

    def _mapped(self, key: Key, layout: Layout, i: int) -> PooledArray:
        """Return the i-th array of the rank that has the common memory."""
        handle = layout.handles[self.home][i]
        assert handle is not None
        return self.common.mapped(key, handle, self.pools.here)

    # -- collectives ---------------------------------------------------------------------------------------------

    def all_reduce(
        self,
        keys: Keys,
        arrays: Arrays,
        reduction: Reduction,
        name_of: NameOf,
        into: Optional[Keys] = None,
        errors: Arrays = (),
        promise: Callable[[], object] = bool,
    ) -> Pending:
        into = into or keys
        if reduction.wire is not None:
            return self._all_reduce_rounded(keys, arrays, reduction, name_of, into, errors)
        targets, own, common = self._targets(into, arrays, reduction)
        in_place = self._show_parts(keys, arrays, reduction, common) if common else {}
        placed = self._current(keys, arrays, {common[j] for j in in_place})
        layout = self._layout([*placed, *targets], None, len(keys), reduction.results)
        shares = [(each, own) for each in reduction.results] if own else []
        if common:
            shares.append((reduction.results[0]._replace(destinations=(self.home,)), common))
        for each, positions in shares:
            key = ("all_reduce", each.destinations, each.contributors)
            plan = layout.plans.get(key)
            if plan is None:
                layout.check(range(len(keys)), name_of)
                portion, destinations = self._portion_of(layout, positions, len(keys), each)
                plan = layout.plans[key] = portion, destinations, self._moved(portion, None, destinations)
            portion, destinations, (read, sent) = plan
            own_parts = (self.rank, in_place) if in_place and positions is common else None
            portion.combine(reduction.op, each.weights, own_parts)
            if each.weights is not None:
                read, sent = self._moved(portion, each.weights, destinations)
            self.traffic.read += read
            self.traffic.sent += sent
        for i in common:
            targets[i] = self.common.slots[into[i]].spare = self._mapped(into[i], layout, len(keys) + i)
            self._keep_slot(into[i])
        # the other ranks' shares are complete at the next barrier
        return [None if target is None else target.array for target in targets]

    def _own_of(
        self, arrays: Arrays, op: ReduceOp, share: Callable[[], Iterable[Tuple[int, int, int]]]
    ) -> Dict[int, Tuple[int, int]]:
        """Return the elements (begin, end), by array, that this rank reduces without copying them to shared memory.

        ``share`` returns this rank's share of the arrays' elements, which no other rank reads.
        """
        if len(self.near) < self.size or not any([array.nbytes >= OWN_FROM_BYTES for array in arrays]):
            return {}
        large = [each for each in share() if arrays[each[0]].nbytes >= OWN_FROM_BYTES]
        return {i: (begin, end) for i, begin, end in large if can_be_own(arrays[i], op, self.size)}

    def _show_parts(
        self, keys: Keys, arrays: Arrays, reduction: Reduction, chosen: Sequence[int]
    ) -> Dict[int, np.ndarray[Any, Any]]:
        """Copy the other ranks' shares of the chosen new values to slots; return the values, flat.

        The keys are positions in ``chosen``. Other values, which are in slots or must be copied whole, are left out.
        """
        contributors = reduction.results[0].contributors or self.everybody
        if self.rank not in contributors:
            return {}
        some = [arrays[i] for i in chosen]
        place = contributors.index(self.rank), len(contributors)
        borrowed, shown = once(self._borrowed), {}
        for j, (begin, end) in self._own_of(some, reduction.op, lambda: share_of(some, *place)).items():
            key, array = keys[chosen[j]], some[j]
            room = None if self.common.placed(key, array) is not None else self._room_for(key, array, borrowed)
            if room is not None:
                copy_outside(begin, end, room, array)
                shown[j] = array.reshape(-1)
        return shown

    def _targets(
        self, into: Keys, arrays: Arrays, reduction: Reduction
    ) -> Tuple[List[Optional[PooledArray]], Sequence[int], Sequence[int]]:
        """Return arrays for this rank's results, the positions of results for each rank, and those in common memory.

        Arrays in common memory are only on the rank that has the memory; the positions are equal on all ranks.
        """
        is_for_all = len(reduction.results) == 1 and reduction.results[0].destinations is None
        common = self.common.taken(into, arrays) if is_for_all and len(self.near) == self.size else []
        chosen = {*common}
        own = [i for i in range(len(into)) if i not in chosen]
        targets: List[Optional[PooledArray]] = [None] * len(into)
        if own and (is_for_all or reduction.receives(self.rank)):
            spares = self._spares([into[i] for i in own], [(arrays[i].shape, arrays[i].dtype) for i in own])
            for i, spare in zip(own, spares):
                targets[i] = spare
        borrowed = once(self._borrowed) if common else set
        for i in common:
            shape, dtype = arrays[i].shape, arrays[i].dtype
            fitting = self.common.spare(into[i], shape, dtype)
            if self.rank == self.home:
                targets[i] = self.common.slots[into[i]].spare = self._fitting(fitting, shape, dtype, borrowed)
        return targets, own, common

    def _all_reduce_rounded(
        self, keys: Keys, arrays: Arrays, reduction: Reduction, name_of: NameOf, into: Keys, errors: Arrays
    ) -> Pending:
        wire: Any = reduction.wire
        sent = [rounded(array, wire) for array in arrays]
        counting = [participants(each.weights) for each in reduction.results]
        if any([ranks is None or ranks[self.rank] for ranks in counting]):  # a rank with weight 0 sends nothing
            with np.errstate(all="ignore"):
                for array, arriving, error in zip(arrays, sent, errors):
                    np.subtract(array, arriving, out=error)
        keys = [(*key, "rounded") for key in keys]
        whole = reduction._replace(wire=None, keeps_errors=False)
        results = self.all_reduce(keys, self.copies(keys, sent), whole, name_of, into)
        self.barrier.wait()  # all ranks have reduced their shares
        for key, result in zip(into, results):
            if result is not None:
                is_common = self.common.found(key, result) is not None
                own = result.reshape(-1)[slice(*self.part(result.size))] if is_common else result
                own[...] = rounded(own, wire)
        return results

    def _moved(self, portion: Portion, weights: Weights, destinations: Sequence[int]) -> Tuple[float, float]:
        """Return the bytes that this rank reads (except from ranks with weight 0) and writes for its share."""
        counting = participants(weights) or (True,) * self.size
        read_from, sent_to = sum(counting) - counting[self.rank], len(destinations) - (self.rank in destinations)
        return portion.nbytes * read_from, portion.nbytes * sent_to

    def _portion_of(
        self, layout: Layout, positions: Sequence[int], n: int, result: Weighting
    ) -> Tuple[Portion, Sequence[int]]:
        """Return this rank's share of the arrays at some positions, and the ranks that receive it n positions later."""
        destinations: Sequence[int] = self.everybody if result.destinations is None else result.destinations
        contributors: Sequence[int] = result.contributors or self.everybody
        if self.rank not in contributors:
            return Portion([], [], 0, 1), destinations
        targets = [[layout.array(destination, n + i) for destination in destinations] for i in positions]
        parts = [layout.arrays(i) for i in positions]
        return Portion(parts, targets, contributors.index(self.rank), len(contributors)), destinations

    def all_reduce_values(
        self, key: Key, arrays: Arrays, op: ReduceOp, weights: Weights, label: Label
    ) -> List[np.ndarray[Any, Any]]:
        if self.size == 1:
            self.barrier.wait()  # as in every collective, so that earlier steps need no undo
            return list(arrays)
        kinds = [(array.shape, array.dtype) for array in arrays]
        buffers = self._values.get(key)
        if buffers is None or buffers.kinds != kinds:
            is_small = strategy(kinds, Reduction(op), None, False).algorithm is Algorithm.OWN
            buffers = self._new_buffers(key, kinds, label, is_small)
        share = self.near.index(self.rank), len(self.near)
        ranges = {} if buffers.is_small else self._own_of(arrays, op, lambda: share_of(arrays, *share))
        staged = buffers.stage(arrays, ranges)
        result = None if buffers.is_small else buffers.result()
        layout = self._layout(staged if result is None else [*staged, *result.placed], buffers.label, len(staged))
        counting = participants(weights)
        plan = layout.plans.get(("all_reduce_values", counting))
        if plan is None:
            portion, own = self._values_plan(layout, buffers, counting)
            moved = self._moved(portion, weights, (self.rank,) if own else self.everybody)
            plan = layout.plans["all_reduce_values", counting] = portion, own, moved
        portion, own, moved = plan
        portion.combine(op, weights, (self.rank, {i: arrays[i].reshape(-1) for i in ranges}) if ranges else None)
        self.traffic.read += moved[0]
        self.traffic.sent += moved[1]
        if result is None:
            return [array.copy() for array in own]
        lent = result.lend()  # before the barrier, so that the memory counts as lent when peers continue
        self.barrier.wait()
        return lent

    def _new_buffers(self, key: Key, kinds: Any, label: Label, is_small: bool) -> ValueBuffers:
        self._replaced = self._values.get(key)  # peers may read the old buffers until the next exchange
        buffers = self._values[key] = ValueBuffers(self.pool, kinds, label(), is_small)
        return buffers

    def reduce_parts(
        self, key: Key, arrays: Arrays, op: ReduceOp, weights: Weights, label: Label
    ) -> List[np.ndarray[Any, Any]]:
        kinds = [(array.shape, array.dtype) for array in arrays]
        buffers = self._values.get(key)
        if buffers is None or buffers.kinds != kinds:
            buffers = self._new_buffers(key, kinds, label, False)
        parts_of = [(i, *self.part(array.size)) for i, array in enumerate(arrays)]
        ranges = self._own_of(arrays, op, lambda: parts_of)
        layout = self._layout(buffers.stage(arrays, ranges), buffers.label, len(arrays))
        counting = participants(weights)
        plan = layout.plans.get(("reduce_parts", counting))
        if plan is None:
            layout.check(range(len(arrays)), buffers.name)
            parts, own = [], []
            for i, begin, end in parts_of:
                of_ranks = [part.reshape(-1)[begin:end] for part in layout.arrays(i)]
                parts.append([None if counting and not counting[rank] else part for rank, part in enumerate(of_ranks)])
                own.append(np.empty(end - begin, arrays[i].dtype))
            portion = Portion(parts, [[array] for array in own], 0, 1)
            plan = layout.plans["reduce_parts", counting] = portion, own, self._moved(portion, weights, (self.rank,))
        portion, own, (read, sent) = plan
        in_place = {i: arrays[i].reshape(-1)[slice(*ranges[i])] for i in ranges}
        portion.combine(op, weights, (self.rank, in_place) if in_place else None)
        self.traffic.add(read, sent)
        return own

    def _values_plan(
        self, layout: Layout, buffers: ValueBuffers, counting: Optional[Tuple[bool, ...]]
    ) -> Tuple[Portion, List[np.ndarray[Any, Any]]]:
        """Return this rank's share of the reduction, and its result arrays if it computes them for itself."""
        n = len(buffers.kinds)
        own: List[np.ndarray[Any, Any]] = []
        if {len(handles) for handles in layout.handles} == {n}:
            own = [np.empty(shape, dtype) for shape, dtype in buffers.kinds]
        layout.check(range(n), buffers.name)
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
        keys: Keys,
        arrays: Arrays,
        ops: Sequence[ReduceOp],
        weights: Weights,
        name_of: NameOf,
        keep_dtype: bool = True,
    ) -> Optional[List[np.ndarray[Any, Any]]]:
        layout = self._layout(self._current(keys, arrays), None, self._given_to_root(keys), self._to_root)
        names = tuple([op.name for op in ops])
        together = layout.plans.get(("reduce", names))
        if together is None:
            combining = [i for i, name in enumerate(names) if name not in (None, "gather")]
            layout.check(combining, name_of)
            together = layout.plans["reduce", names] = [
                i
                for i in combining
                if self.size > 1
                and strategy([layout.kind(i)], Reduction(ops[i], self._to_root), None, False).algorithm
                is Algorithm.SHARED
            ]
        results = self._reduced_together(keys, layout, ops, weights, together) if together else {}
        if self.rank != self.root:
            return None
        self._fetch(layout, [i for i, op in enumerate(ops) if i not in results])
        for i, op in enumerate(ops):
            if i not in results:
                parts = layout.arrays(i)
                with prefixed(name_of(i)):
                    results[i] = reduce_outputs(op, parts, weights, self.root, keep_dtype)
                self._count_read(parts if op.name is not None else [])
        return [results[i] for i in range(len(ops))]

    def _reduced_together(
        self, keys: Keys, layout: Layout, ops: Sequence[ReduceOp], weights: Weights, chosen: Sequence[int]
    ) -> Dict[int, np.ndarray[Any, Any]]:
        """Reduce the chosen arrays, one share per rank; return copies of the results on the root."""
        spares: List[Optional[PooledArray]] = [None] * len(chosen)
        if self.rank == self.root:  # the root sends the locations of the results, in a separate exchange
            spares = list(self._spares([keys[i] for i in chosen], [layout.kind(i) for i in chosen]))
        targets = self._layout(spares)
        if self.root in self.near:
            self._fetch(layout, chosen, participants(weights))
            share = self.near.index(self.rank), len(self.near)
            for j, i in enumerate(chosen):
                portion = Portion([layout.arrays(i)], [[targets.arrays(j)[self.root]]], *share)
                portion.combine(ops[i], weights)
                self.traffic.add(*self._moved(portion, weights, (self.root,)))
        self.barrier.wait()
        return {i: spare.array.copy() for i, spare in zip(chosen, spares) if spare is not None}

    def gather(self, keys: Keys, arrays: Arrays) -> Optional[List[List[np.ndarray[Any, Any]]]]:
        is_root = self.rank == self.root
        placed = [None] * len(keys) if is_root else self._current(keys, arrays)
        layout = self._layout(placed, None, self._given_to_root(keys), self._to_root)
        if not is_root:
            return None
        self._fetch(layout, range(len(keys)))
        gathered = []
        for i, value in enumerate(arrays):
            own: Any = value if value is None else np.asarray(value)  # a value on a device is copied to the host
            gathered.append([own if rank == self.rank else part for rank, part in enumerate(layout.arrays(i))])
            self._count_read(gathered[-1])
        return gathered

    def all_gather(self, keys: Keys, arrays: Arrays, name_of: NameOf, on_host: bool = False) -> Pending:
        unread: Set[int] = set()  # positions of new values that only this rank reads, to copy them into common memory
        if len(self.near) == self.size:
            borrowed = once(self._borrowed)
            for i, (key, array) in enumerate(zip(keys, arrays)):
                if self.common.takes(key, array) and self.common.placed(key, array) is None:
                    self._room_for(key, array, borrowed)  # only to announce the shape
                    unread.add(i)
        layout = self._layout(self._current(keys, arrays, unread), n_given=len(keys))
        kinds, begins = [], []
        for i in range(len(keys)):
            layout.check([i], name_of, but_lengths=True)
            lengths = [0 if handle is None else handle.shape[0] for handle in layout.of_ranks(i)]
            shape, dtype = layout.kind(i)
            kinds.append(((sum(lengths),) + shape[1:], dtype))
            begins.append(sum(lengths[: self.rank]))
        in_parts = [False] * len(keys)  # whether each rank only copies its own rows, into common memory
        if len(self.near) == self.size:
            sizes = [dtype.itemsize * math.prod(shape) for shape, dtype in kinds]
            in_parts = [self.common.takes_size(key, size) for key, size in zip(keys, sizes)]
        common, own = ([i for i in range(len(keys)) if in_parts[i] is wanted] for wanted in (True, False))
        results: List[Any] = [None] * len(keys)
        self._fetch(layout, own)
        for i, spare in zip(own, self._spares([keys[i] for i in own], [kinds[i] for i in own])):
            results[i] = spare.array
            join_into(spare.array, layout.arrays(i))
            self._count_read(layout.arrays(i))
        for i, array in zip(common, self.common_spares([keys[i] for i in common], [kinds[i] for i in common])):
            results[i], rows = array, np.asarray(arrays[i])
            copy_into(array[begins[i] : begins[i] + len(rows)], rows)
            self.traffic.add(0, rows.nbytes * (self.rank != self.home))
            self._keep_slot(keys[i])
        return results  # the other ranks' rows are there at the next barrier

    def broadcast(self, keys: Keys, arrays: Arrays, root: int, on_host: bool = False) -> Pending:
        if self.size == 1:  # no other rank reads the arrays in place
            self.barrier.wait()
            return list(arrays)
        takes, is_root = self.common.takes, self.rank == root
        given: List[Optional[PooledArray]] = []
        if is_root:
            common = [i for i, (key, array) in enumerate(zip(keys, arrays)) if takes(key, array)]
            found = dict(zip(common, self._offered([keys[i] for i in common], [arrays[i] for i in common])))
            own = [i for i in range(len(keys)) if i not in found]
            found.update(zip(own, self._current([keys[i] for i in own], [arrays[i] for i in own])))  # type: ignore[arg-type]
            given = [found[i] for i in range(len(keys))]
        layout = self._layout(given, n_given=len(given))
        values = [layout.array(root, i) for i in range(len(keys))]
        common = self.common.taken(keys, values)
        own = [i for i in range(len(keys)) if i not in common]
        results = dict(zip(common, self._shared(keys, layout, common)))
        if is_root:
            return [None if placed is None else placed.array for placed in given]
        self._fetch(layout, own, [rank == root for rank in self.everybody])
        spares = self._spares([keys[i] for i in own], [(values[i].shape, values[i].dtype) for i in own])
        for i, spare in zip(own, spares):
            results[i] = spare.array
            copy_into(spare.array, values[i])
            self.traffic.add(values[i].nbytes, 0)
        return [results[i] for i in range(len(keys))]

    def _fetch(self, layout: Layout, positions: Iterable[int], counting: Optional[Sequence[bool]] = None) -> None:
        """Fetch these arrays from the participating ranks of other hosts; on one host, all arrays are present."""

    def _given_to_root(self, keys: Keys) -> int:
        """Return the number of this rank's arrays that other ranks read, if only the root reads."""
        return 0 if self.rank == self.root else len(keys)

    def _count_read(self, parts: Sequence[Optional[np.ndarray[Any, Any]]]) -> None:
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


def once(function: Callable[[], Set[int]]) -> Callable[[], Set[int]]:
    """Return a function that calls this one when it is first called, and then returns the same set.

    (Creating an `lru_cache` takes 5 microseconds.)
    """
    found: List[Set[int]] = []

    def known() -> Set[int]:
        if not found:
            found.append(function())
        return found[0]

    return known
