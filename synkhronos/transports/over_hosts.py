"""Collectives over hosts: each host reduces its ranks' arrays; bridge and deputies (`cluster`) combine large partials.

::

    host 0: ranks 0, 1                                      host 1: ranks 2, 3
    current arrays x_0, x_1 --+                             current arrays x_2, x_3 --+
                              v  one share per rank                                   v
    partial [ rank 0 | rank 1 ] <- bridge and deputies ---> partial [ rank 2 | rank 3 ]
    result  [                 ]                             result  [                 ]
                              v  each rank copies                                     v
    spare arrays of ranks 0, 1                              spare arrays of ranks 2, 3

The first rank of each host stores a partial and a result for each `Weighting` (for a group of ranks, or for a row of
the weight matrix). Both consist of one concatenated array per dtype. A host's weight is the sum of its ranks' weights,
so the average of the partials equals the average of the ranks' values. Partials of float16 arrays are float32.

A host with one rank, whose arrays of each dtype are adjacent, needs no partial or result: MPI sends the current
arrays and receives into the spare arrays. MPI sends copies if the arrays may change meanwhile, or if the partial will
be overwritten. After an aborted command, MPI may still write into a spare array. The array is therefore kept until the
hosts begin another reduction; by then, the aborted reduction is over.

A `Weighting` within one host needs no transfer. `strategy` decides which reductions take this way.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Collection, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SynkhronosError
from ..kernels.copy import copy_into
from ..kernels.reduce import Own, Portion
from ..memory.attach import PoolMap
from ..memory.handles import Handle
from ..memory.pool import Pool
from ..reductions import ReduceOp, Weights
from ..sync.fetching import Fetcher, HostReduction
from ..sync.hosts import Hosts
from .base import Arrays, Key, Keys, Label, NameOf, Pending, TrafficCounter
from .common import beginning_with
from .layouts import EagerLayouts, Layout, PooledArray
from .shared_memory import SharedMemoryTransport
from .strategy import EQUAL, Algorithm, HostRoute, Kinds, Reduction, Weighting, eager_bytes_of, participants, strategy
from .value_buffers import ALIGNMENT_BYTES, ArrayBlock, ValueBuffers, kinds_of


class JoinedArrays(NamedTuple):
    """All arrays of one dtype in one padded buffer; ``begins`` maps an array's position to its offset in elements."""

    dtype: np.dtype[Any]
    size: int
    begins: Dict[int, int]


class Buffers(NamedTuple):
    """Memory for the partials and results of one collective.

    ``placed`` lists, for each `Weighting`, the partials by dtype and then the results; it is empty except on the first
    rank of a host. With ``gives``, this rank's arrays serve as partials; with ``takes``, the targets serve as results.
    """

    placed: List[PooledArray]
    gives: bool = False
    takes: bool = False


class HostPlan(NamedTuple):
    """One rank's work for a layout: its share per `Weighting`, and the locations of partials and results.

    A portion is None if this host contributes no values, or if the arrays of its only rank serve as partials. Each
    `Weighting` has ``pairs`` (handles of partial and result, by dtype), ``partials`` and ``results`` (views, by array).
    """

    portions: List[Optional[Portion]]
    pairs: List[List[Tuple[Handle, Handle]]]
    partials: List[List[NDArray[Any]]]
    results: List[List[NDArray[Any]]]


class Begun(NamedTuple):
    """State of a reduction that this rank has requested.

    ``own`` and ``place`` are the route and index of the `Weighting` whose result this rank receives. ``number``
    identifies the reduction for `Fetcher.finish` while it is in progress.
    """

    keys: Tuple[Any, ...]
    room: Buffers
    kinds: Kinds
    op: ReduceOp
    plan: HostPlan
    own: Optional[HostRoute]
    place: int
    number: Optional[int]


