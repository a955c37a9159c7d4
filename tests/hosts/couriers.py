"""A program for mpirun, one process per host, that tests couriers. Prints "fine" if all checks pass.

In each round, hosts give up a reduction while data is being sent; one host takes part in it only afterwards. Then
several reductions that run at the same time must give the right results, and so must transfers.
"""

import os
import sys
import time

import numpy as np

from synkhronos.cluster.environment import settings
from synkhronos.cluster.mpi_thread import MpiThread
from synkhronos.reductions import ReduceOp
from synkhronos.sync.fetching import HostReduction

os.environ.update(settings(os.environ, []))
from mpi4py import MPI  # noqa: E402

ROUNDS = 15


def values(host, number, size):
    """Return a host's values for an operation: whole numbers, so that sums are exact."""
    return np.random.RandomState(1000 * host + number).randint(-50, 50, size).astype("float32")


def check(condition, what):
    """Print a message and abort unless the condition is true."""
    if not condition:
        print(f"host {MPI.COMM_WORLD.rank}: {what}", flush=True)
        MPI.COMM_WORLD.Abort(3)


def main():
    """Run all rounds."""
    MPI.Init_thread(MPI.THREAD_MULTIPLE)  # importing synkhronos has disabled the automatic initialization
    comm = MPI.COMM_WORLD
    host, hosts = comm.rank, comm.size
    courier = MpiThread(comm.Dup(), comm.Get_attr(MPI.TAG_UB), 1 << 16)
    number, given_up = 0, 0
    for turn in range(ROUNDS):
        size = (1000, 300_000, 2_000_000)[turn % 3]
        late = turn % (hosts + 1)  # in some rounds, no host is late
        result = np.zeros(size, "float32")
        reduction = HostReduction(values(host, number, size), result, ReduceOp("sum"))
        if host == late:
            time.sleep(0.02)
        ticket = courier.all_reduce(number, reduction, is_abandoned=host == late)
        time.sleep(0.001 * turn)
        if turn % 2 or host == turn % hosts:  # the other hosts hear of it from this one
            ticket.is_abandoned = True
        check(ticket.wait(60), "a reduction that was given up is not over")
        if not ticket.is_abandoned:
            parts = [values(each, number, size) for each in range(hosts)]
            check(np.array_equal(result, np.sum(parts, 0)), "a reduction that was not given up is wrong")
        given_up += ticket.is_abandoned
        result[:] = -1  # as if the memory had been reused
        others = []
        for op, wire in (("sum", None), ("max", None), ("sum", "bfloat16")):
            number += 1
            target = np.empty(size, "float32")
            parts = [values(each, number, size) for each in range(hosts)]
            others.append((parts, op, target))
            others[-1] += (courier.all_reduce(number, HostReduction(parts[host], target, ReduceOp(op), wire=wire)),)
        for parts, op, target, ticket in others:
            check(ticket.wait(60), f"{op} does not end")
            check(np.array_equal(target, np.max(parts, 0) if op == "max" else np.sum(parts, 0)), f"{op} is wrong")
        number += 1
        there = np.zeros(size, "float32")
        right, left = (host + 1) % hosts, (host - 1) % hosts
        tickets = [
            courier.send(right, number, np.split(values(host, number, size), [7, 500])),
            courier.receive(left, number, [there[:900], there[900:]]),
        ]
        for ticket in tickets:
            check(ticket.wait(60), "a transfer does not end")
        check(np.array_equal(there, values(left, number, size)), "a transfer is wrong")
        check((result == -1).all(), "a reduction wrote after its end")
        number += 1
    given_up = comm.allreduce(given_up)
    check(courier.close(60), "the courier does not end")
    if host == 0:
        print(f"fine, {given_up} reductions given up", flush=True)
    MPI.Finalize()


if __name__ == "__main__":
    sys.exit(main())
