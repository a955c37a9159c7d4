"""Benchmark of the overlap of an all_reduce between hosts with computation on the ranks; run it with mpirun.

::

    mpirun -host a,b --map-by ppr:1:node --bind-to none python -m benchmarks.hosts.meanwhile

    all_reduce(w, into=mean)                                    communicate
    step()                                                      compute, for about as long
    started = all_reduce(w, into=mean, wait=False)              both
    step()
    started.wait()

The hidden part is the median of ``(communicate + compute - both) / min(communicate, compute)`` over several rounds. The
program prints a line per size and format, with times in milliseconds. (Many short calls would take longer on a busy
link, because the messages that begin and end a call wait in the link's queue.)
"""

import argparse
import json
import sys
import time

import numpy as np

import synkhronos as synk


def seconds(call):
    """Return the time of a call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measured(w, mean, exchange, step, make_as_long, repeats):
    """Return the median times to communicate, to compute and to do both, and the median hidden part."""

    def communicate():
        synk.all_reduce(w, into=mean, exchange=exchange)

    def both():
        started = synk.all_reduce(w, into=mean, exchange=exchange, wait=False)
        step()
        started.wait()

    communicate()
    make_as_long(np.median([seconds(communicate) for _ in range(3)]))
    both()
    rows = []
    for _ in range(repeats):
        times = [seconds(call) for call in (communicate, step, both)]
        rows.append([*times, (times[0] + times[1] - times[2]) / min(times[:2])])
    return np.median(rows, axis=0)


def main():
    """Run the measurements selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[16])
    parser.add_argument("--exchange", nargs="+", default=["none", "bfloat16"], help="none, bfloat16, float16")
    parser.add_argument("--ranks", type=int, default=1, help="ranks on each host")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    n = synk.fork(arguments.ranks, threads=1)
    import theano
    import theano.tensor as T

    a, count = theano.shared(np.eye(192, dtype="float32") / 2, "a"), theano.shared(np.int64(100), "products in a step")
    products, _ = theano.scan(lambda y: T.tanh(T.dot(y, a)), outputs_info=a, n_steps=count)
    step = synk.function([], [], updates=[(a, products[-1])])

    def make_as_long(needed):
        """Make a step take about ``needed`` seconds."""
        step()
        takes = np.median([seconds(step) for _ in range(5)])
        count.set_value(np.int64(max(1, round(int(count.get_value()) * needed / takes))))
        synk.broadcast(count)

    for megabytes in arguments.megabytes:
        size = int(megabytes * 1e6 / 4)
        w, mean = (theano.shared(np.zeros(size, "float32"), name) for name in ("w", "mean"))
        synk.function([], [], updates=[(w, w + 1), (mean, mean)])()
        for exchange in arguments.exchange:
            form = None if exchange == "none" else exchange
            *times, hidden = measured(w, mean, form, step, make_as_long, arguments.repeats)
            row = {"hosts": len(synk.hosts()), "ranks": n, "megabytes": megabytes, "exchange": exchange}
            for name, value in zip(("communicate", "compute", "both"), times):
                row[name + "_ms"] = round(1e3 * value, 1)
            print(json.dumps({**row, "hidden": round(hidden, 3)}), flush=True)
    synk.close()


if __name__ == "__main__":
    sys.exit(main())
