"""What a call and an all_reduce cost, beside what stands in their place elsewhere, measured in one run.

    python -m synkhronos benchmarks/basics.py [--n-parallel 2] [--repeats 300]

- A call of a function without inputs, minus the same call in plain Theano, beside two waits at a
  ``multiprocessing.Barrier`` (what guards a call in the paper's design).
- `all_reduce` of one float32 variable whose value lies in its slot already, beside a copy of as many bytes in memory
  by one process (the floor) and beside sending the values to the master and back through pipes.

Every result is checked. Times are medians in microseconds, to be read as ratios; on a busy machine they say nothing,
and the load is printed for that.
"""

import argparse
import multiprocessing
import os
import time

import numpy as np
import theano

import synkhronos as synk

SIZES = (1 << 16, 1 << 20, 1 << 24, 100 << 20)


def median_us(call, repeats):
    """Return the median time of a call in microseconds."""
    for _ in range(max(3, repeats // 10)):
        call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e6 * float(np.median(times))


def barrier_pair(barrier, rounds):
    """Be a peer of the barrier."""
    for _ in range(rounds):
        barrier.wait()
        barrier.wait()


def measure_barrier(n, repeats):
    """Return the time of two waits at a barrier of n processes."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(n)
    rounds = repeats + max(3, repeats // 10)
    peers = [context.Process(target=barrier_pair, args=(barrier, rounds)) for _ in range(n - 1)]
    for peer in peers:
        peer.start()

    def pair():
        barrier.wait()
        barrier.wait()

    result = median_us(pair, repeats)
    for peer in peers:
        peer.join()
    return result


def pipe_peer(connection, size):
    """Send an array and take the sum back, until told to stop."""
    mine = np.ones(size // 4, "float32")
    while connection.recv() == "go":
        connection.send(mine)
        mine[:] = connection.recv()
        mine[:] = 1


def measure_pipes(n, size, repeats):
    """Return the time of an all_reduce(sum) in which all values pass through the master, by pipes."""
    context = multiprocessing.get_context("fork")
    pairs = [context.Pipe() for _ in range(n - 1)]
    peers = [context.Process(target=pipe_peer, args=(theirs, size)) for _, theirs in pairs]
    for peer in peers:
        peer.start()

    def reduce():
        total = np.ones(size // 4, "float32")
        for ours, _ in pairs:
            ours.send("go")
        for ours, _ in pairs:
            total += ours.recv()
        for ours, _ in pairs:
            ours.send(total)
        assert total[-1] == n

    result = median_us(reduce, repeats)
    for ours, _ in pairs:
        ours.send("stop")
    for peer in peers:
        peer.join()
    return result


def measure_all_reduce(n, size, repeats):
    """Return the times of all_reduce, by contender."""
    variable = theano.shared(np.ones(size // 4, "float32"), "v")
    use = synk.function([], (variable.sum(), "sum"))
    use()
    synk.all_reduce(variable, "avg")  # brings the values into their slots
    ours = median_us(lambda: synk.all_reduce(variable, "max"), repeats)
    assert synk.in_sync(variable) and variable.get_value(borrow=True)[-1] == 1
    source, target = np.ones(size // 4, "float32"), np.empty(size // 4, "float32")
    return {"synkhronos": ours, "one memcpy": median_us(lambda: np.copyto(target, source), repeats),
            "pipes": measure_pipes(n, size, max(5, repeats // 5))}


def main(n_parallel=2, repeats=300):
    """Measure and print; return the rows of the table as (what, size in bytes, times by contender)."""
    print("load before: %.2f %.2f %.2f; %d ranks on %d cores" % (
        os.getloadavg() + (n_parallel, len(os.sched_getaffinity(0)))))
    rows = []
    barrier = measure_barrier(n_parallel, repeats)
    synk.fork(n_parallel, use_gpu=False)
    w = theano.shared(np.float32(3), "w")
    plain, parallel = theano.function([], w * 1), synk.function([], (w * 1, None))
    assert plain() == parallel() == 3
    base = median_us(plain, repeats)
    rows.append(("call, no inputs", 0, {"synkhronos": median_us(parallel, repeats) - base, "mp.Barrier pair": barrier}))
    for size in SIZES:
        rows.append(("all_reduce", size, measure_all_reduce(n_parallel, size, max(5, min(repeats, (1 << 28) // size)))))
    synk.close()
    for what, size, by in rows:
        print("%-16s %9s   %s" % (what, "%d KiB" % (size >> 10) if size else "", "   ".join(
            "%s %.1f us" % item for item in by.items())))
    print("load after: %.2f %.2f %.2f" % os.getloadavg())
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n-parallel", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=300)
    main(**vars(parser.parse_args()))
