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

When a run ends or fails, the center is copied back into the rule's variables.
"""

from __future__ import annotations

import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from synkhronos.contrib.asynchronous import AsyncRegion, StepHook, StepHooks
from synkhronos.host.signals import DeferredSignals
from synkhronos.runtime.registry import Origin

Arrays = List[Any]


class Exchange(NamedTuple):
    """One record in `Rule.log`, the log of an asynchronous run.

    Replaying the records in order, one rank at a time, reproduces the run bit for bit. For each record, the rank runs
    the steps of ``batches``, then performs ``kind``.

    Attributes
    ----------
    order, rank : int
        The record's position in the run, and its rank.
    kind : str
        ``"exchange"`` with the center, ``"send"`` to a mailbox, ``"read"`` from a mailbox, or ``"end"`` of the run,
        when ASGD copies the center to the rank.
    batches : tuple of int
        The batches since the rank's last record, as positions in the ``batches`` of the run.
    checksum : int
        CRC-32 of the rank's parameters, followed by the center or mailbox that the rank has written, if any.
    other : int, optional
        The receiver of a ``"send"``.
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
    """Settings of an asynchronous run, and handles of the arrays that all ranks share: ``copies`` arrays per parameter.

    ``counts[r]``: the steps of rank r in earlier runs. ``title``: the name of the exchanges in `synkhronos.traffic`.
    """

    visitor: Any

    def __init__(
        self, values: Arrays, copies: int, variables: Any, every: int, counts: Sequence[int], records: bool, title: str
    ) -> None:
        self.numbers, self.every, self.counts = list(variables.numbers), every, list(counts)
        self.records, self.title = records, title
        self._pool = pool = variables.session.pool
        self._arrays = [[pool.allocate(value.shape, value.dtype) for value in values] for _ in range(copies)]
        self.handles = [[pool.handle(array) for array in arrays] for arrays in self._arrays]
        #: Whether the ranks may already have exchanged values; valid only on the master.
        self.has_begun = False

    @property
    def writes(self) -> Sequence[int]:
        return self.numbers

    def begin(self, region: AsyncRegion) -> StepHook:
        self.has_begun = True
        visit: StepHook = self.visitor(self, region)
        return visit

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def shared(self, values: Any) -> Any:
        """Allocate a small array that all ranks share; return it and its handle."""
        array = self._pool.allocate(np.shape(values), np.asarray(values).dtype)
        array[...] = values
        return array, self._pool.handle(array)


class Visitor(StepHook):
    """One rank's part in an asynchronous run; each rule has a subclass."""

    def __init__(self, exchanges: Exchanges, region: AsyncRegion) -> None:
        self.exchanges, self.region, self.context = exchanges, region, region.context
        self._entries = [region.context.registry.shareds[number] for number in exchanges.numbers]
        self.arrays = [[region.context.pools.attach(h) for h in handles] for handles in exchanges.handles]
        self.nbytes = sum(array.nbytes for array in self.arrays[0])
        self.n_steps, self.n_exchanges = exchanges.counts[region.rank], 0
        self.log: List[Exchange] = []
        self._since: List[int] = []

    def after(self, batch: int) -> None:
        self.n_steps += 1
        self._since.append(batch)
        if self.n_steps % self.exchanges.every == 0:
            self._count(batch)
            self.region.count()

    def _count(self, batch: int) -> None:
        traffic = self.context.transport.traffic
        begun = traffic.begin()
        if self.exchange(batch):
            traffic.end(self.exchanges.title, begun)
            self.n_exchanges += 1

    def end(self) -> Any:
        with self.region.alone() as order:
            self.settle(order)
        return self.n_steps, self.n_exchanges, self.log

    def before(self) -> None:
        pass

    def last(self) -> None:
        pass

    def exchange(self, batch: int) -> bool:
        """Exchange values after a step; return whether any were exchanged."""
        raise NotImplementedError

    def settle(self, order: int) -> None:
        """Complete this rank's part after all ranks have made their last exchange."""
        self.note(order, "end", self.values())

    def values(self) -> Arrays:
        return [np.asarray(entry.engine.to_host(entry.cell[0])) for entry in self._entries]

    def put(self, values: Arrays) -> None:
        for entry, value in zip(self._entries, values):
            entry.set(entry.engine.to_device(entry.reference(), value), Origin.OWN)

    def note(self, order: int, kind: str, x: Arrays, more: Sequence[Any] = (), other: Optional[int] = None) -> None:
        if self.exchanges.records:
            checksum = 0
            for array in [*x, *more]:
                checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
            self.log.append(Exchange(order, self.region.rank, kind, tuple(self._since), checksum, other))
        self._since = []


