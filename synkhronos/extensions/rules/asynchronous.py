"""Asynchronous rules: in one call each rank takes the next batch, steps, and exchanges when it is time for it alone.

.. math::
    x_r &\\leftarrow x_r - \\alpha (x_r - z), \\quad z \\leftarrow z + \\alpha (x_r - z) &&\\text{EASGD} \\\\
    z &\\leftarrow z + \\rho (x_r - o_r), \\quad x_r \\leftarrow z, \\quad o_r \\leftarrow z &&\\text{ASGD} \\\\
    x_r &\\leftarrow (a_r x_r + a_s x_s) / (a_r + a_s), \\quad a_r \\leftarrow a_r + a_s &&\\text{gossip}

Right sides have the values of before. o is what the rank has found at its last exchange, a are gossip's weights, of
which a sender keeps half. One rank exchanges at a time (`Region.alone`)::

    z of the server       [ 0: old ]  [ 1: new, being written ]   which = 0     a death leaves the one that is whole:
                                                                  which = 1     it is the last thing to change
    mailbox of a rank     [ x ] [ weight: 0 if it is empty ]      messages that wait are one: their mean by weights

The centre is the master's again when the call has returned, or has failed. `Exchange` is what the log knows of each.
"""

from __future__ import annotations

import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from synkhronos.functions.asynchronous import Region, Visit, Visits
from synkhronos.host.signals import DeferredSignals
from synkhronos.runtime.registry import Origin

Arrays = List[Any]


class Exchange(NamedTuple):
    """One line of the log of an asynchronous run, `Rule.log`.

    Repeated in the order of the log, one rank at a time, lines give the values of the run, to the bit: the rank makes
    the steps of ``batches``, and does what ``kind`` says.

    Attributes
    ----------
    order : int
    rank : int
    kind : str
        ``"exchange"`` with the centre; ``"send"`` to, and ``"read"`` from, a mailbox; ``"end"`` of the run: by ASGD the
        rank takes the centre then.
    batches : tuple of int
        The batches of the rank's steps since its last line, as positions in the ``batches`` of the run.
    checksum : int
        CRC-32 of the rank's parameters after it, followed by the centre, or by the mailbox that was sent to.
    other : int, optional
        To whom it was sent.
    """

    order: int
    rank: int
    kind: str
    batches: Tuple[int, ...]
    checksum: int
    other: Optional[int] = None


# -- arithmetic, of one parameter; NumPy's operations in this order give the same bits --------------------------------


def elastic(x: Any, z: Any, alpha: float) -> Tuple[Any, Any]:
    """Return a rank's parameter and the centre after an exchange of EASGD."""
    move = (x - z) * x.dtype.type(alpha)
    return x - move, z + move


def downpour(x: Any, z: Any, origin: Any, rate: float) -> Any:
    """Return the centre after an exchange of ASGD."""
    return z + (x - origin) * x.dtype.type(rate)


def merged(x: Any, weight: float, message: Any, more: float) -> Any:
    """Return the mean by weights of a parameter and a message."""
    whole = weight + more
    return x * x.dtype.type(weight / whole) + message * x.dtype.type(more / whole)


# -- what every rank does ----------------------------------------------------------------------------------------------


class Exchanges(Visits):
    """What the master has decided, and where shared values lie.

    Parameters
    ----------
    values : list of arrays
        Of the parameters' shapes and dtypes.
    copies : int
        How many arrays all ranks have in common, for each parameter.
    variables : Variables
        The parameters.
    every : int
    counts : sequence of int
        Steps that each rank has made before.
    records : bool
        Whether to keep a log.
    title : str
        What `synkhronos.traffic` calls exchanges.

    Attributes
    ----------
    visitor : type
        What each rank makes of this.
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
        #: On the master: whether ranks may have exchanged.
        self.has_begun = False

    @property
    def writes(self) -> Sequence[int]:
        return self.numbers

    def begin(self, region: Region) -> Visit:
        self.has_begun = True
        visit: Visit = self.visitor(self, region)
        return visit

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def shared(self, values: Any) -> Any:
        """Return a small array that all ranks see, and its handle."""
        array = self._pool.allocate(np.shape(values), np.asarray(values).dtype)
        array[...] = values
        return array, self._pool.handle(array)


class Visitor(Visit):
    """What one rank does, for all rules."""

    def __init__(self, exchanges: Exchanges, region: Region) -> None:
        self.exchanges, self.region, self.context = exchanges, region, region.context
        self._entries = [region.context.shareds[number] for number in exchanges.numbers]
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
        """Exchange, and count what that moves."""
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
        """Exchange after a step; return whether anything was exchanged."""
        raise NotImplementedError

    def settle(self, order: int) -> None:
        """Do what is left to do after the last exchange of all ranks."""
        self.note(order, "end", self.values())

    def values(self) -> Arrays:
        """Return this rank's parameters, on the host."""
        return [np.asarray(entry.engine.to_host(entry.cell[0])) for entry in self._entries]

    def put(self, values: Arrays) -> None:
        """Make fresh arrays this rank's parameters."""
        for entry, value in zip(self._entries, values):
            entry.set(entry.engine.to_device(entry.reference(), value), Origin.OWN)

    def note(self, order: int, kind: str, x: Arrays, more: Sequence[Any] = (), other: Optional[int] = None) -> None:
        """Add a line to the log of this rank."""
        if self.exchanges.records:
            checksum = 0
            for array in [*x, *more]:
                checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
            self.log.append(Exchange(order, self.region.rank, kind, tuple(self._since), checksum, other))
        self._since = []


