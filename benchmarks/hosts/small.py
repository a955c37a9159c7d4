"""Benchmark of small operations on two hosts, compared with the bare link; run it with mpirun, one process per host.

::

    mpirun ... python -m benchmarks.hosts.small link       # no session: ping-pong messages, and mpi4py's Allreduce
    mpirun ... python -m benchmarks.hosts.small program    # one rank on each host: calls and collectives
    mpirun ... python -m benchmarks.hosts.small waiting    # CPU use of all processes while idle

A *control round trip* is a small message and its answer, over the same kind of connection that links the hosts of a
session. ``link`` and ``program`` report all times of each operation, in microseconds.
"""

import argparse
import functools
import os
import sys
import time
from pathlib import Path

import numpy as np

from synkhronos.cluster import environment, wire
from synkhronos.host.affinity import confine, divided_cores
from synkhronos.host.interfaces import interfaces
from synkhronos.runtime.command import Command

from .link import report

#: Sizes of the arrays to reduce, in KiB.
SIZES_KIB = (4, 8, 9, 16, 64, 128, 256)
N_ROUNDS = 5


class Used(Command):
    """Command that returns the CPU time of a rank, its keeper and the process serving its host; {} on the master."""

    title = "used"

    def run(self, context):
        if context.rank == context.root:
            return {}
        keeper = os.getppid()
        pids = {"rank": os.getpid(), "keeper of the rank": keeper, "serving process": int(stat(keeper)[1])}
        return {name: used(pid) for name, pid in pids.items()}


def stat(pid):
    """Return the fields of a process's ``/proc/PID/stat`` after its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def used(pid):
    """Return the CPU seconds of a process."""
    return sum(map(int, stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def timed(call, repeats):
    """Return the microseconds of each call, after 20 uncounted calls."""
    times = []
    for _ in range(20 + repeats):
        begin = time.perf_counter()
        call()
        times.append(round(1e6 * (time.perf_counter() - begin), 1))
    return times[20:]


def timed_by_size(calls, repeats):
    """Return the times of the call for each size, in a few rounds, so that other work delays all sizes alike."""
    times = {size: [] for size in calls}
    for _ in range(N_ROUNDS):
        for size, call in calls.items():
            times[size] += timed(call, repeats // N_ROUNDS)
    return times


def measure_link(repeats):
    """Measure round trips, and mpi4py's Allreduce, on the bare link."""
    os.environ.update(environment.settings(os.environ, interfaces()))
    from mpi4py import MPI

    if not MPI.Is_initialized():  # importing the library keeps mpi4py from initializing MPI
        MPI.Init()
    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        listener = wire.listener_of(os.environ, interfaces())
        (line,) = wire.host(listener, lambda meeting: comm.bcast(meeting) and 1)

        def there_and_back():
            line.send(("there", 1))
            line.receive()

        report(what="control round trip", us=timed(there_and_back, repeats))
        line.send(("end",))
    else:
        line = wire.join(comm.bcast(None))
        while line.receive()[0] != "end":
            line.send(("back", 1))
    calls, results = {}, []
    for size in SIZES_KIB:
        given, result = np.ones(256 * size, "float32"), np.empty(256 * size, "float32")
        calls[size] = functools.partial(comm.Allreduce, given, result)
        results.append(result)
    comm.Barrier()
    times = timed_by_size(calls, repeats)
    if comm.rank == 0:
        for size in SIZES_KIB:
            report(what=f"mpi4py Allreduce, {size} KiB", us=times[size])
    assert all((result == comm.size).all() for result in results)
    MPI.Finalize()


def measure_program(repeats):
    """Measure calls and an `all_reduce` of a program with one rank on each host."""
    import synkhronos as synk
    from synkhronos.testing import numpy_engine as engine

    synk.fork(1)
    variables = {size: engine.shared(np.zeros(256 * size, "float32"), f"v{size}") for size in SIZES_KIB}
    x, y = engine.variable("x", "float32", 1), engine.variable("y", "float32", 1)
    holds, bare = synk.function([], [(v, None) for v in variables.values()]), synk.function([], [])
    mean = synk.function([x, y], engine.apply(np.mean, engine.apply(np.add, x, y)))
    holds()
    for size, v in variables.items():
        synk.set_value(v, np.full(256 * size, 2, "float32"), rank=1)
    times = timed_by_size({size: functools.partial(synk.all_reduce, v) for size, v in variables.items()}, repeats)
    for size in SIZES_KIB:
        report(what=f"all_reduce, {size} KiB", us=times[size])
    assert all((v.get_value() == 1).all() for v in variables.values())
    report(what="call without inputs", us=timed(bare, repeats))
    inputs = np.arange(64, dtype="float32"), np.ones(64, "float32")
    report(what="call with two inputs, averaged output", us=timed(lambda: mean(*inputs), repeats))
    assert mean(*inputs) == 32.5
    synk.close()


def measure_waiting(seconds):
    """Measure the CPU use of both hosts' processes while idle, in percent of a core."""
    import synkhronos as synk
    from synkhronos.program.program import PROGRAM

    synk.fork(1)
    pids = {"master": os.getpid(), "keeper": PROGRAM.keeper_pid, "bridge": PROGRAM._bridge.pid}

    def used_by_all():
        return {**{name: used(pid) for name, pid in pids.items()}, **PROGRAM.session.run(Used())[1]}

    begin, before = time.perf_counter(), used_by_all()
    time.sleep(seconds)
    after, took = used_by_all(), time.perf_counter() - begin
    for name in after:
        report(what=name, percent=100 * (after[name] - before[name]) / took)
    synk.close()


def main():
    """Run the measurements selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["link", "program", "waiting"])
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--divide-cores", action="store_true", help="let each host use cores of its own")
    parser.add_argument("--seconds", type=float, default=20, help="idle time to measure")
    given = parser.parse_args()
    if given.divide_cores:
        mine = environment.place(os.environ)
        confine(divided_cores(mine.n_processes)[mine.process])
    if given.what == "waiting":
        measure_waiting(given.seconds)
    else:
        {"link": measure_link, "program": measure_program}[given.what](given.repeats)


if __name__ == "__main__":
    # Imported under its full name, so that ranks can unpickle the command.
    from benchmarks.hosts import small

    sys.exit(small.main())
