"""What ``python -m synkhronos doctor`` does if an MPI launcher has started it on several hosts.

It has to come to an end where nothing else would: if MPI cannot connect the hosts, each process says so by itself and
ends all.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import threading
import time
from importlib import import_module
from typing import Any, List, Sequence

from ...host.interfaces import Interface, interfaces
from ...launchers.hosts.environment import (
    INTERFACE,
    Place,
    chosen_interfaces,
    on_one_machine,
    settings,
    with_variable,
    wrong_world,
)
from ..doctor import MISSING, Finding, installed, show
from .comparison import CHECKS, joined, short
from .facts import Facts, gather, labels
from .links import FACTS, Link, check_links, measure, rate_text, receive

#: Seconds in which MPI has to connect the hosts.
CONNECT_TIMEOUT_S = 30.0
#: Round trips of which the fastest tells how far two clocks are apart.
CLOCK_PINGS = 20


def main(place: Place, connect_timeout: float = CONNECT_TIMEOUT_S) -> int:
    """Examine all hosts together; host 0 prints what is found.

    Parameters
    ----------
    place : Place
        The place of this process among those that were started.
    connect_timeout : float
        Seconds after which hosts that MPI does not connect give up.

    Returns
    -------
    int
        0 if nothing that is needed is missing, else 1, on every host.
    """
    here = platform.node()
    found = interfaces()
    try:
        os.environ.update(settings(os.environ, found))
        chosen = chosen_interfaces(os.environ, found)
    except ValueError as error:
        return complain(Finding("Interfaces", MISSING, f"{here}: {error}", f"set {INTERFACE} on every host"))
    if not installed("mpi4py"):
        return complain(Finding("MPI", MISSING, f"no mpi4py on {here}", 'pip install "mpi4py>=4.1"'))
    silent = silence(place, here, chosen, connect_timeout, on_one_machine(os.environ))
    watch = threading.Timer(connect_timeout, give_up, (silent,))
    watch.daemon = True
    watch.start()
    os.environ["MPI4PY_RC_INITIALIZE"] = "true"  # importing synkhronos has seen to it that Theano does not do it
    try:
        MPI: Any = import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        return complain(Finding("MPI", MISSING, f"{here}: {error}", "install Open MPI or MPICH, or pip install mpich"))
    comm = MPI.COMM_WORLD
    other = wrong_world(place, comm.size)
    if other:
        watch.cancel()
        text, _, remedy = other.rpartition("; ")
        return complain(Finding("MPI", MISSING, text, remedy)) if place.process == 0 else 1
    clock = offset_of_clock(comm)  # the first words that all hosts exchange
    local_size = comm.Split_type(MPI.COMM_TYPE_SHARED).size
    comm.Barrier()
    watch.cancel()
    mine = gather(place, os.environ, MPI.Get_library_version(), local_size, clock)
    if comm.rank:
        comm.send(mine, 0, FACTS)
        measure(comm, comm.size)
        status = 0
    else:
        # Without spinning: it takes its time if an engine is imported for the first time.
        status = examine(comm, [mine] + [receive(comm, other, FACTS) for other in range(1, comm.size)])
    return int(comm.bcast(status))


def examine(comm: Any, facts: List[Facts]) -> int:
    """Compare, measure and print, on host 0; return the exit status."""
    names = labels(facts)
    findings = [check(facts) for check in CHECKS]
    say(*map(show, findings), "", *table_of_hosts(facts), "", title_of_links(names))
    links = measure(comm, comm.size, lambda link: say(line_of_link(link, names)))
    findings.append(check_links(links, names))
    say("", show(findings[-1]))
    missing = [finding.subject for finding in findings if finding.status == MISSING]
    say("Missing: " + ", ".join(missing) if missing else "Nothing that is needed is missing.")
    return 1 if missing else 0


def offset_of_clock(comm: Any) -> float:
    """Return the seconds by which this clock is ahead of host 0's; called by all processes."""
    offset = 0.0
    for other in range(1, comm.size):
        if comm.rank == 0:
            for _ in range(CLOCK_PINGS):
                comm.recv(source=other)
                comm.send(time.time(), other)
        elif comm.rank == other:
            samples = []
            for _ in range(CLOCK_PINGS):
                begin = time.time()
                comm.send(None, 0)
                theirs = comm.recv(source=0)
                end = time.time()
                samples.append((end - begin, (begin + end) / 2 - theirs))
            fastest = sorted(samples)[: CLOCK_PINGS // 4]
            offset = statistics.median(apart for _, apart in fastest)
    return offset


def silence(place: Place, here: str, chosen: Sequence[Interface], seconds: float, one_machine: bool) -> Finding:
    """Return what a host says that has not heard of all others."""
    text = (
        f"{here} has not heard of all other hosts for {seconds:.0f} s; MPI may use {joined(map(str, chosen)) or 'none'}"
    )
    network = "lo" if one_machine else str(chosen[0].network) if chosen else "NETWORK/BITS"
    remedy = f"name the network that connects the hosts: {with_variable(place.started_by, INTERFACE, network)}"
    if len(chosen) < 2 and not one_machine:
        remedy = "look at cables and firewalls: MPI needs TCP connections to any port between all hosts"
    return Finding("MPI", MISSING, text, remedy)


def give_up(finding: Finding) -> None:
    """Say what is wrong and end this process, and with it, by mpirun, all others."""
    say(show(finding))
    sys.stdout.flush()
    os._exit(1)  # MPI would wait for those that do not answer


def complain(finding: Finding) -> int:
    """Say what is wrong; return the exit status."""
    say(show(finding))
    return 1


def say(*lines: str) -> None:
    """Print lines at once, and together: others print at the same time."""
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.flush()


# -- tables ------------------------------------------------------------------------------------------------------------


def table_of_hosts(facts: List[Facts]) -> List[str]:
    """Return a line for each host."""
    rows = [("host", "Python", "cores", "memory", "/dev/shm", "clock", "interfaces")]
    for label, of in zip(labels(facts), facts):
        clock = f"{1e3 * of.clock:+.1f} ms" if of.process else "-"
        interfaces = ", ".join(map(str, of.chosen)) or "none"
        rows.append(
            (label, of.python, f"{of.cores} of {of.all_cores}", short(of.memory), short(of.shm), clock, interfaces)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{word:<{width}}" for word, width in zip(row, widths)).rstrip() for row in rows]


def title_of_links(names: List[str]) -> str:
    """Return the first line of the table of links."""
    width = max(map(len, names))
    return f"{'between':<{2 * width + 3}}  {'latency':>9}  rate"


def line_of_link(link: Link, names: List[str]) -> str:
    """Return a link's line of the table.

    Examples
    --------
    >>> line_of_link(Link(0, 1, 23e-6, 117e6), ["h0", "h1"])
    'h0 - h1      23 us  117 MB/s (0.94 Gbit/s)'
    """
    width = max(map(len, names))
    between = f"{names[link.a]:<{width}} - {names[link.b]:<{width}}"
    return f"{between}  {1e6 * link.latency:>6.0f} us  {rate_text(link.rate)}"
