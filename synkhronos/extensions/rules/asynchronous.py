"""Asynchronous rules: ranks process batches and exchange values without waiting for other ranks' steps.

.. math::
    x_r &\\leftarrow x_r - \\alpha (x_r - z), \\quad z \\leftarrow z + \\alpha (x_r - z) &&\\text{EASGD} \\\\
    z &\\leftarrow z + \\rho (x_r - o_r), \\quad x_r \\leftarrow z, \\quad o_r \\leftarrow z &&\\text{ASGD} \\\\
    x_r &\\leftarrow (a_r x_r + a_s x_s) / (a_r + a_s), \\quad a_r \\leftarrow a_r + a_s &&\\text{gossip}

EASGD uses the values from before the exchange; the other lines apply in order. Here o is the center at the rank's last
exchange, and a is a rank's weight in gossip; a sender halves its weight. `AsyncRegion.alone` serializes exchanges::

    z of the server       [ 0: old ]  [ 1: new, being written ]   which = 0     `which` changes last, so it always
                                                                  which = 1     selects a complete copy
    mailbox of a rank     [ x ] [ weight: 0 if it is empty ]      messages are merged into their weighted mean
"""

from __future__ import annotations

import zlib
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from synkhronos.extending import AsyncRegion, DeferredSignals, StepHooks

Arrays = List[Any]


class Exchange(NamedTuple):
    """One record in `Rule.log`: after the steps of ``batches``, a rank did ``kind``.

    Replaying the records in order, one rank at a time, reproduces the run bit for bit. ``kind`` is ``"exchange"`` with
    the center, ``"send"`` to the mailbox of rank ``other``, ``"read"`` from the rank's mailbox, or ``"end"`` of the
    run, when ASGD copies the center to the rank. ``batches`` are positions in the ``batches`` of the run. ``checksum``
    is the CRC-32 of the rank's parameters, followed by the center or mailbox that the rank has written, if any.
    """

    order: int
    rank: int
    kind: str
    batches: Tuple[int, ...]
    checksum: int
    other: Optional[int] = None


# Arithmetic for one parameter. A replay with NumPy must use this order of operations to obtain identical bits.


def elastic(x: Any, z: Any, alpha: float) -> Tuple[Any, Any]:
    move = (x - z) * x.dtype.type(alpha)
    return x - move, z + move


def downpour(x: Any, z: Any, origin: Any, rate: float) -> Any:
    return z + (x - origin) * x.dtype.type(rate)


def merged(x: Any, weight: float, message: Any, more: float) -> Any:
    whole = weight + more
    return x * x.dtype.type(weight / whole) + message * x.dtype.type(more / whole)


class Exchanges(StepHooks):
    """Exchanges of one rank in an asynchronous run, after every ``every`` steps; each rule has a subclass.

    All ranks share ``copies`` arrays per parameter. ``counts[r]``: the steps of rank r in earlier runs. ``title``: the
    name of the exchanges in `synkhronos.traffic`.
    """

    def __init__(
        self, values: Arrays, copies: int, params: Arrays, every: int, counts: Sequence[int], records: bool, title: str
    ) -> None:
        super().__init__(params)
        self.every, self.counts, self.records, self.title = every, list(counts), records, title
        shared = [[self.shared(value) for value in values] for _ in range(copies)]
        self._arrays = [[array for array, _ in pairs] for pairs in shared]
        self.handles = [[handle for _, handle in pairs] for pairs in shared]

    def begin(self, region: AsyncRegion) -> None:
        super().begin(region)
        self.arrays = [[region.attach(handle) for handle in handles] for handles in self.handles]
        self.nbytes = sum(array.nbytes for array in self.arrays[0])
        self.n_steps, self.n_exchanges = self.counts[region.rank], 0
        self.log: List[Exchange] = []
        self._since: List[int] = []

    def after(self, batch: int) -> None:
        self.n_steps += 1
        self._since.append(batch)
        if self.n_steps % self.every == 0:
            self._count(batch)
            self.region.count()

    def _count(self, batch: int) -> None:
        begun = self.region.traffic.begin()
        if self.exchange(batch):
            self.region.traffic.end(self.title, begun)
            self.n_exchanges += 1

    def end(self) -> Any:
        with self.region.alone() as order:
            self.settle(order)
        return self.n_steps, self.n_exchanges, self.log

    def exchange(self, batch: int) -> bool:
        """Exchange values after a step; return whether any were exchanged."""
        raise NotImplementedError

    def settle(self, order: int) -> None:
        """Complete this rank's part after all ranks have made their last exchange."""
        self.note(order, "end", self.values())

    def note(self, order: int, kind: str, x: Arrays, more: Sequence[Any] = (), other: Optional[int] = None) -> None:
        if self.records:
            checksum = 0
            for array in [*x, *more]:
                checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
            self.log.append(Exchange(order, self.region.rank, kind, tuple(self._since), checksum, other))
        self._since = []


