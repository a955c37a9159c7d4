"""How much of an all_reduce between hosts is hidden behind what the ranks compute meanwhile: a program for mpirun.

::

    mpirun -host a,b --map-by ppr:1:node --bind-to none python -m benchmarks.hosts_meanwhile

    all_reduce(w, into=mean)                                    communicate
    step()                                                      compute, for about as long
    started = all_reduce(w, into=mean, wait=False)              both
    step()
    started.wait()

The part that is hidden: ``(communicate + compute - both) / min(communicate, compute)``, the median of some rounds. A line
per size and format, with times in milliseconds. (Calls of many short steps would take longer while a link is busy: the
words that begin and end a call wait in its queue.)
"""

import argparse
import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import theano  # noqa: E402
import theano.tensor as T  # noqa: E402

import synkhronos as synk  # noqa: E402  (first: on other hosts it goes no further)


def seconds(call):
    """Return how long a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main():
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[16])
    parser.add_argument("--exchange", nargs="+", default=["none", "bfloat16"], help="none, bfloat16, float16")
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    n = synk.fork(arguments.ranks)
    for megabytes in arguments.megabytes:
        size = int(megabytes * 1e6 / 4)
        w, mean = (theano.shared(np.zeros(size, "float32"), name) for name in ("w", "mean"))
        a, count = theano.shared(np.eye(192, dtype="float32") / 2, "a"), theano.shared(np.int64(1), "count")
        products, updates = theano.scan(lambda y: T.tanh(T.dot(y, a)), outputs_info=a, n_steps=count)
        assert not updates
        touch = synk.function([], [], updates=[(w, w + 1), (mean, mean)])
        step = synk.function([], [], updates=[(a, products[-1])])

        def last(products, count=count):
            """Have a step make so many products."""
            count.set_value(np.int64(products))
            synk.broadcast(count)

        touch()
        for exchange in arguments.exchange:
            form = None if exchange == "none" else exchange
            rows = []

            def communicate(options=dict(into=mean, exchange=form), w=w):
                synk.all_reduce(w, **options)

            communicate()
            needed = np.median([seconds(communicate) for _ in range(3)])
            last(100)
            products_in_step = max(1, round(100 * needed / np.median([seconds(step) for _ in range(5)])))
            last(products_in_step)

            def both(options=dict(into=mean, exchange=form, wait=False), w=w, step=step):
                started = synk.all_reduce(w, **options)
                step()
                started.wait()

            both()
            for _ in range(arguments.repeats):
                times = [seconds(communicate), seconds(step), seconds(both)]
                rows.append([*times, (times[0] + times[1] - times[2]) / min(times[:2])])
            medians = np.median(rows, axis=0)
            row = dict(hosts=len(synk.hosts()), ranks=n, megabytes=megabytes, exchange=exchange)
            for name, value in zip(("communicate", "compute", "both"), medians):
                row[name + "_ms"] = round(1e3 * value, 1)
            print(json.dumps({**row, "hidden": round(medians[3], 3)}), flush=True)
    synk.close()


if __name__ == "__main__":
    sys.exit(main())
