"""Models of a reduction's time for each kind of link, with ``n`` ranks on ``H`` hosts and ``S`` bytes per rank.

==================  ==========================================================================================
link                seconds
==================  ==========================================================================================
shared memory       ``start + n S per_byte``: each rank reads its part of all n arrays and writes the result into
                    all of them, ``2 n S`` bytes through shared memory
``nccl``            ``2 (n - 1) latency + 2 (n - 1) / n S / bandwidth``: a ring
hosts (``mpi``)     ``start + 2 (H - 1) chunks per_message + 2 (H - 1) / H S per_byte``, after a reduction in
                    shared memory on each host: each host sends every other host one piece of each chunk, and
                    then the result of the piece that it has reduced
==================  ==========================================================================================

Contention in shared switches is not modeled.
"""

from __future__ import annotations

import math
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from ...cluster.mpi_thread import chunk_bytes_of
from .least_squares import nonnegative


class SharedMemory(NamedTuple):
    """Model of reductions through the shared memory of a host: start-up seconds, and seconds per byte."""

    start: float
    per_byte: float

    def seconds(self, ranks: float, nbytes: float) -> float:
        """Return the time in seconds of a reduction among the ranks of a host; 0 for a single rank."""
        return self.start + ranks * nbytes * self.per_byte if ranks > 1 and nbytes else 0.0


class RingModel(NamedTuple):
    """Model of reductions over a ring of ranks, as in NCCL: latency in seconds, bandwidth in bytes per second."""

    latency: float
    bandwidth: float

    def seconds(self, ranks: int, nbytes: float) -> float:
        """Return the time in seconds of a reduction among all ranks; 0 for a single rank."""
        if ranks < 2 or not nbytes:
            return 0.0
        return 2 * (ranks - 1) * self.latency + 2 * (ranks - 1) / ranks * nbytes / self.bandwidth


class HostLinkModel(NamedTuple):
    """Model of reductions between hosts: constants in seconds, and the largest relative error of their fit."""

    start: float
    per_message: float
    per_byte: float
    error: float = 0.0

    def seconds(self, hosts: int, nbytes: float) -> float:
        """Return the time in seconds of a reduction among hosts, without the reduction on each host."""
        return float(np.dot(terms(hosts, nbytes), self[:3])) if hosts > 1 and nbytes else 0.0


def terms(hosts: int, nbytes: float) -> List[float]:
    """Return the factors of the first three constants of `HostLinkModel`."""
    return [1.0, 2.0 * (hosts - 1) * math.ceil(nbytes / chunk_bytes_of(hosts)), 2 * (hosts - 1) / hosts * nbytes]


def fit(measured: Sequence[Tuple[int, float, float]]) -> HostLinkModel:
    """Fit the constants to measurements between hosts, ``(hosts, nbytes, seconds)``, with minimal relative error.

    If all measurements have the same numbers of hosts and bytes, the whole time is attributed to the bytes.

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
    return HostLinkModel(start, per_message, per_byte, float(errors.max()))