class HostTransport:
    """One rank's part in reductions over several hosts."""

    def __init__(self, hosts: Hosts, rank: int, pool: Pool, fetcher: Fetcher) -> None:
        self._hosts, self._rank, self._pool, self._fetcher = hosts, rank, pool, fetcher
        self._room: Dict[Tuple[Any, ...], Tuple[Tuple[Kinds, int], Dict[str, List[List[PooledArray]]]]] = {}
        self._under_way: Dict[Tuple[Any, ...], int] = {}  # numbers of reductions in progress, by keys
        self._lent: List[Any] = []  # MPI may be writing into these arrays

    def room(
        self,
        keys: Tuple[Any, ...],
        given: Sequence[PooledArray],
        targets: Sequence[PooledArray] = (),
        n_mixes: int = 1,
        gives: bool = False,
    ) -> Buffers:
        """Return memory for partials and results, and keep it for the keys until shapes, dtypes or ``n_mixes`` change.

        An abandoned reduction into the same memory is completed first. ``targets`` are the arrays for this rank's
        results, if already known. With ``gives``, MPI may send the arrays themselves, which do not change.
        """
        self._release(keys)
        if self._rank != self._hosts.near[0]:
            return Buffers([])
        kinds = kinds_of([each.array for each in given])
        kept = self._room.get(keys)
        if kept is None or kept[0] != (kinds, n_mixes):
            kept = self._room[keys] = (kinds, n_mixes), {}
        flat, placed = together(kinds), []
        is_alone, has_halves = len(self._hosts.near) == 1, any(dtype == np.float16 for _, dtype in kinds)
        found = [joined(given, flat) if is_alone and gives and not has_halves else None]
        found.append(joined(targets, flat) if is_alone and targets else None)
        for name, own in zip(("partials", "results"), found):
            if own is None and name not in kept[1]:
                wide = np.dtype(np.float32)
                of_each = [
                    ((each.size,), wide if name == "partials" and each.dtype == np.float16 else each.dtype)
                    for each in flat
                ]
                kept[1][name] = [ArrayBlock(self._pool, of_each).placed for _ in range(n_mixes)]
            placed.append(kept[1][name] if own is None else [own] * n_mixes)
        gave, took = (own is not None for own in found)
        return Buffers([each for pair in zip(*placed) for some in pair for each in some], gave, took)

    def forget(self, things: Collection[Key]) -> None:
        for keys in {*self._room, *self._under_way}:
            if beginning_with(things, keys):
                self._release(keys)
                self._room.pop(keys, None)

    def _release(self, keys: Tuple[Any, ...]) -> None:
        """Wait until a reduction into the memory of these keys, if any, has ended; ignore its result."""
        if keys in self._under_way:
            try:
                self._fetcher.finish(self._under_way[keys])
            except SynkhronosError:
                pass
            del self._under_way[keys]

    def begin(
        self,
        layout: Layout,
        keys: Tuple[Any, ...],
        room: Buffers,
        arrays: Sequence[NDArray[Any]],
        reduction: Reduction,
        ways: Sequence[HostRoute],
        meanwhile: bool = False,
        lent: Sequence[NDArray[Any]] = (),
    ) -> Begun:
        """Compute this rank's share of its host's partials, and request their reduction over hosts.

        ``layout`` lists the arrays, then the memory of ``room``. With ``meanwhile``, return once the reduction is in
        progress; the arrays may change from then on. ``lent`` is result memory (if ``room.takes``), kept until the
        reduction is over.
        """
        op, mixes, wire, leaves_errors = reduction
        kinds, key = kinds_of(arrays), ("over hosts", room.gives, *ways)
        plan = layout.plans.get(key)
        if plan is None:
            plan = layout.plans[key] = self._plan(layout, kinds, ways, room.gives)
        near, parts, place = self._hosts.near, [], -1
        for i, (mix, way, portion, pairs) in enumerate(zip(mixes, ways, plan.portions, plan.pairs)):
            if mix.destinations is None or self._rank in mix.destinations:
                place = i
            if portion is not None:
                portion.combine(op, None if mix.weights is None else [mix.weights[rank] for rank in near])
            if not way.is_local:
                weights = self._weights(mix.weights, way.sources) if op.name == "avg" else None
                parts += [
                    HostReduction(partial, result, op, weights, way.sources, way.destinations, wire, leaves_errors)
                    for partial, result in pairs
                ]
        self._lent += lent
        number = self._fetcher.all_reduce(parts, meanwhile)
        self._lent = []
        if meanwhile:
            self._under_way[keys] = number
        own = ways[place] if place >= 0 else None
        return Begun(keys, room, kinds, op, plan, own, place, number if meanwhile else None)

    def finish(
        self, begun: Begun, targets: Sequence[NDArray[Any]], errors: Sequence[NDArray[Any]] = ()
    ) -> Tuple[float, float]:
        """Copy this rank's results into ``targets``; return the bytes that it has read and written.

        ``errors`` is overwritten with this rank's part of its host's encoding errors, if the host participated.
        """
        if begun.number is not None:
            try:
                self._fetcher.finish(begun.number)
            except SynkhronosError:
                self._under_way.pop(begun.keys, None)
                raise
            self._under_way.pop(begun.keys, None)
        near, own = self._hosts.near, begun.own
        shares = sum(portion.nbytes for portion in begun.plan.portions if portion is not None)
        if own is None:
            return shares * (len(near) - 1), shares
        if not begun.room.takes:
            for target, result in zip(targets, begun.plan.results[begun.place]):
                copy_into(target, result)
        if errors and self._hosts.own in own.sources:
            for error, left_out in zip(errors, begun.plan.partials[begun.place]):
                if own.is_local:
                    error[...] = 0
                    continue
                np.divide(left_out.reshape(error.shape), len(near) if begun.op.name == "sum" else 1, out=error)
        return shares * (len(near) - 1) + sum(target.nbytes for target in targets), shares

    def _plan(self, layout: Layout, kinds: Kinds, ways: Sequence[HostRoute], gives: bool) -> HostPlan:
        near, parts_in_one = self._hosts.near, together(kinds)
        plan = HostPlan([], [], [], [])
        handles = layout.handles[near[0]]
        parts = [[layout.array(rank, i) for rank in near] for i in range(len(kinds))]
        position = len(kinds)
        for way in ways:
            partials: List[Any] = [None] * len(kinds)
            results: List[Any] = [None] * len(kinds)
            pairs = []
            for j, each in enumerate(parts_in_one, position):
                of_result = j + len(parts_in_one)
                partial, result = handles[j], handles[of_result]
                assert partial is not None and result is not None
                pairs.append((partial, result))
                for i, low in each.begins.items():
                    high = low + math.prod(kinds[i][0])
                    partials[i] = layout.array(near[0], j)[low:high]
                    results[i] = layout.array(near[0], of_result)[low:high].reshape(kinds[i][0])
            position += 2 * len(parts_in_one)
            portion = None
            if self._hosts.own in way.sources and (way.is_local or not gives):
                targets = [result.reshape(-1) for result in results] if way.is_local else partials
                portion = Portion(parts, [[target] for target in targets], near.index(self._rank), len(near))
            plan.portions.append(portion)
            plan.pairs.append(pairs)
            plan.partials.append(partials)
            plan.results.append(results)
        return plan

    def _weights(self, weights: Optional[Sequence[float]], sources: Sequence[int]) -> Tuple[float, ...]:
        """Return the hosts' weights. If all weights are 0, ranks are weighted equally."""
        ranks = [self._hosts.ranks[host] for host in sources]
        if weights is None or not any(weights):
            return tuple(float(len(of_host)) for of_host in ranks)
        exponent = math.frexp(max(weights))[1]  # scaling by a power of 2 is exact and avoids overflow of the sum
        return tuple(math.fsum(math.ldexp(weights[rank], -exponent) for rank in of_host) for of_host in ranks)


