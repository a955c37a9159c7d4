"""The strategy of a reduction: one pure function of its values' sizes and dtypes, the hosts, and the `Reduction`.

::

    OWN      each destination reduces all values for itself, which saves a barrier or, over hosts, a fetch
    SHARED   each rank reduces its share for all ranks of its host, after fetching other hosts' values
    HOSTS    each host reduces its ranks' values, and MPI combines these partials: see `over_hosts`

Ranks choose the same strategy unless their arrays differ, which the first exchange of any strategy detects. `gpu` sends
arrays through NCCL if all ranks can, and only asks for a strategy for other arrays.
"""

from __future__ import annotations

import functools
import math
from enum import Enum
from typing import List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from ..reductions import COMBINING, ReduceOp
from ..sync.hosts import Hosts

Kinds = Sequence[Tuple[Tuple[int, ...], "np.dtype[np.generic]"]]  # shapes and dtypes

#: Up to this size a destination reduces values alone, because sharing the work would cost another barrier.
OWN_BELOW_BYTES = 1 << 16
#: Maximum size of the values appended to a notice, which reaches all hosts: in general, and if only some need them.
EAGER_BYTES, FEW_EAGER_BYTES = 1 << 16, 1 << 13
#: Minimum total size of the arrays that MPI reduces, which costs two additional messages between processes of a host.
MPI_BYTES = 1 << 16
MAX_PARTS = 16  #: Maximum number of separate MPI reductions in a collective: `Weighting` objects times dtypes.


class Weighting(NamedTuple):
    """One result of a reduction.

    For ``avg``, ``weights[r]`` is the weight of rank r; by default, weights are equal. The ranks in ``contributors``
    share the work, and the ranks in ``destinations`` receive the result. Both default to all ranks.
    """

    weights: Optional[Tuple[float, ...]] = None
    destinations: Optional[Tuple[int, ...]] = None
    contributors: Optional[Tuple[int, ...]] = None


EQUAL = (Weighting(),)  #: A single result for all ranks, with equal weights.


class Reduction(NamedTuple):
    """A reduction; each rank receives one of the ``results``, or none. ``wire`` is a format of `kernels.encoding`."""

    op: ReduceOp
    results: Tuple[Weighting, ...] = EQUAL
    wire: Optional[str] = None
    keeps_errors: bool = False

    @property
    def is_for_all(self) -> bool:
        return len(self.results) == 1 and self.results[0].destinations is None

    def receives(self, rank: int) -> bool:
        return any([each.destinations is None or rank in each.destinations for each in self.results])

    def others(self, size: int) -> List[int]:
        """Return the ranks that receive no result."""
        return [rank for rank in range(size) if not self.receives(rank)]


class HostRoute(NamedTuple):
    """Hosts with ranks that contribute to a result (``sources``) or receive it (``destinations``)."""

    sources: Tuple[int, ...]
    destinations: Tuple[int, ...]

    @property
    def is_local(self) -> bool:
        """Whether no transfer between hosts is necessary."""
        return self.sources == self.destinations and len(self.sources) == 1


class Algorithm(Enum):
    OWN = 0
    SHARED = 1
    HOSTS = 2


class Strategy(NamedTuple):
    """The ``algorithm`` of a reduction; with ``HOSTS``, the ``routes`` of its results."""

    algorithm: Algorithm
    routes: Sequence[HostRoute] = ()


def strategy(kinds: Kinds, reduction: Reduction, hosts: Optional[Hosts], commits: bool) -> Strategy:
    """Choose the strategy for arrays of these shapes and dtypes; ``hosts`` is None on a single host.

    ``commits``: whether another barrier follows anyway, because the results become values of variables.
    """
    nbytes = sum([dtype.itemsize * math.prod(shape) for shape, dtype in kinds])
    is_for_one = not commits and reduction.results[0].destinations is not None
    if is_for_one and (reduction.op.name not in COMBINING or any([dtype.kind == "b" for _, dtype in kinds])):
        return Strategy(Algorithm.OWN)  # the result's shape or dtype differs from that of the values
    if not commits and nbytes <= OWN_BELOW_BYTES:
        return Strategy(Algorithm.OWN)
    if commits and hosts is not None and nbytes <= eager_bytes_of(hosts, reduction.results):
        return Strategy(Algorithm.OWN)
    routes = None if hosts is None or is_for_one else routes_of(kinds, nbytes, reduction, hosts)
    return Strategy(Algorithm.SHARED) if routes is None else Strategy(Algorithm.HOSTS, routes)


