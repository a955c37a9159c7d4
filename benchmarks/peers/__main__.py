"""Program of a peer process, which measures on request until its connection to the benchmark ends."""

import os
import sys
import time
from multiprocessing.connection import Client

import numpy as np

from benchmarks.peers import barrier, ddp, deepspeed, gloo, mpi, pipes

PROGRAMS = {
    "barrier": barrier.Barrier,
    "pipes": pipes.Pipes,
    "openmpi": mpi.Mpi,
    "mpich": mpi.Mpi,
    "gloo": gloo.Gloo,
    "deepspeed": deepspeed.DeepSpeed,
    "ddp": ddp.Ddp,
}


def live(peer, address):
    """Pin this process if there are enough cores, and measure the peer on request until the connection ends."""
    cores = sorted(os.sched_getaffinity(0))
    if peer.size <= len(cores):
        os.sched_setaffinity(0, {cores[peer.rank]})
    connection = Client(address, "AF_UNIX")
    connection.send(peer.rank)
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if message is None:
            return
        (what, nbytes, pause), repeats, warm = message
        connection.send(measure(peer, what, nbytes, pause, repeats, warm))


def measure(peer, what, nbytes, pause, repeats, warm=0):
    """Return the seconds of repetitions after the first ``warm``, and the error in the last result (None if correct).

    Without a pause, all ranks start together. With a pause, only rank 0 sleeps, while the other ranks wait for it in
    ``run``.
    """
    mine = np.full(max(1, nbytes // 4), peer.rank + 1, "float32")
    run, result, expected = peer.prepare(what, mine)
    times = []
    for _ in range(warm + repeats):
        if not pause:
            peer.wait()
        elif peer.rank == 0:
            time.sleep(pause)
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    found = None if result is None else float(result[-1])
    return times[warm:], None if found == expected else f"expected {expected}, got {found}"


if __name__ == "__main__":
    program, size, address = sys.argv[1:]
    live(PROGRAMS[program].start(int(size)), address)