class HostsTransport(SharedMemoryTransport):
    """Collectives over several hosts: a rank fetches other hosts' arrays, and writes only to its own host's memory."""

    _layouts: EagerLayouts
    reads_whole = True

    def __init__(self, hosts: Hosts, fetcher: Fetcher, *memory: Any) -> None:
        super().__init__(*memory)
        self.near, self.far, self._hosts = hosts.near, hosts.far, hosts
        self._over_hosts = HostTransport(hosts, self.rank, self.pool, fetcher)
        self.traffic = TrafficCounter(lambda: fetcher.received, self.rank == self.near[0])
        self._layouts = EagerLayouts(self.pools, self.far, self.traffic.arrive)
        self.home = self.root if self.root in self.near else self.near[0]
        self.weights_of_parts = [float(rank in hosts.ranks[0]) for rank in self.everybody]  # equal bits on all hosts
        self.common.is_open = any(len(ranks) > 1 for ranks in hosts.ranks)
        self.common.always_copies = True  # so that all hosts write to their spare arrays

    def forget(self, things: Collection[Key]) -> None:
        super().forget(things)
        self._over_hosts.forget(things)

    def _layout(
        self,
        placed: Sequence[Optional[PooledArray]],
        label: Optional[str] = None,
        n_given: int = 0,
        results: Tuple[Weighting, ...] = EQUAL,
    ) -> Layout:
        notice = self._layouts.notice(placed, label, n_given, eager_bytes_of(self._hosts, results))
        return self._layouts.of(self.barrier.exchange(notice, self.pool, self.pools))

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
        algorithm, routes = strategy(kinds_of(arrays), reduction, self._hosts, True)
        if algorithm is Algorithm.HOSTS:
            into = into or keys
            return self.finish(self._begin(keys, arrays, reduction, routes, name_of, into), into, errors)
        if algorithm is Algorithm.OWN and reduction.wire is None and all([a.flags.c_contiguous for a in arrays]):
            promise()
        return super().all_reduce(keys, arrays, reduction, name_of, into, errors)

    def start(self, keys: Keys, arrays: Arrays, reduction: Reduction, name_of: NameOf) -> Any:
        algorithm, routes = strategy(kinds_of(arrays), reduction, self._hosts, True)
        if algorithm is Algorithm.HOSTS:
            return self._begin(keys, arrays, reduction, routes, name_of)
        self._layout(self._current(keys, arrays)).check(range(len(keys)), name_of)  # some may have begun
        return super().start(keys, arrays, reduction, name_of)

    def finish(self, started: Any, into: Keys, errors: Arrays = ()) -> Pending:
        if not isinstance(started, Begun):
            return super().finish(started, into, errors)
        results: List[Any] = [None] * len(started.kinds)
        if started.own is not None:
            results = [spare.array for spare in self._spares(into, started.kinds)]
        self.traffic.add(*self._over_hosts.finish(started, results, errors))
        return results

    def _begin(
        self,
        keys: Keys,
        arrays: Arrays,
        reduction: Reduction,
        routes: Sequence[HostRoute],
        name_of: NameOf,
        into: Optional[Keys] = None,
    ) -> Begun:
        """Start a reduction over hosts; without ``into``, the arrays may change, and other collectives may run."""
        meanwhile = into is None
        given: List[Any] = list(self._current(keys, arrays))
        targets: List[PooledArray] = []
        if into is not None and reduction.receives(self.rank):
            targets = self._spares(into, kinds_of(arrays))
        names = tuple([(*key, "started") for key in keys] if meanwhile else keys)
        gives = not (meanwhile or reduction.keeps_errors)
        room = self._over_hosts.room(names, given, targets, len(reduction.results), gives)
        lent = []
        if into is not None and room.takes:  # spare again after the reduction, unless the command is aborted
            lent = [spare.array for spare in targets]
            for key in into:
                self._slots[key].spare = None
        layout = self._layout([*given, *room.placed])
        layout.check(range(len(keys)), name_of)
        begun = self._over_hosts.begin(layout, names, room, arrays, reduction, routes, meanwhile, lent)
        if into is not None:
            for key, spare in zip(into, targets):
                self._slots[key].spare = spare
        return begun

    def all_reduce_values(
        self, key: Key, arrays: Arrays, op: ReduceOp, weights: Weights, label: Label
    ) -> List[np.ndarray[Any, Any]]:
        kinds, reduction = kinds_of(arrays), Reduction(op, (Weighting(None if weights is None else tuple(weights)),))
        algorithm, routes = strategy(kinds, reduction, self._hosts, False)
        if algorithm is not Algorithm.HOSTS:
            return super().all_reduce_values(key, arrays, op, weights, label)
        buffers = self._values.get(key)
        if buffers is None or buffers.kinds != kinds:
            buffers = self._new_buffers(key, kinds, label, False)
        staged, result = buffers.stage(arrays, {}), buffers.result()
        lent = result.lend()
        room = self._over_hosts.room((key,), staged, result.placed, gives=True)
        layout = self._layout([*staged, *room.placed], buffers.label)
        layout.check(range(len(kinds)), buffers.name)
        begun = self._over_hosts.begin(layout, (key,), room, arrays, reduction, routes, lent=lent)
        self.traffic.add(*self._over_hosts.finish(begun, lent))
        return lent

    def reduce_parts(
        self, key: Key, arrays: Arrays, op: ReduceOp, weights: Weights, label: Label
    ) -> List[np.ndarray[Any, Any]]:
        whole = self.all_reduce_values(key, arrays, op, weights, label)
        return [array.reshape(-1)[slice(*self.part(array.size))] for array in whole]

    def _note_copies(self, keys: Keys, layout: Layout) -> None:
        for i, key in enumerate(keys if self.rank == self.root else ()):
            slot, copies = self.common.slots[key], [layout.handles[ranks[0]][i] for ranks in self._hosts.ranks[1:]]
            if slot.spare is not None:
                slot.spare = slot.spare._replace(copies=copies)  # type: ignore[arg-type]

    def _shared(self, keys: Keys, layout: Layout, chosen: Sequence[int]) -> List[np.ndarray[Any, Any]]:
        """Return the chosen arrays of the root in common memory; the other hosts fetch them once."""
        is_elsewhere, offered, positions = self.home != self.root, [], list(chosen)
        if chosen and is_elsewhere and self.rank == self.home:
            self._fetch(layout, chosen, [rank == self.root for rank in self.everybody])
            offered = self._offered([keys[i] for i in chosen], [layout.array(self.root, i) for i in chosen])
        elsewhere = self._layout(offered) if chosen else layout
        self._note_copies([keys[i] for i in chosen], elsewhere)
        if is_elsewhere:
            layout, positions = elsewhere, list(range(len(chosen)))
        return [self._mapped(keys[i], layout, j).array for i, j in zip(chosen, positions)]

    def _portion_of(
        self, layout: Layout, positions: Sequence[int], n: int, result: Weighting
    ) -> Tuple[Portion, Sequence[int]]:
        """Return this rank's share of what its host receives; if ``layout.is_all_eager``, its own results."""
        everybody, near = self.everybody, (self.rank,) if layout.is_all_eager else self.near
        whole: Sequence[int] = everybody if result.destinations is None else result.destinations
        destinations = tuple([rank for rank in whole if rank in near])
        contributors = tuple([rank for rank in result.contributors or everybody if rank in near]) or destinations
        portion = Portion([], [], 0, 1)
        if destinations:
            portion, _ = super()._portion_of(layout, positions, n, Weighting(None, destinations, contributors))
        return self._fetched(portion, layout, n), (self.rank,) if layout.is_all_eager else whole

    def _values_plan(
        self, layout: Layout, buffers: ValueBuffers, counting: Optional[Tuple[bool, ...]]
    ) -> Tuple[Portion, List[np.ndarray[Any, Any]]]:
        portion, own = super()._values_plan(layout, buffers, counting)
        return self._fetched(portion, layout, len(buffers.kinds)), own

    def _fetched(self, portion: Portion, layout: Layout, n: int) -> Any:
        return FetchedPortion(portion, self.pools, self._far_handles(layout, range(n) if portion.nbytes else ()))

    def _fetch(self, layout: Layout, positions: Iterable[int], counting: Optional[Sequence[bool]] = None) -> None:
        self.pools.fetch(handle for _, handle in self._far_handles(layout, positions, counting))

    def _far_handles(
        self, layout: Layout, positions: Iterable[int], counting: Optional[Sequence[bool]] = None
    ) -> List[Tuple[int, Any]]:
        """Return rank and handle of participating ranks' arrays on other hosts that did not arrive with the notices."""
        ranks = [rank for rank in self.far if counting is None or counting[rank]]
        return [(rank, layout.handles[rank][i]) for i in positions for rank in ranks if not layout.is_eager(rank, i)]


