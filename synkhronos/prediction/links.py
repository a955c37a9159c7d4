"""What a reduction takes by each link: ``n`` ranks on ``H`` hosts, ``S`` bytes on each.

==================  ==========================================================================================
link                seconds
==================  ==========================================================================================
shared memory       ``start + n S per_byte``: each rank reads its part of all n arrays and writes its part into
                    all of them, ``2 n S`` bytes through a memory that all of them share
``nccl``            ``2 (n - 1) latency + 2 (n - 1) / n S / bandwidth``: a ring
hosts (``mpi``)     ``start + 2 (H - 1) chunks per_message + 2 (H - 1) / H S per_byte``, after the ranks of each
                    host have reduced by shared memory: each host sends a piece of every chunk to each other
                    one, and the result of its own piece
==================  ==========================================================================================

They know nothing of switches that are shared.
"""

from __future__ import annotations

import math
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from ..launchers.hosts.courier import chunk_bytes_of
from .least_squares import nonnegative


class SharedMemory(NamedTuple):
    """The memory of a host, through which its ranks exchange."""

    start: float
    per_byte: float

    def seconds(self, ranks: float, nbytes: float) -> float:
        """Return what a reduction among the ranks of a host takes; one rank alone has nothing to reduce."""
        return self.start + ranks * nbytes * self.per_byte if ranks > 1 and nbytes else 0.0


class Ring(NamedTuple):
    """A link from each rank to the next: NCCL's."""

    latency: float
    bandwidth: float

    def seconds(self, ranks: int, nbytes: float) -> float:
        """Return what a reduction takes.

        Examples
        --------
        >>> Ring(1e-5, 1e9).seconds(4, 1e6)
        0.00156
        """
        if ranks < 2 or not nbytes:
            return 0.0
        return 2 * (ranks - 1) * self.latency + 2 * (ranks - 1) / ranks * nbytes / self.bandwidth


class OverHosts(NamedTuple):
    """Links between hosts: constants in seconds, and how far measured times are from them, as part of each."""

    start: float
    per_message: float
    per_byte: float
    error: float = 0.0

    def seconds(self, hosts: int, nbytes: float) -> float:
        """Return what a reduction among the hosts takes, beyond what the ranks of each do."""
        return float(np.dot(terms(hosts, nbytes), self[:3])) if hosts > 1 and nbytes else 0.0


def terms(hosts: int, nbytes: float) -> List[float]:
    """Return by what the constants of `OverHosts` are multiplied."""
    return [1.0, 2.0 * (hosts - 1) * math.ceil(nbytes / chunk_bytes_of(hosts)), 2 * (hosts - 1) / hosts * nbytes]


def fit(measured: Sequence[Tuple[int, float, float]]) -> OverHosts:
    """Return the constants of times between hosts: ``(hosts, nbytes, seconds)``. Each counts as part of itself.

    If all are of the same bytes on as many hosts, the time is taken to be that of the bytes.

    Examples
    --------
    >>> model = fit([(h, s, 1e-3 + 2 * (h - 1) / h * s * 1e-8) for h in (2, 3, 4) for s in (1e6, 1e8)])
    >>> round(model.seconds(8, 1e8), 3)
    1.751
    """
    times = np.array([seconds for _, _, seconds in measured])
    matrix = np.array([terms(hosts, nbytes) for hosts, nbytes, _ in measured])
    if len({(hosts, nbytes) for hosts, nbytes, _ in measured}) == 1:
        matrix[:, :2] = 0
    constants = nonnegative(matrix, times)
    errors = np.abs(matrix @ constants / times - 1)
    start, per_message, per_byte = map(float, constants)
    return OverHosts(start, per_message, per_byte, float(errors.max()))