class ServerExchanges(Exchanges):
    """Exchanges with a centre z, which has two buffers.

    Parameters
    ----------
    factor : float
        alpha, or the rate.
    visitor : type
        The rule's.
    """

    def __init__(self, visitor: Any, factor: float, values: Arrays, *settings: Any) -> None:
        super().__init__(values, 2, *settings)
        self.visitor, self.factor = visitor, factor
        for array, value in zip(self._arrays[0], values):
            array[...] = value
        self._which, self.which = self.shared(np.zeros(1, np.int64))

    def centre(self) -> Arrays:
        """Return z, on the master: that of the last exchange that was not cut off."""
        return [array.copy() for array in self._arrays[int(self._which[0])]]


class ServerVisitor(Visitor):
    """Exchanges with the centre."""

    exchanges: ServerExchanges

    def __init__(self, exchanges: ServerExchanges, region: Region) -> None:
        super().__init__(exchanges, region)
        self.which = region.context.pools.attach(exchanges.which)

    def exchange(self, batch: int) -> bool:
        with self.region.alone() as order:
            which = int(self.which[0])
            x, z, new = self.values(), self.arrays[which], self.arrays[1 - which]
            fresh = self.moved(x, z, new)
            with DeferredSignals():  # Ctrl-C leaves both sides as they were, or moved
                self.which[0] = 1 - which
                self.put(fresh)
            self.note(order, "exchange", fresh, new)
        self.context.transport.traffic.add(self.nbytes, self.nbytes)
        return True

    def moved(self, x: Arrays, z: Arrays, new: Arrays) -> Arrays:
        """Write the new centre; return this rank's new parameters, as arrays of its own."""
        raise NotImplementedError


class ElasticVisitor(ServerVisitor):
    """A rank of EASGD."""

    def moved(self, x: Arrays, z: Arrays, new: Arrays) -> Arrays:
        pairs = [elastic(*both, self.exchanges.factor) for both in zip(x, z)]
        for target, (_, value) in zip(new, pairs):
            target[...] = value
        return [np.asarray(value) for value, _ in pairs]


class DownpourVisitor(ServerVisitor):
    """A rank of ASGD; at the end it gives what is left to the centre, and takes that once all ranks have."""

    def __init__(self, exchanges: ServerExchanges, region: Region) -> None:
        super().__init__(exchanges, region)
        self.origins = [array.copy() for array in self.arrays[0]]

    def moved(self, x: Arrays, z: Arrays, new: Arrays) -> Arrays:
        for target, one, centre, origin in zip(new, x, z, self.origins):
            target[...] = downpour(one, centre, origin, self.exchanges.factor)
        self.origins = [array.copy() for array in new]
        return [array.copy() for array in new]

    def last(self) -> None:
        if self._since or not all(map(np.array_equal, self.values(), self.origins)):  # maybe by steps before this run
            self._count(-1)

    def settle(self, order: int) -> None:
        self.put([array.copy() for array in self.arrays[int(self.which[0])]])
        self.n_steps = 0
        super().settle(order)


class MailExchanges(Exchanges):
    """Messages between ranks, each of which has one mailbox.

    Parameters
    ----------
    receivers : sequence of int
        For each batch, to whom the rank sends that has made its step, counted without itself; -1: to nobody.
    weights : sequence of float
        Of the ranks.
    """

    def __init__(self, receivers: Any, weights: Any, values: Arrays, *settings: Any) -> None:
        super().__init__(values, len(weights), *settings)
        self.visitor = MailVisitor
        self._receivers, self.receivers = self.shared(np.asarray(receivers, np.int64))
        self._weights, self.weights = self.shared(np.array([weights, [0.0] * len(weights)]))

    def alphas(self) -> List[float]:
        """Return the ranks' weights, without those of messages that nobody has read; their sum is 1 again."""
        alphas = self._weights[0]
        found: List[float] = (alphas / alphas.sum() if self._weights[1].any() else alphas).tolist()
        return found


class MailVisitor(Visitor):
    """A rank of gossip."""

    def __init__(self, exchanges: MailExchanges, region: Region) -> None:
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