class FetchedPortion:
    """A `Portion` that first fetches the other hosts' arrays, given as ranks and handles, whenever it reduces."""

    def __init__(self, portion: Portion, pools: PoolMap, far: Sequence[Tuple[int, Any]]) -> None:
        self.nbytes, self._portion, self._pools, self._far = portion.nbytes, portion, pools, far

    def combine(self, op: ReduceOp, weights: Weights, own: Own = None) -> None:
        counting = participants(weights)
        self._pools.fetch(handle for rank, handle in self._far if counting is None or counting[rank])
        self._portion.combine(op, weights, own)


def together(kinds: Kinds) -> List[JoinedArrays]:
    """Group arrays by dtype, in order of first appearance, each array aligned to a cache line.

    >>> [(each.size, each.begins) for each in together([((3,), np.dtype("f4")), ((2, 2), np.dtype("f4"))])]
    [(20, {0: 0, 1: 16})]
    """
    found: Dict[np.dtype[Any], JoinedArrays] = {}
    for i, (shape, dtype) in enumerate(kinds):
        size, begins = found.get(dtype, JoinedArrays(dtype, 0, {}))[1:]
        unit = max(1, ALIGNMENT_BYTES // dtype.itemsize)
        begin = -(-size // unit) * unit
        found[dtype] = JoinedArrays(dtype, begin + math.prod(shape), {**begins, i: begin})
    return list(found.values())


def joined(placed: Sequence[PooledArray], of_dtypes: Sequence[JoinedArrays]) -> Optional[List[PooledArray]]:
    """Return a rank's arrays joined by dtype, if they are laid out as in `together`; otherwise None.

    Each result keeps the stamp of its first array, which stays unique because the kinds determine all other offsets.
    """
    found = []
    for each in of_dtypes:
        there = [i for i in each.begins if placed[i].array.size] or list(each.begins)
        first = placed[there[0]]
        for i in there:
            handle, begin = placed[i].handle, each.begins[i]
            if handle.strides is not None or handle.offset != first.handle.offset + begin * each.dtype.itemsize:
                return None
        found.append(first._replace(handle=first.handle._replace(shape=(each.size,))))
    return found
