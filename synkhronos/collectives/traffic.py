"""`synkhronos.traffic`."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence

from ..program.program import PROGRAM
from ..runtime.command import Command
from ..runtime.context import RankContext


class Traffic(NamedTuple):
    """What collectives of one kind have moved since `fork`.

    Attributes
    ----------
    calls : int
    read, sent : list of float
        Bytes that each rank has read of other ranks' memory, and written to it, in rank order.
    received : list of float
        Bytes that each host has received from other hosts, in the order of `hosts`.
    seconds : float
        On the rank that spent most in them, waiting for the others included.
    """

    calls: int
    read: List[float]
    sent: List[float]
    received: List[float]
    seconds: float


class ReadTraffic(Command):
    """Return this rank's counters.

    Parameters
    ----------
    hosts : sequence of sequence of int
        The ranks of each.
    """

    title = "traffic"

    def __init__(self, hosts: Sequence[Sequence[int]]) -> None:
        self.hosts = hosts

    def run(self, context: RankContext) -> Dict[str, List[float]]:
        return context.transport.traffic.of

    def finish(self, results: List[Any], context: RankContext) -> Dict[str, Traffic]:
        found = {}
        for name in dict.fromkeys(name for of_rank in results for name in of_rank):
            rows = [of_rank.get(name, [0, 0.0, 0.0, 0.0, 0.0]) for of_rank in results]
            calls, read, sent, received, seconds = zip(*rows)
            of_hosts = [float(sum(received[rank] for rank in ranks)) for ranks in self.hosts]
            found[name] = Traffic(max(calls), list(read), list(sent), of_hosts, max(seconds))
        return found


def traffic() -> Dict[str, Traffic]:
    """Return what collectives have moved between ranks since `fork`, by their names.

    Inputs and outputs of calls are not in it; collectives inside functions are, as ``ops.all_reduce``.

    Returns
    -------
    dict of str to Traffic
        With ``calls``, ``read`` and ``sent`` (bytes of each rank), ``received`` (bytes that each host has received from
        others) and ``seconds``.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano
    >>> synk.fork(2)
    2
    >>> w = theano.shared(np.zeros(1000), "w")
    >>> total = synk.function([], w.sum())
    >>> synk.all_reduce(w)
    >>> moved = synk.traffic()["all_reduce"]    # each rank reduces about half of its 8,000 bytes
    >>> moved.calls, moved.read, moved.sent
    (1, [3968.0, 4032.0], [3968.0, 4032.0])
    """
    session = PROGRAM.current()
    hosts = [range(session.size)] if session.hosts is None else session.hosts.ranks
    found: Dict[str, Traffic] = session.run(ReadTraffic(hosts))
    return found
