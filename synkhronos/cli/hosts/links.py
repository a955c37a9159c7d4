"""Measure what lies between each pair of hosts: the time that a small message takes, and the rate of large ones.

One pair at a time, as host 0 says; all others sleep meanwhile, so that they take neither cores nor bandwidth::

    host 0 --- turn ---> a, b       a <--- pings, bytes ---> b       a --- `Link` ---> host 0
"""

from __future__ import annotations

import statistics
import time
from itertools import combinations
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import numpy as np

from ..doctor import OK, WARN, Finding
from .comparison import joined

#: Tags of the messages that say whose turn it is, of results, of those that are measured, and of facts.
TURN, RESULT, PING, FACTS = 1, 2, 3, 4
#: Up to this number of hosts every pair is measured, otherwise each host with the next one and with host 0.
MOST_FOR_ALL_PAIRS = 8
#: A small message is as long as a control message; large ones are sent for some tenths of a second.
PING_BYTES, PINGS, BULK_BYTES, LEAST_SECONDS, MOST_BULKS = 64, 200, 4 << 20, 0.2, 32
#: Seconds between looks for a message.
PAUSE_S = 0.001
#: A link whose rate is less than this part of the others' holds them all up.
SLOW_PART = 0.5
SLOW_LATENCY_S, SLOW_RATE = 1e-3, 30e6


class Link(NamedTuple):
    """What lies between two hosts.

    Attributes
    ----------
    a, b : int
        Their numbers.
    latency : float
        Seconds that a small message takes one way: half of the median round trip.
    rate : float
        Bytes per second of a large message, one way: the median.
    """

    a: int
    b: int
    latency: float
    rate: float


def pairs(n: int) -> List[Tuple[int, int]]:
    """Return the pairs of hosts that are measured, in order.

    Examples
    --------
    >>> pairs(3)
    [(0, 1), (0, 2), (1, 2)]
    >>> len(pairs(64))
    125
    """
    if n <= MOST_FOR_ALL_PAIRS:
        return list(combinations(range(n), 2))
    return sorted({(0, i) for i in range(1, n)} | {(i, i + 1) for i in range(n - 1)})


def measure(comm: Any, n: int, each: Optional[Callable[[Link], None]] = None) -> List[Link]:
    """Measure all pairs; called by all processes, and returns the links on host 0.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        With one process on each host.
    n : int
        How many hosts there are.
    each : callable, optional
        Is told every link on host 0, as soon as it is known.
    """
    if comm.rank:
        _take_turns(comm)
        return []
    links = []
    for a, b in pairs(n):
        if a:
            comm.send((a, b), a, TURN)
        comm.send((a, b), b, TURN)
        links.append(_measure_link(comm, a, b) if a == 0 else receive(comm, a, RESULT))
        if each is not None:
            each(links[-1])
    for other in range(1, n):
        comm.send(None, other, TURN)
    return links


def _take_turns(comm: Any) -> None:
    """Take part whenever host 0 says so, until it says that all is done."""
    while True:
        turn = receive(comm, 0, TURN)
        if turn is None:
            return
        a, b = turn
        if comm.rank == a:
            comm.send(_measure_link(comm, a, b), 0, RESULT)
        else:
            _answer(comm, a)


def receive(comm: Any, source: int, tag: int) -> Any:
    """Receive an object without spinning: MPI would use a whole core while it waits."""
    while not comm.iprobe(source, tag):
        time.sleep(PAUSE_S)
    return comm.recv(source=source, tag=tag)


def _measure_link(comm: Any, a: int, b: int) -> Link:
    """Measure from the side that asks."""
    small, large = np.zeros(PING_BYTES, np.uint8), np.zeros(BULK_BYTES, np.uint8)

    def seconds(message: Any) -> float:
        begin = time.perf_counter()
        comm.Send(message, b, PING)
        comm.Recv(small, b, PING)  # all of it has arrived
        return time.perf_counter() - begin

    latency = statistics.median([seconds(small) for _ in range(PINGS)]) / 2
    seconds(large)  # connections become fast with use
    n = min(MOST_BULKS, 3 + int(LEAST_SECONDS / seconds(large)))
    comm.send(n, b, TURN)
    return Link(a, b, latency, BULK_BYTES / statistics.median([seconds(large) for _ in range(n)]))


def _answer(comm: Any, a: int) -> None:
    """Answer the side that asks."""
    small, large = np.zeros(PING_BYTES, np.uint8), np.zeros(BULK_BYTES, np.uint8)

    def answer(message: Any, times: int) -> None:
        for _ in range(times):
            comm.Recv(message, a, PING)
            comm.Send(small, a, PING)

    answer(small, PINGS)
    answer(large, 2)
    answer(large, comm.recv(source=a, tag=TURN))


def check_links(links: List[Link], names: List[str]) -> Finding:
    """Say whether any link is slow, by itself or beside the others."""
    if not links:
        return Finding("Links", OK, "none, with a single host")

    def between(some: List[Link]) -> str:
        return joined([f"{names[link.a]} - {names[link.b]}" for link in some])

    rates = [link.rate for link in links]
    slower = [link for link in links if link.rate < SLOW_PART * statistics.median(rates)]
    if slower:
        text = f"{between(slower)} has less than half of the rate of the others ({rate_text(min(rates))})"
        remedy = "look at its cables and at the switch, or leave that host out: every collective waits for it"
        return Finding("Links", WARN, text, remedy)
    slow = [link for link in links if link.rate < SLOW_RATE]
    if slow:
        text = f"{between(slow)}: {rate_text(min(rates))}, so that 100 MB of gradients take {1e8 / min(rates):.0f} s"
        remedy = "a faster network, or less to send: docs/communicating_less.rst"
        return Finding("Links", WARN, text, remedy)
    late = [link for link in links if link.latency > SLOW_LATENCY_S]
    if late:
        worst = max(link.latency for link in links)
        text = f"{between(late)}: a message takes {1e3 * worst:.1f} ms, and a call several of them"
        return Finding("Links", WARN, text, "hosts in one place, or many steps per call: f.steps")
    latencies = [link.latency for link in links]
    text = f"{1e6 * min(latencies):.0f} to {1e6 * max(latencies):.0f} us, {rate_text(min(rates))} or more"
    return Finding("Links", OK, text)


def rate_text(rate: float) -> str:
    """Return a rate for people, in bytes and as networks are sold.

    Examples
    --------
    >>> rate_text(117e6)
    '117 MB/s (0.94 Gbit/s)'
    """
    return f"{rate / 1e6:.3g} MB/s ({8 * rate / 1e9:.2g} Gbit/s)"