class ServerExchanges(Exchanges):
    """Exchanges with a double-buffered center z; ``factor`` is the alpha of EASGD, or the rate of ASGD."""

    def __init__(self, visitor: Any, factor: float, values: Arrays, *settings: Any) -> None:
        super().__init__(values, 2, *settings)
        self.visitor, self.factor = visitor, factor
        for array, value in zip(self._arrays[0], values):
            array[...] = value
        self._which, self.which = self.shared(np.zeros(1, np.int64))

    def centre(self) -> Arrays:
        """Return the center after the last complete exchange; call this on the master."""
        return [array.copy() for array in self._arrays[int(self._which[0])]]


class ServerVisitor(Visitor):
    exchanges: ServerExchanges

    def __init__(self, exchanges: ServerExchanges, region: AsyncRegion) -> None:
        super().__init__(exchanges, region)
        self.which = region.context.pools.attach(exchanges.which)

    def exchange(self, batch: int) -> bool:
        with self.region.alone() as order:
            which = int(self.which[0])
            x, z, new = self.values(), self.arrays[which], self.arrays[1 - which]
            fresh = self.moved(x, z, new)
            with DeferredSignals():  # so that Ctrl-C cannot separate the two updates
                self.which[0] = 1 - which
                self.put(fresh)
            self.note(order, "exchange", fresh, new)
        self.context.transport.traffic.add(self.nbytes, self.nbytes)
        return True

    def moved(self, x: Arrays, z: Arrays, new: Arrays) -> Arrays:
        """Write the new center into ``new``; return this rank's new parameters as private arrays."""
        raise NotImplementedError


class ElasticVisitor(ServerVisitor):
    def moved(self, x: Arrays, z: Arrays, new: Arrays) -> Arrays:
        pairs = [elastic(*both, self.exchanges.factor) for both in zip(x, z)]
        for target, (_, value) in zip(new, pairs):
            target[...] = value
        return [np.asarray(value) for value, _ in pairs]


class DownpourVisitor(ServerVisitor):
    """One rank's part in asynchronous ASGD; at the end, the rank adds its remaining progress and copies the center."""

    def __init__(self, exchanges: ServerExchanges, region: AsyncRegion) -> None:
        super().__init__(exchanges, region)
        self.origins = [array.copy() for array in self.arrays[0]]

    def moved(self, x: Arrays, z: Arrays, new: Arrays) -> Arrays:
        for target, one, centre, origin in zip(new, x, z, self.origins):
            target[...] = downpour(one, centre, origin, self.exchanges.factor)
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
    """Messages between ranks; every rank has one mailbox.

    ``receivers[i]``: the receiver's index among the other ranks for batch i, or -1 for no message.
    """

    def __init__(self, receivers: Any, weights: Any, values: Arrays, *settings: Any) -> None:
        super().__init__(values, len(weights), *settings)
        self.visitor = MailVisitor
        self._receivers, self.receivers = self.shared(np.asarray(receivers, np.int64))
        self._weights, self.weights = self.shared(np.array([weights, [0.0] * len(weights)]))

    def alphas(self) -> List[float]:
        """Return the ranks' weights, without the weights of unread messages, normalized to a sum of 1."""
        alphas = self._weights[0]
        found: List[float] = (alphas / alphas.sum() if self._weights[1].any() else alphas).tolist()
        return found


class MailVisitor(Visitor):
    def __init__(self, exchanges: MailExchanges, region: AsyncRegion) -> None:
        super().__init__(exchanges, region)
        self.receivers = region.context.pools.attach(exchanges.receivers)
        self.alphas, self.waiting = region.context.pools.attach(exchanges.weights)

    def before(self) -> None:
        rank = self.region.rank
        if self.waiting[rank]:
            with self.region.alone() as order:
                alpha, more = float(self.alphas[rank]), float(self.waiting[rank])
                fresh = [np.asarray(merged(x, alpha, y, more)) for x, y in zip(self.values(), self.arrays[rank])]
                with DeferredSignals():
                    self.put(fresh)
                    self.alphas[rank], self.waiting[rank] = alpha + more, 0
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
            half, there = float(self.alphas[rank]) / 2, float(self.waiting[receiver])
            for target, value in zip(box, x):
                target[...] = merged(target, there, value, half) if there else value
            with DeferredSignals():
                self.alphas[rank], self.waiting[receiver] = half, there + half
            self.note(order, "send", x, box, receiver)
        self.context.transport.traffic.add(0, self.nbytes)
        return True
