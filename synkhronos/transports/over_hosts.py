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
the collective follow one another. The weight of a host is the sum of its ranks' weights; so an average is the average
of averages, which lies between the least and the greatest value, too.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.copy import copy_into
from ..kernels.reduce import Portion
from ..memory.handles import Handle
from ..memory.pool import Pool
from ..reductions import COMBINING, ReduceOp
from ..sync.hosts import Hosts
from .layouts import Layout, Placed
from .value_buffers import ALIGNMENT_BYTES, Region, kinds_of

AllReduce = Callable[[Sequence[Tuple[Handle, Handle]], ReduceOp, Optional[Sequence[float]]], None]
Kinds = Sequence[Tuple[Tuple[int, ...], np.dtype[Any]]]

#: Bytes of all arrays from which on this is worth two messages between processes of a host.
TAKEN_BYTES = 1 << 16

#: Dtypes that the arrays of one collective may have.
MAX_DTYPES = 4


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


class Plan(NamedTuple):
    """What a rank does for a layout: its share, what it is told to ask for, and where it finds the results."""

    portion: Portion
    pairs: List[Tuple[Handle, Handle]]
    results: List[NDArray[Any]]


class OverHosts:
    """One rank's part.

    Parameters
    ----------
    hosts : Hosts
    rank : int
    pool : Pool
        This rank's memory.
    all_reduce : callable
        `sync.fetching.Fetcher.all_reduce`.
    """

    def __init__(self, hosts: Hosts, rank: int, pool: Pool, all_reduce: AllReduce) -> None:
        self._hosts, self._rank, self._pool, self._all_reduce = hosts, rank, pool, all_reduce
        self._room: Dict[Tuple[Any, ...], Tuple[Kinds, List[Placed]]] = {}

    def takes(self, arrays: Sequence[NDArray[Any]], op: ReduceOp, weights: Optional[Sequence[float]]) -> bool:
        """Return whether arrays are reduced in this way: the same on all ranks, whose arrays must be alike."""
        if op.name not in COMBINING or (weights is not None and op.name != "avg"):
            return False
        dtypes = {array.dtype for array in arrays}
        return (
            sum(array.nbytes for array in arrays) >= TAKEN_BYTES
            and len(dtypes) <= MAX_DTYPES
            and all(dtype.kind in "fiu" and dtype.isnative and dtype != np.float16 for dtype in dtypes)
        )

    def room(self, keys: Tuple[Any, ...], arrays: Sequence[NDArray[Any]]) -> List[Placed]:
        """Return memory for partial results, and for results, on the first rank of a host; nothing on others."""
        if self._rank != self._hosts.near[0]:
            return []
        kinds = kinds_of(arrays)
        kept = self._room.get(keys)
        if kept is None or kept[0] != kinds:
            flat = [((each.size,), each.dtype) for each in together(kinds)]
            kept = self._room[keys] = kinds, [*Region(self._pool, flat).placed, *Region(self._pool, flat).placed]
        return kept[1]

    def forget(self, prefix: Tuple[Any, ...]) -> None:
        """Give back the memory for keys that begin so."""
        for keys in [keys for keys in self._room if any(key[: len(prefix)] == prefix for key in keys)]:
            del self._room[keys]

    def all_reduce(
        self,
        layout: Layout,
        targets: Sequence[NDArray[Any]],
        begin: int,
        op: ReduceOp,
        weights: Optional[Sequence[float]],
    ) -> Tuple[float, float]:
        """Reduce the arrays of a layout into this rank's own; return how many bytes it has read of others, and written.

        Parameters
        ----------
        layout : Layout
        targets : list of ndarray
            What takes the results.
        begin : int
            The position in the layout of what `room` has returned.
        op : ReduceOp
        weights : sequence of float, optional
            Of the ranks.
        """
        plan = layout.plans.get(("over hosts",))
        if plan is None:
            plan = layout.plans["over hosts",] = self._plan(layout, kinds_of(targets), begin)
        near = self._hosts.near
        plan.portion.combine(op, None if weights is None else [weights[rank] for rank in near])
        self._all_reduce(plan.pairs, op, self._weights(weights) if op.name == "avg" else None)
        for target, result in zip(targets, plan.results):
            copy_into(target, result)
        nbytes = sum(target.nbytes for target in targets)
        return plan.portion.nbytes * (len(near) - 1) + nbytes, plan.portion.nbytes

    def _plan(self, layout: Layout, kinds: Kinds, begin: int) -> Plan:
        near, parts_in_one = self._hosts.near, together(kinds)
        partials: List[Any] = [None] * len(kinds)
        results: List[Any] = [None] * len(kinds)
        pairs = []
        for position, each in enumerate(parts_in_one, begin):
            of_result = position + len(parts_in_one)
            handles = layout.handles[near[0]]
            partial, result = handles[position], handles[of_result]
            assert partial is not None and result is not None
            pairs.append((partial, result))
            for i, low in each.begins.items():
                high = low + math.prod(kinds[i][0])
                partials[i] = layout.array(near[0], position)[low:high]
                results[i] = layout.array(near[0], of_result)[low:high].reshape(kinds[i][0])
        parts = [[layout.array(rank, i) for rank in near] for i in range(len(kinds))]
        portion = Portion(parts, [[partial] for partial in partials], near.index(self._rank), len(near))
        return Plan(portion, pairs, results)

    def _weights(self, weights: Optional[Sequence[float]]) -> List[float]:
        """Return the weights of the hosts: if those of all ranks are 0, they count the same."""
        if weights is None or not any(weights):
            return [float(len(ranks)) for ranks in self._hosts.ranks]
        exponent = math.frexp(max(weights))[1]  # by a power of 2, which is exact: the sum of huge ones is not infinite
        return [math.fsum(math.ldexp(weights[rank], -exponent) for rank in ranks) for ranks in self._hosts.ranks]


def together(kinds: Kinds) -> List[Together]:
    """Return arrays by dtype, in the order in which they come, each beginning with a cache line.

    Examples
    --------
    >>> [(each.size, each.begins) for each in together([((3,), np.dtype("f4")), ((2, 2), np.dtype("f4"))])]
    [(32, {0: 0, 1: 16})]
    """
    found: Dict[np.dtype[Any], Together] = {}
    for i, (shape, dtype) in enumerate(kinds):
        size, begins = found.get(dtype, Together(dtype, 0, {}))[1:]
        unit = max(1, ALIGNMENT_BYTES // dtype.itemsize)
        end = size + -(-math.prod(shape) // unit) * unit
        found[dtype] = Together(dtype, end, {**begins, i: size})
    return list(found.values())
