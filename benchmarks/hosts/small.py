"""What small things take over two hosts, beside the same link alone: round trips, calls, collectives, and waiting.

::

    python -m benchmarks.hosts_small --pretend openmpi       # on pretend hosts, as the tests have them
    python -m benchmarks.hosts_small mpirun -host a,b --map-by ppr:1:node --bind-to none
    SYNK_HOSTS_ON_ONE_MACHINE=1 python -m benchmarks.hosts_small mpirun -n 2 --bind-to none

By that command it starts two programs in turn, for some rounds. One has no session: it sends small messages to and fro
over a connection like the hosts' own (a *control round trip*), and calls mpi4py's ``Allreduce``. The other is a program
of this library with one rank on each host. A line for each thing says its median, and how often the link alone does
what it is compared with in that time.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from synkhronos.host.interfaces import interfaces
from synkhronos.launchers.hosts import environment, wire
from synkhronos.runtime.command import Command

ROOT = Path(__file__).resolve().parents[1]
#: Of the array that is reduced.
N_ELEMENTS = 1024
PART_TIMEOUT_S = 300
MARK = "measured: "

ROUND_TRIP, ALLREDUCE = "control round trip", "mpi4py Allreduce, 4 KB"
#: What is measured, and what it is divided by.
BESIDE = {
    ROUND_TRIP: ROUND_TRIP,
    ALLREDUCE: ALLREDUCE,
    "all_reduce, 4 KB": ALLREDUCE,
    "call without inputs": ROUND_TRIP,
    "call with two inputs, averaged output": ROUND_TRIP,
}


class Used(Command):
    """Return the processor time that this rank, its keeper and the process that serves its host have used."""

    title = "used"

    def run(self, context):
        if context.rank == context.root:
            return {}
        keeper = os.getppid()
        pids = {"rank": os.getpid(), "its keeper": keeper, "deputy": int(stat(keeper)[1])}
        return {name: used(pid) for name, pid in pids.items()}


def stat(pid):
    """Return what the kernel says of a process, behind its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def used(pid):
    """Return the seconds of processor time that a process has used."""
    return sum(map(int, stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def timed(call, repeats):
    """Return the microseconds that each of some calls takes, after a few that are not counted."""
    times = []
    for _ in range(20 + repeats):
        begin = time.perf_counter()
        call()
        times.append(round(1e6 * (time.perf_counter() - begin), 1))
    return times[20:]


def link(repeats):
    """Measure the link alone."""
    os.environ.update(environment.settings(os.environ, interfaces()))
    from mpi4py import MPI

    if not MPI.Is_initialized():  # (importing the library has mpi4py leave that to it)
        MPI.Init()
    comm = MPI.COMM_WORLD
    found = {}
    if comm.rank == 0:
        addresses = [str(each.ip) for each in environment.chosen_interfaces(os.environ, interfaces())]
        (line,) = wire.host(addresses, comm.bcast, 1)

        def there_and_back():
            line.send("there", 1)
            line.receive()

        found[ROUND_TRIP] = timed(there_and_back, repeats)
        line.send("end")
    else:
        line = wire.join(comm.bcast(None))
        while line.receive()[0] != "end":
            line.send("back", 1)
    given, result = np.ones(N_ELEMENTS, "float32"), np.empty(N_ELEMENTS, "float32")
    comm.Barrier()
    found[ALLREDUCE] = timed(lambda: comm.Allreduce(given, result), repeats)
    assert (result == comm.size).all()
    if comm.rank == 0:
        print(MARK + json.dumps(found), flush=True)


def program(repeats, idle):
    """Measure a program with one rank on each host, and what its processes use while nothing happens."""
    import synkhronos as synk
    from synkhronos.program.program import PROGRAM
    from synkhronos.testing import numpy_engine as engine

    synk.fork(1)
    v = engine.shared(np.zeros(N_ELEMENTS, "float32"), "v")
    x, y = engine.variable("x", "float32", 1), engine.variable("y", "float32", 1)
    holds, bare = synk.function([], [(v, None)]), synk.function([], [])
    mean = synk.function([x, y], engine.apply(np.mean, engine.apply(np.add, x, y)))
    holds()
    synk.set_value(1, v, np.full(N_ELEMENTS, 2, "float32"))
    found = {"all_reduce, 4 KB": timed(lambda: synk.all_reduce(v), repeats)}
    assert (v.get_value() == 1).all()
    found["call without inputs"] = timed(bare, repeats)
    inputs = np.arange(64, dtype="float32"), np.ones(64, "float32")
    found["call with two inputs, averaged output"] = timed(lambda: mean(*inputs), repeats)
    assert mean(*inputs) == 32.5
    if idle:
        pids = {"master": os.getpid(), "keeper": PROGRAM.keeper_pid, "bridge": PROGRAM._bridge.pid}

        def used_by_all():
            return {**{name: used(pid) for name, pid in pids.items()}, **PROGRAM.session.run(Used())[1]}

        begin, before = time.perf_counter(), used_by_all()
        time.sleep(idle)
        after, took = used_by_all(), time.perf_counter() - begin
        found["idle"] = {name: 100 * (after[name] - before[name]) / took for name in after}
    synk.close()
    print(MARK + json.dumps(found), flush=True)


@contextlib.contextmanager
def starter(pretend, launcher):
    """Provide what runs a program of Python by the launcher and returns what it prints."""
    if pretend is None:

        def start(code):
            command = [*launcher, sys.executable, "-c", code]
            return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=PART_TIMEOUT_S).stdout.decode()

        yield start
        return
    sys.path.insert(0, str(ROOT / "tests" / "hosts"))
    import mpi as of_tests
    from pretend import Cluster, lacking

    why_not = lacking() or of_tests.lacking(pretend)
    if why_not:
        raise SystemExit(why_not)
    mpi = of_tests.find(pretend)
    with Cluster(2, shared=[ROOT, mpi.prefix]) as hosts:
        yield lambda code: mpi.run(
            ["-c", code], PART_TIMEOUT_S, hosts=hosts, cwd=ROOT, variables={"PYTHONPATH": str(ROOT)}
        )[1]


def measured(start, rounds, repeats, idle):
    """Return all times in microseconds, by what was measured, and the parts of cores used while waiting, in %."""
    times, waiting = {}, {}
    for i in range(rounds):
        seconds = idle if i == rounds - 1 else 0
        for code in (f"hosts_small.link({repeats})", f"hosts_small.program({repeats}, {seconds})"):
            printed = start(f"from benchmarks import hosts_small; {code}")
            found = [json.loads(line[len(MARK) :]) for line in printed.splitlines() if line.startswith(MARK)]
            if not found:
                raise SystemExit(f"{code} has not measured anything:\n{printed}")
            waiting.update(found[0].pop("idle", {}))
            for what, values in found[0].items():
                times.setdefault(what, []).extend(values)
    return times, waiting


def main():
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=20, help="seconds in which nothing happens")
    parser.add_argument("--pretend", choices=["openmpi", "mpich"], help="on pretend hosts, by that MPI")
    parser.add_argument("launcher", nargs=argparse.REMAINDER, help="mpirun and its options")
    arguments = parser.parse_args()
    with starter(arguments.pretend, arguments.launcher) as start:
        times, waiting = measured(start, arguments.rounds, arguments.repeats, arguments.idle)
    for what, beside in BESIDE.items():
        median, least = np.median(times[what]), np.percentile(times[what], 5)
        ratio = median / np.median(times[beside])
        print(f"{what:40} {median:8.0f} us (5 %: {least:6.0f} us)  {ratio:6.2f} of {beside}")
    for name, percent in waiting.items():
        print(f"{'waiting, ' + name:40} {percent:8.2f} % of a core")


if __name__ == "__main__":
    sys.exit(main())
