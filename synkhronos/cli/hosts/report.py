"""``python -m synkhronos doctor`` under an MPI launcher on several hosts.

If MPI does not connect the hosts within `CONNECT_TIMEOUT_S`, each process reports this and aborts the job.
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

from ...cluster.environment import (
    INTERFACE,
    ProcessPlace,
    chosen_interfaces,
    on_one_machine,
    settings,
    with_variable,
    wrong_world,
)
from ...host.interfaces import Interface, interfaces
from ...host.units import aligned
from ..doctor import MISSING, Finding, conclusion, installed, show
from .comparison import CHECKS, joined, short
from .facts import MachineFacts, gather, labels
from .links import FACTS, HostLink, check_links, measure, rate_text, receive

#: Time limit for MPI to connect the hosts.
CONNECT_TIMEOUT_S = 30.0
#: Round trips for a clock offset; only the fastest quarter counts.
CLOCK_PINGS = 20


def main(place: ProcessPlace, connect_timeout: float = CONNECT_TIMEOUT_S) -> int:
    """Examine all hosts, and print the findings on host 0; return 1 if anything needed is missing, else 0."""
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
    os.environ["MPI4PY_RC_INITIALIZE"] = "true"  # `import synkhronos` set "false", so that Theano does not start MPI
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
    clock = offset_of_clock(comm)  # the first messages between the hosts
    local_size = comm.Split_type(MPI.COMM_TYPE_SHARED).size
    comm.Barrier()
    watch.cancel()
    mine = gather(place, os.environ, MPI.Get_library_version(), local_size, clock)
    if comm.rank:
        comm.send(mine, 0, FACTS)
        measure(comm, comm.size)
        status = 0
    else:
        # `receive` sleeps between polls, because a host's facts arrive late if it imports an engine for the first time.
        status = examine(comm, [mine] + [receive(comm, other, FACTS) for other in range(1, comm.size)])
    return int(comm.bcast(status))


def examine(comm: Any, facts: List[MachineFacts]) -> int:
    """Compare the hosts, measure links and print everything, on host 0; return the exit status."""
    names = labels(facts)
    findings = [check(facts) for check in CHECKS]
    say(*map(show, findings), "", *table_of_hosts(facts), "", title_of_links(names))
    links = measure(comm, comm.size, lambda link: say(line_of_link(link, names)))
    findings.append(check_links(links, names))
    say("", show(findings[-1]))
    line, status = conclusion(findings)
    say(line)
    return status


def offset_of_clock(comm: Any) -> float:
    """Measure how many seconds this clock is ahead of host 0's; all processes must call this."""
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


def silence(place: ProcessPlace, here: str, chosen: Sequence[Interface], seconds: float, one_machine: bool) -> Finding:
    """Return the finding for a host that MPI has not connected to all other hosts."""
    allowed = joined(map(str, chosen)) or "none"
    text = f"{here} was not connected to all other hosts within {seconds:.0f} s; interfaces that MPI may use: {allowed}"
    network = "lo" if one_machine else str(chosen[0].network) if chosen else "NETWORK/BITS"
    remedy = f"name the network that connects the hosts: {with_variable(place.started_by, INTERFACE, network)}"
    if len({each.name for each in chosen}) < 2 and not one_machine:
        remedy = "check cables and firewalls: MPI needs TCP connections to any port between all hosts"
    return Finding("MPI", MISSING, text, remedy)


def give_up(finding: Finding) -> None:
    """Print the finding and end this process; mpirun then ends all other processes."""
    say(show(finding))
    sys.stdout.flush()
    os._exit(1)  # a normal exit would wait in MPI for hosts that do not answer


def complain(finding: Finding) -> int:
    """Print the finding; return the exit status 1."""
    say(show(finding))
    return 1


def say(*lines: str) -> None:
    """Print lines in one write, because other processes print at the same time."""
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.flush()


def table_of_hosts(facts: List[MachineFacts]) -> List[str]:
    """Return the lines of a table with one row per host."""
    rows = [("host", "Python", "cores", "memory", "/dev/shm", "clock", "interfaces")]
    for label, of in zip(labels(facts), facts):
        cores, clock = f"{of.cores} of {of.all_cores}", f"{1e3 * of.clock:+.1f} ms" if of.process else "-"
        interfaces = ", ".join(map(str, of.chosen)) or "none"
        rows.append((label, of.python, cores, short(of.memory), short(of.shm), clock, interfaces))
    return aligned(rows, left=len(rows[0]))


def title_of_links(names: List[str]) -> str:
    """Return the heading of the table of links."""
    width = max(map(len, names))
    return f"{'between':<{2 * width + 3}}  {'latency':>9}  rate"


def line_of_link(link: HostLink, names: List[str]) -> str:
    """Return the table row of a link.

    >>> line_of_link(HostLink(0, 1, 23e-6, 117e6), ["h0", "h1"])
    'h0 - h1      23 us  117 MB/s (0.94 Gbit/s)'
    """
    width = max(map(len, names))
    between = f"{names[link.a]:<{width}} - {names[link.b]:<{width}}"
    return f"{between}  {1e6 * link.latency:>6.0f} us  {rate_text(link.rate)}"
