"""`synkhronos.traffic`: the bytes that collectives have moved between ranks and hosts."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence

from ..program.program import PROGRAM
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..transports.base import TrafficRow


class Traffic(NamedTuple):
    """Traffic of all collectives of one kind since `fork`.

    Attributes
    ----------
    calls : int
    read, sent : list of float
        Bytes that each rank has read from, and written to, other ranks' memory, by rank.
    received : list of float
        Bytes that each host has received from other hosts, in the order of `hosts`.
    seconds : float
        The longest total time of any rank in these collectives, including waits for other ranks.
    """

    calls: int
    read: List[float]
    sent: List[float]
    received: List[float]
    seconds: float


class ReadTraffic(Command):
    """Return this rank's traffic counters; ``hosts`` lists the ranks of each host."""

    title = "traffic"

    def __init__(self, hosts: Sequence[Sequence[int]]) -> None:
        self.hosts = hosts

    def run(self, context: RankContext) -> Dict[str, TrafficRow]:
        return context.transport.traffic.of

    def finish(self, results: List[Any], context: RankContext) -> Dict[str, Traffic]:
        found = {}
        for name in dict.fromkeys(name for of_rank in results for name in of_rank):
            rows = [of_rank.get(name) or TrafficRow() for of_rank in results]
            found[name] = Traffic(
                max(row.calls for row in rows),
                [row.read for row in rows],
                [row.sent for row in rows],
                [float(sum(rows[rank].received for rank in ranks)) for ranks in self.hosts],
                max(row.seconds for row in rows),
            )
        return found


def traffic() -> Dict[str, Traffic]:
    """Return the traffic of collectives between ranks since `fork`, by collective.

    Collectives inside functions, such as ``ops.all_reduce``, are included; inputs and outputs of calls are not.

    Returns
    -------
    dict of str to Traffic
        Each contains ``calls`` and ``seconds``, the bytes ``read`` and ``sent`` by rank, and ``received`` by host.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> w = theano.shared(np.zeros(1000), "w")
    >>> total = synk.function([], w.sum())
    >>> synk.all_reduce(w)
    >>> moved = synk.traffic()["all_reduce"]    # each rank reduces about half of the 8,000 bytes
    >>> moved.calls, moved.read, moved.sent
    (1, [3968.0, 4032.0], [3968.0, 4032.0])
    """
    session = PROGRAM.current()
    found: Dict[str, Traffic] = session.run(ReadTraffic(session.hosts.ranks))
    return found