def routes_of(kinds: Kinds, nbytes: int, reduction: Reduction, hosts: Hosts) -> Optional[List[HostRoute]]:
    """Return the routes if MPI can reduce the arrays, and moves fewer bytes than fetching them; otherwise None."""
    op, results, wire, keeps_errors = reduction
    dtypes = {dtype for _, dtype in kinds}
    if (
        hosts.places is None
        or op.name not in COMBINING
        or (op.name != "avg" and any([each.weights for each in results]))
        or nbytes < MPI_BYTES
        or len(dtypes) * len(results) > MAX_PARTS
        or not all([dtype.kind in "fiu" and dtype.isnative for dtype in dtypes])
        or (wire is not None and not dtypes <= {np.dtype(np.float32), np.dtype(np.float64)})
    ):
        return None
    routes = [route_of(hosts, each) for each in results]
    if all([route.is_local for route in routes]):
        return None
    if keeps_errors and not all(  # a host's errors are kept by its contributors, which must also receive the result
        each.destinations is None or {*counting_ranks(hosts, each)} <= {*each.destinations} for each in results
    ):
        return None
    sizes = {dtype: sum([math.prod(shape) for shape, each in kinds if each == dtype]) for dtype in dtypes}
    given = nbytes + 2 * sizes.get(np.dtype(np.float16), 0)  # partials of float16 are float32
    taken = nbytes
    if wire is not None:
        given = taken = 2 * sum(sizes.values())
    fetched = max(arrays_needed(hosts, results)) * nbytes
    return routes if _exchanged(hosts, routes, given, taken) <= fetched else None


def _exchanged(hosts: Hosts, routes: Sequence[HostRoute], given: float, taken: float) -> float:
    """Return the bytes of partials and results that the busiest host receives."""
    return max(
        sum(
            (given * (len(route.sources) - (host in route.sources)) + taken * (len(route.destinations) - 1))
            / len(route.destinations)
            for route in routes
            if host in route.destinations
        )
        for host in range(len(hosts.ranks))
    )


def counting_ranks(hosts: Hosts, result: Weighting) -> Sequence[int]:
    """Return the ranks whose values count in a result."""
    everybody = range(hosts.size)
    if result.weights is None or not any(result.weights):
        return everybody
    return [rank for rank in everybody if result.weights[rank]]


def route_of(hosts: Hosts, result: Weighting) -> HostRoute:
    def with_any(some: Sequence[int]) -> Tuple[int, ...]:
        return tuple(host for host, ranks in enumerate(hosts.ranks) if not {*ranks}.isdisjoint(some))

    destinations = range(hosts.size) if result.destinations is None else result.destinations
    return HostRoute(with_any(counting_ranks(hosts, result)), with_any(destinations))


def arrays_needed(hosts: Hosts, results: Sequence[Weighting]) -> List[int]:
    """Return for each host the number of ranks on other hosts whose values its own ranks need."""
    found = []
    for ranks in hosts.ranks:
        needed: Set[int] = set()
        for each in results:
            if each.destinations is None or not {*ranks}.isdisjoint(each.destinations):
                needed.update(counting_ranks(hosts, each))
        found.append(len(needed.difference(ranks)))
    return found


@functools.lru_cache(maxsize=64)
def eager_bytes_of(hosts: Hosts, results: Tuple[Weighting, ...]) -> int:
    """Return the maximum size of the values that travel with notices in a reduction; equal on all ranks.

    The first host sends the notices of all ranks to every other host. With groups, a matrix or few receivers, fetching
    may move fewer values over its link. For 64 KiB exactly, MPI is faster, except between two ranks.
    """
    if not any([each.destinations is None for each in results]):
        to_first, *to_others = arrays_needed(hosts, results)
        if max(to_first, sum(to_others)) < sum([hosts.size - len(ranks) for ranks in hosts.ranks[1:]]):
            return FEW_EAGER_BYTES
    return EAGER_BYTES if hosts.size == 2 else MPI_BYTES - 1


def participants(weights: Optional[Sequence[float]]) -> Optional[Tuple[bool, ...]]:
    """Return for each rank whether it participates, i.e. has a nonzero weight; None if all ranks participate."""
    return None if weights is None or all(weights) or not any(weights) else tuple([weight > 0 for weight in weights])
