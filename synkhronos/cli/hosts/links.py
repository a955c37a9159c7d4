"""Latency and bandwidth between hosts, measured one pair at a time while all other hosts sleep."""

from __future__ import annotations

import statistics
import time
from itertools import combinations
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import numpy as np

from ..doctor import OK, WARN, Finding
from .comparison import joined

TURN, RESULT, PING, FACTS = 1, 2, 3, 4
#: With more hosts than this, each host is measured only with host 0 and with the next host.
MOST_FOR_ALL_PAIRS = 8
#: Small messages: size and number. Large messages: size, approximate total seconds, and maximum number.
PING_BYTES, PINGS, BULK_BYTES, LEAST_SECONDS, MOST_BULKS = 64, 200, 4 << 20, 0.2, 32
PAUSE_S = 0.001
#: A link is slow below this fraction of the median rate, above this latency, or below this number of bytes per second.
SLOW_PART = 0.5
SLOW_LATENCY_S, SLOW_RATE = 1e-3, 30e6


class HostLink(NamedTuple):
    """Measured link between hosts `a` and `b`."""

    a: int
    b: int
    latency: float  # seconds for a small message, one way: half of the median round trip
    rate: float  # bytes per second of large messages, one way: the median


def pairs(n: int) -> List[Tuple[int, int]]:
    """Return the pairs of hosts to measure, in order.

    >>> pairs(3), len(pairs(64))
    ([(0, 1), (0, 2), (1, 2)], 125)
    """
    if n <= MOST_FOR_ALL_PAIRS:
        return list(combinations(range(n), 2))
    return sorted({(0, i) for i in range(1, n)} | {(i, i + 1) for i in range(n - 1)})


def measure(comm: Any, n: int, each: Optional[Callable[[HostLink], None]] = None) -> List[HostLink]:
    """Measure the links of `pairs`; all hosts must call this. Host 0 calls `each` with every link, and returns all."""
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
    """Measure a link, or answer, whenever host 0 sends a pair of hosts; end when it sends None."""
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
    """Receive an object without MPI's busy-waiting, which would occupy a whole core."""
    while not comm.iprobe(source, tag):
        time.sleep(PAUSE_S)
    return comm.recv(source=source, tag=tag)


def _measure_link(comm: Any, a: int, b: int) -> HostLink:
    small, large = np.zeros(PING_BYTES, np.uint8), np.zeros(BULK_BYTES, np.uint8)

    def seconds(message: Any) -> float:
        begin = time.perf_counter()
        comm.Send(message, b, PING)
        comm.Recv(small, b, PING)  # confirms that the whole message has arrived
        return time.perf_counter() - begin

    latency = statistics.median([seconds(small) for _ in range(PINGS)]) / 2
    seconds(large)  # warm-up: TCP's window grows with use
    n = min(MOST_BULKS, 3 + int(LEAST_SECONDS / seconds(large)))
    comm.send(n, b, TURN)
    return HostLink(a, b, latency, BULK_BYTES / statistics.median([seconds(large) for _ in range(n)]))


def _answer(comm: Any, a: int) -> None:
    small, large = np.zeros(PING_BYTES, np.uint8), np.zeros(BULK_BYTES, np.uint8)

    def answer(message: Any, times: int) -> None:
        for _ in range(times):
            comm.Recv(message, a, PING)
            comm.Send(small, a, PING)

    answer(small, PINGS)
    answer(large, 2)
    answer(large, comm.recv(source=a, tag=TURN))


def check_links(links: List[HostLink], names: List[str]) -> Finding:
    """Check whether any link is slow, in absolute terms or compared with the median."""
    if not links:
        return Finding("Links", OK, "none, with a single host")

    def between(some: List[HostLink]) -> str:
        return joined([f"{names[link.a]} - {names[link.b]}" for link in some])

    rates = [link.rate for link in links]
    slower = [link for link in links if link.rate < SLOW_PART * statistics.median(rates)]
    if slower:
        text = f"{between(slower)}: less than half of the median rate ({rate_text(min(rates))})"
        remedy = "check cables and the switch, or leave the slow host out, because every collective waits for it"
        return Finding("Links", WARN, text, remedy)
    slow = [link for link in links if link.rate < SLOW_RATE]
    if slow:
        text = f"{between(slow)}: {rate_text(min(rates))}, so 100 MB of gradients take {1e8 / min(rates):.0f} s"
        remedy = "use a faster network, or send less: see docs/communicating_less.rst"
        return Finding("Links", WARN, text, remedy)
    late = [link for link in links if link.latency > SLOW_LATENCY_S]
    if late:
        worst = max(link.latency for link in links)
        text = f"{between(late)}: a message takes {1e3 * worst:.1f} ms, and a call needs several messages"
        return Finding("Links", WARN, text, "use hosts at one site, or run many steps per call with f.steps")
    latencies = [link.latency for link in links]
    text = f"{1e6 * min(latencies):.0f} to {1e6 * max(latencies):.0f} us, {rate_text(min(rates))} or more"
    return Finding("Links", OK, text)


def rate_text(rate: float) -> str:
    """Return a rate as text in bytes and bits per second, such as ``117 MB/s (0.94 Gbit/s)``."""
    return f"{rate / 1e6:.3g} MB/s ({8 * rate / 1e9:.2g} Gbit/s)"