class ServerExchanges(Exchanges):
    """Exchanges with a double-buffered center z; ``factor`` is the alpha of EASGD, or the rate of ASGD."""

    def __init__(self, centre: Arrays, factor: float, *settings: Any) -> None:
        super().__init__(centre, 2, *settings)
        self.factor = factor
        self._which, self.handle_of_which = self.shared(np.zeros(1, np.int64))

    def centre(self) -> Arrays:
        """Return the center after the last complete exchange; call this on the master."""
        return [array.copy() for array in self._arrays[int(self._which[0])]]

    def begin(self, region: AsyncRegion) -> None:
        super().begin(region)
        self.which = region.attach(self.handle_of_which)

    def exchange(self, batch: int) -> bool:
        with self.region.alone() as order:
            which = int(self.which[0])
            x, z, new = self.values(), self.arrays[which], self.arrays[1 - which]
            fresh = self.moved(x, z, new)
            with DeferredSignals():  # so that Ctrl-C cannot separate the two updates
                self.which[0] = 1 - which
                self.put(fresh)
            self.note(order, "exchange", fresh, new)
        self.region.traffic.add(self.nbytes, self.nbytes)
        return True

    def moved(self, x: Arrays, z: Arrays, new: Arrays) -> Arrays:
        """Write the new center into ``new``; return this rank's new parameters as private arrays."""
        raise NotImplementedError


class ElasticExchanges(ServerExchanges):
    def moved(self, x: Arrays, z: Arrays, new: Arrays) -> Arrays:
        pairs = [elastic(*both, self.factor) for both in zip(x, z)]
        for target, (_, value) in zip(new, pairs):
            target[...] = value
        return [np.asarray(value) for value, _ in pairs]


class DownpourExchanges(ServerExchanges):
    """Exchanges of asynchronous ASGD; at the end, a rank adds its remaining progress and copies the center."""

    def begin(self, region: AsyncRegion) -> None:
        super().begin(region)
        self.origins = [array.copy() for array in self.arrays[0]]

    def moved(self, x: Arrays, z: Arrays, new: Arrays) -> Arrays:
        for target, one, centre, origin in zip(new, x, z, self.origins):
            target[...] = downpour(one, centre, origin, self.factor)
        self.origins = [array.copy() for array in new]
        return [array.copy() for array in new]

    def last(self) -> None:
        if self._since or not all(map(np.array_equal, self.values(), self.origins)):  # unexchanged steps or changes
            self._count(-1)

    def settle(self, order: int) -> None:
        self.put([array.copy() for array in self.arrays[int(self.which[0])]])
        self.n_steps = 0
        super().settle(order)


class MailExchanges(Exchanges):
    """Messages to mailboxes; ``receivers``: for each batch, an index among the other ranks, or -1 for no message."""

    def __init__(self, receivers: Any, weights: Any, values: Arrays, *settings: Any) -> None:
        super().__init__(values, len(weights), *settings)
        receivers, weights = np.asarray(receivers, np.int64), np.array([weights, [0.0] * len(weights)])
        self._receivers, self.handle_of_receivers = self.shared(receivers)
        self._weights, self.handle_of_weights = self.shared(weights)

    def alphas(self) -> List[float]:
        """Return the ranks' weights, without the weights of unread messages, normalized to a sum of 1."""
        alphas = self._weights[0]
        found: List[float] = (alphas / alphas.sum() if self._weights[1].any() else alphas).tolist()
        return found

    def begin(self, region: AsyncRegion) -> None:
        super().begin(region)
        self.receivers = region.attach(self.handle_of_receivers)
        self.of_ranks, self.waiting = region.attach(self.handle_of_weights)

    def before(self) -> None:
        rank = self.region.rank
        if self.waiting[rank]:
            with self.region.alone() as order:
                alpha, more = float(self.of_ranks[rank]), float(self.waiting[rank])
                fresh = [np.asarray(merged(x, alpha, y, more)) for x, y in zip(self.values(), self.arrays[rank])]
                with DeferredSignals():
                    self.put(fresh)
                    self.of_ranks[rank], self.waiting[rank] = alpha + more, 0
                self.note(order, "read", fresh)

    def end(self) -> Any:
        self.before()
        return super().end()

    def exchange(self, batch: int) -> bool:
        rank, receiver = self.region.rank, int(self.receivers[batch])
        if receiver < 0:
            return False
        receiver += receiver >= rank
        with self.region.alone() as order:
            x, box = self.values(), self.arrays[receiver]
            half, there = float(self.of_ranks[rank]) / 2, float(self.waiting[receiver])
            for target, value in zip(box, x):
                target[...] = merged(target, there, value, half) if there else value
            with DeferredSignals():
                self.of_ranks[rank], self.waiting[receiver] = half, there + half
            self.note(order, "send", x, box, receiver)
        self.region.traffic.add(0, self.nbytes)
        return True
