"""Large reductions over several hosts: each host reduces its ranks' arrays, and the bridges do the rest.

::

    host 0: ranks 0, 1                                      host 1: ranks 2, 3
    current arrays x_0, x_1 --+                             current arrays x_2, x_3 --+
                              v  each rank its share                                  v
    partial [ rank 0 | rank 1 ] <------ the bridges ------> partial [ rank 2 | rank 3 ]
    result  [                 ]                             result  [                 ]
                              v  each rank copies                                     v
    spare arrays of ranks 0, 1                              spare arrays of ranks 2, 3

Partial and result lie in the memory of the first rank of each host: for each dtype one array, in which all arrays of
the collective follow one another, and that again for each mix of the ranks' values (groups, rows of a matrix). The
weight of a host is the sum of its ranks' weights; so an average is the average of averages, which lies between the
least and the greatest value, too. Partials of float16 are of float32.

A rank that is alone on its host needs neither, if its arrays of a dtype lie in one piece: one array does, and so do the
values of a collective inside a function. Then MPI sends what is in the current arrays, and writes into the spare ones.
(If the value may change meanwhile, or the partial be overwritten, copies are made all the same.) A spare array into
which MPI may still write, because the command was given up, takes nothing else: it is kept aside until hosts have
begun another reduction, which none does before its courier has let go of the last one.

A mix of ranks of one host is its result at once, and nothing of it travels. If ranks would fetch fewer bytes of each
other's arrays than hosts would exchange of partials and results, they do that instead.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SynkhronosError
from ..kernels.copy import copy_into
from ..kernels.reduce import Portion
from ..memory.handles import Handle
from ..memory.pool import Pool
from ..reductions import COMBINING, ReduceOp
from ..sync.fetching import Fetcher, Part
from ..sync.hosts import Hosts
from .base import Mix
from .layouts import Layout, Placed
from .value_buffers import ALIGNMENT_BYTES, Region, kinds_of

Kinds = Sequence[Tuple[Tuple[int, ...], "np.dtype[Any]"]]

#: Bytes of all arrays from which on this is worth two messages between processes of a host.
TAKEN_BYTES = 1 << 16

#: What one collective may reduce separately: for each mix, and for each dtype.
MAX_PARTS = 16


class Way(NamedTuple):
    """Hosts that a mix is about.

    Attributes
    ----------
    givers, takers : tuple of int
        Those with ranks that count, and those with ranks that take the result.
    """

    givers: Tuple[int, ...]
    takers: Tuple[int, ...]

    @property
    def is_local(self) -> bool:
        """Whether nothing has to travel."""
        return self.givers == self.takers and len(self.givers) == 1


class Together(NamedTuple):
    """Arrays of one dtype in one.

    Attributes
    ----------
    dtype : dtype
    size : int
        Elements of all, with what is left between them.
    begins : dict of int to int
        By the array's position, the element with which it begins.
    """

    dtype: np.dtype[Any]
    size: int
    begins: Dict[int, int]


class Room(NamedTuple):
    """Memory for one collective.

    Attributes
    ----------
    placed : list of Placed
        By mix the partials, by dtype, and the results; none on ranks that are not the first of their host.
    gives, takes : bool
        Whether the partials are this rank's arrays themselves, and the results what takes them.
    """

    placed: List[Placed]
    gives: bool = False
    takes: bool = False


class Plan(NamedTuple):
    """What a rank does for a layout: by mix its share, and where the arrays lie in partials and results.

    Attributes
    ----------
    portions : list of (Portion or None)
        None for a mix to which this host gives nothing, or its only rank's arrays as they are.
    pairs : list of list of (Handle, Handle)
        Of partials and results, by dtype.
    partials, results : list of list of ndarray
        By array.
    """

    portions: List[Optional[Portion]]
    pairs: List[List[Tuple[Handle, Handle]]]
    partials: List[List[NDArray[Any]]]
    results: List[List[NDArray[Any]]]


class Begun(NamedTuple):
    """A reduction that this rank has asked for.

    Attributes
    ----------
    keys : tuple of keys
        Of its room.
    room : Room
    kinds : list of (shape, dtype)
        Of the arrays.
    op : ReduceOp
    plan : Plan
    own : Way, optional
        That of the mix that this rank takes.
    place : int
        And its position among the mixes.
    number : int, optional
        By which `Fetcher.finish` knows it, if it is under way.
    """

    keys: Tuple[Any, ...]
    room: Room
    kinds: Kinds
    op: ReduceOp
    plan: Plan
    own: Optional[Way]
    place: int
    number: Optional[int]


class OverHosts:
    """One rank's part.

    Parameters
    ----------
    hosts : Hosts
    rank : int
    pool : Pool
        This rank's memory.
    fetcher : Fetcher
    """

    def __init__(self, hosts: Hosts, rank: int, pool: Pool, fetcher: Fetcher) -> None:
        self._hosts, self._rank, self._pool, self._fetcher = hosts, rank, pool, fetcher
        self._room: Dict[Tuple[Any, ...], Tuple[Tuple[Kinds, int], Dict[str, List[List[Placed]]]]] = {}
        self._under_way: Dict[Tuple[Any, ...], int] = {}  # numbers of reductions, by the keys of their room
        self._lent: List[Any] = []  # what MPI may write into

    def ways(
        self,
        arrays: Sequence[NDArray[Any]],
        op: ReduceOp,
        mixes: Sequence[Mix],
        is_coded: bool = False,
        keeps_errors: bool = False,
    ) -> Optional[List[Way]]:
        """Return how mixes of arrays are reduced over hosts; None if ranks had better fetch what they need.

        It is the same on all ranks, whose arrays must be alike.

        Parameters
        ----------
        arrays, op, mixes
            As of `Transport.all_reduce`.
        is_coded : bool
            Whether values are to travel in 16 bits.
        keeps_errors : bool
            And each host's error to be kept by its ranks. So every rank must take the result of what it gives to, as
            in groups, and of nothing else.
        """
        if op.name not in COMBINING or (op.name != "avg" and any(mix.weights for mix in mixes)):
            return None
        dtypes = {array.dtype for array in arrays}
        nbytes = sum(array.nbytes for array in arrays)
        if (
            nbytes < TAKEN_BYTES
            or len(dtypes) * len(mixes) > MAX_PARTS
            or not all(dtype.kind in "fiu" and dtype.isnative for dtype in dtypes)
            or (is_coded and not dtypes <= {np.dtype(np.float32), np.dtype(np.float64)})
        ):
            return None
        counting = [self._counting(mix) for mix in mixes]
        ways = [self._way(mix, ranks) for mix, ranks in zip(mixes, counting)]
        if all(way.is_local for way in ways):
            return None
        if keeps_errors and not all(
            mix.takers is None or {*some} <= {*mix.takers} for mix, some in zip(mixes, counting)
        ):
            return None
        halves = sum(array.nbytes for array in arrays if array.dtype == np.float16)
        given, taken = (2 * sum(array.size for array in arrays),) * 2 if is_coded else (nbytes + halves, nbytes)
        return ways if self._exchanged(ways, given, taken) <= self._fetched(ways, counting, nbytes) else None

    def _counting(self, mix: Mix) -> Sequence[int]:
        """Return the ranks that count; all if none has a weight."""
        everybody = range(self._hosts.size)
        if mix.weights is None or not any(mix.weights):
            return everybody
        return [rank for rank in everybody if mix.weights[rank]]

    def _way(self, mix: Mix, counting: Sequence[int]) -> Way:
        def with_any(some: Sequence[int]) -> Tuple[int, ...]:
            return tuple(host for host, ranks in enumerate(self._hosts.ranks) if not {*ranks}.isdisjoint(some))

        return Way(with_any(counting), with_any(range(self._hosts.size) if mix.takers is None else mix.takers))

    def _exchanged(self, ways: Sequence[Way], given: float, taken: float) -> float:
        """Return the bytes that reach the host that most reach, of partials and results of so many."""
        return max(
            sum(
                (given * (len(way.givers) - (host in way.givers)) + taken * (len(way.takers) - 1)) / len(way.takers)
                for way in ways
                if host in way.takers
            )
            for host in range(len(self._hosts.ranks))
        )

    def _fetched(self, ways: Sequence[Way], counting: Sequence[Sequence[int]], nbytes: int) -> int:
        """Return them for ranks that fetch each other's arrays, of so many bytes."""
        most = 0
        for host, ranks in enumerate(self._hosts.ranks):
            needed: Set[int] = set().union(*[some for way, some in zip(ways, counting) if host in way.takers])
            most = max(most, len(needed.difference(ranks)))
        return most * nbytes

    def room(
        self,
        keys: Tuple[Any, ...],
        given: Sequence[Placed],
        targets: Sequence[Placed] = (),
        n_mixes: int = 1,
        gives: bool = False,
    ) -> Room:
        """Return memory for partial results, and for results.

        It is kept for the keys until shapes, dtypes or mixes are others, or they are forgotten. If a reduction into
        it is under way, though nobody waits for it, it is over then.

        Parameters
        ----------
        keys : tuple of keys
        given : list of Placed
            This rank's arrays.
        targets : list of Placed, optional
            What takes the results of the one mix that this rank takes, if that is known already.
        n_mixes : int
        gives : bool
            Whether hosts may send the arrays themselves: they neither change nor are overwritten.
        """
        self._let_go(keys)
        if self._rank != self._hosts.near[0]:
            return Room([])
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
                kept[1][name] = [Region(self._pool, of_each).placed for _ in range(n_mixes)]
            placed.append(kept[1][name] if own is None else [own] * n_mixes)
        gave, took = (own is not None for own in found)
        return Room([each for pair in zip(*placed) for some in pair for each in some], gave, took)

    def forget(self, prefix: Tuple[Any, ...]) -> None:
        """Give back the memory for keys that begin so."""
        for keys in {*self._room, *self._under_way}:
            if any(key[: len(prefix)] == prefix for key in keys):
                self._let_go(keys)
                self._room.pop(keys, None)

    def _let_go(self, keys: Tuple[Any, ...]) -> None:
        """Wait until no reduction into the memory of these keys is under way, however it ends."""
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
        room: Room,
        arrays: Sequence[NDArray[Any]],
        op: ReduceOp,
        mixes: Sequence[Mix],
        ways: Sequence[Way],
        wire: Optional[str] = None,
        leaves_errors: bool = False,
        meanwhile: bool = False,
        lent: Sequence[NDArray[Any]] = (),
    ) -> Begun:
        """Make this rank's share of its host's partials, and have hosts reduce these.

        Parameters
        ----------
        layout : Layout
            Of the arrays, followed by those of the room.
        keys : tuple of keys
            Of the room.
        room : Room
        arrays, op, mixes
            As of `Transport.all_reduce`.
        ways : sequence of Way
            As `ways` has returned them.
        wire : str, optional
            How values travel between hosts: as of `launchers.hosts.all_reduce.Reduction`.
        leaves_errors : bool
            Likewise.
        meanwhile : bool
            Whether to return as soon as the reduction is under way; the arrays may change then.
        lent : sequence of ndarray
            Memory of the results, if the room takes them: nobody else may write there, and nothing else refers to it.
        """
        kinds, key = kinds_of(arrays), ("over hosts", room.gives, *ways)
        plan = layout.plans.get(key)
        if plan is None:
            plan = layout.plans[key] = self._plan(layout, kinds, ways, room.gives)
        near, parts, place = self._hosts.near, [], -1
        for i, (mix, way, portion, pairs) in enumerate(zip(mixes, ways, plan.portions, plan.pairs)):
            if mix.takers is None or self._rank in mix.takers:
                place = i
            if portion is not None:
                portion.combine(op, None if mix.weights is None else [mix.weights[rank] for rank in near])
            if not way.is_local:
                weights = self._weights(mix.weights, way.givers) if op.name == "avg" else None
                parts += [
                    Part(partial, result, op, weights, way.givers, way.takers, wire, leaves_errors)
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
        self, begun: Begun, targets: Sequence[NDArray[Any]], errors: Optional[Sequence[NDArray[Any]]] = None
    ) -> Tuple[float, float]:
        """Copy the results that this rank takes; return how many bytes it has read of others, and written.

        Parameters
        ----------
        begun : Begun
        targets : list of ndarray
            What takes the results.
        errors : list of ndarray, optional
            What takes this rank's part of what its host has left out of its partial; they stay as they are if nothing
            of this host has counted.
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
        if errors is not None and self._hosts.own in own.givers:
            for error, left_out in zip(errors, begun.plan.partials[begun.place]):
                if own.is_local:
                    error[...] = 0
                    continue
                np.divide(left_out.reshape(error.shape), len(near) if begun.op.name == "sum" else 1, out=error)
        return shares * (len(near) - 1) + sum(target.nbytes for target in targets), shares

    def _plan(self, layout: Layout, kinds: Kinds, ways: Sequence[Way], gives: bool) -> Plan:
        near, parts_in_one = self._hosts.near, together(kinds)
        plan = Plan([], [], [], [])
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
            if self._hosts.own in way.givers and (way.is_local or not gives):
                targets = [result.reshape(-1) for result in results] if way.is_local else partials
                portion = Portion(parts, [[target] for target in targets], near.index(self._rank), len(near))
            plan.portions.append(portion)
            plan.pairs.append(pairs)
            plan.partials.append(partials)
            plan.results.append(results)
        return plan

    def _weights(self, weights: Optional[Sequence[float]], givers: Sequence[int]) -> Tuple[float, ...]:
        """Return the weights of hosts: if those of all ranks are 0, they count the same."""
        ranks = [self._hosts.ranks[host] for host in givers]
        if weights is None or not any(weights):
            return tuple(float(len(of_host)) for of_host in ranks)
        exponent = math.frexp(max(weights))[1]  # by a power of 2, which is exact: the sum of huge ones is not infinite
        return tuple(math.fsum(math.ldexp(weights[rank], -exponent) for rank in of_host) for of_host in ranks)


def together(kinds: Kinds) -> List[Together]:
    """Return arrays by dtype, in the order in which they come, each beginning with a cache line.

    Examples
    --------
    >>> [(each.size, each.begins) for each in together([((3,), np.dtype("f4")), ((2, 2), np.dtype("f4"))])]
    [(20, {0: 0, 1: 16})]
    """
    found: Dict[np.dtype[Any], Together] = {}
    for i, (shape, dtype) in enumerate(kinds):
        size, begins = found.get(dtype, Together(dtype, 0, {}))[1:]
        unit = max(1, ALIGNMENT_BYTES // dtype.itemsize)
        begin = -(-size // unit) * unit
        found[dtype] = Together(dtype, begin + math.prod(shape), {**begins, i: begin})
    return list(found.values())


def joined(placed: Sequence[Placed], of_dtypes: Sequence[Together]) -> Optional[List[Placed]]:
    """Return a rank's arrays by dtype, if they lie in memory as `together` has them; else None.

    They have the stamps of their first ones. So the same stamps never stand for other places: what the others are and
    where they lie is known by the kinds of all.
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
