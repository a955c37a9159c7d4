"""Benchmark of reductions between hosts, compared with the link's bound and MPI's own Allreduce; run it with mpirun.

::

    mpirun -host a,b --map-by ppr:1:node --bind-to none python -m benchmarks.hosts.bulk --rate 1e9

Every process stands for a host, with its arrays in shared memory. With H hosts, a reduction takes at least
``2 (H - 1) / H`` times the bytes divided by the rate of a link. The program prints a line per size and format, with the
median of several calls on the slowest host.
"""

import argparse
import json
import mmap
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


def shared(n):
    """Return a float32 array in shared memory."""
    fd = os.memfd_create("benchmark")
    os.ftruncate(fd, max(4 * n, 1))
    return np.frombuffer(mmap.mmap(fd, max(4 * n, 1)), np.float32, n)


def measure(comm, repeats, call):
    """Return the minimum and median time of calls on the slowest host, and the median CPU time on this host."""
    call()
    times, processor = [], []
    for _ in range(repeats):
        comm.Barrier()
        begin, used = time.perf_counter(), time.process_time()
        call()
        took = time.perf_counter() - begin
        processor.append(time.process_time() - used)
        times.append(comm.allreduce(took, MPI.MAX))
    return min(times), float(np.median(times)), float(np.median(processor))


def main():
    """Run the measurements selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 16, 100])
    parser.add_argument("--ways", nargs="+", default=["mpi", "float32", "bfloat16"])
    parser.add_argument("--rate", type=float, default=0, help="bits per second of the link, for the bound")
    parser.add_argument("--chunk", type=int, help="bytes of a chunk")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if not MPI.Is_initialized():  # importing the library keeps mpi4py from initializing MPI
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    comm = MPI.COMM_WORLD
    courier = MpiThread(comm.Dup(), comm.Get_attr(MPI.TAG_UB), arguments.chunk)
    host, hosts = comm.rank, comm.size
    number = 0
    for megabytes in arguments.megabytes:
        n = int(megabytes * 1e6 / 4)
        partial, result = shared(n), shared(n)
        partial[:] = (np.arange(n) + host) % 251
        expected = sum(((np.arange(n) + each) % 251).astype(np.float32) for each in range(hosts))
        for way in arguments.ways:

            def call(way=way, partial=partial, result=result):
                nonlocal number
                number += 1
                if way == "mpi":
                    comm.Allreduce(partial, result)
                else:
                    wire = None if way == "float32" else way
                    courier.all_reduce(number, HostReduction(partial, result, ReduceOp("sum"), wire=wire)).wait(120)

            result[:] = 0
            least, seconds, processor = measure(comm, arguments.repeats if megabytes < 50 else 3, call)
            off = float(np.abs(result / expected - 1)[expected > 0].max()) if n else 0
            if off > {"bfloat16": 2**-7, "float16": 2**-10}.get(way, 0):
                raise SystemExit(f"{way}: wrong result, with a relative error of {off}")
            if host == 0:
                bound = 2 * (hosts - 1) / hosts * 4 * n * 8 / arguments.rate if arguments.rate else 0
                row = dict(hosts=hosts, megabytes=megabytes, way=way, ms=1e3 * seconds, processor_ms=1e3 * processor)
                if bound:
                    row.update(of_bound=seconds / bound, least_of_bound=least / bound)
                print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
    courier.close()
    MPI.Finalize()


if __name__ == "__main__":
    sys.exit(main())
