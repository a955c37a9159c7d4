"""Benchmark of an `all_reduce` of large arrays in a program with one rank on each host; run it with mpirun.

::

    mpirun -host a,b --map-by ppr:1:node --bind-to none python -m benchmarks.hosts.large

`bulk` measures only the part between the hosts. This program prints a line per size, format and case, with the median
of several calls. *In slots* means that the value is already in the transport's memory, like a parameter that a function
updates in place. An *updated* value is in an array that a function has created, and must be copied once.
"""

import argparse
import sys
import time

import numpy as np

import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

from .link import report


def main():
    """Run the measurements selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[16, 100])
    parser.add_argument("--exchange", nargs="+", default=["float32", "bfloat16"], help="float32, bfloat16, float16")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    synk.fork(1)
    for megabytes in arguments.megabytes:
        n = int(megabytes * 1e6 / 4)
        given, v = (engine.shared(np.zeros(n, "float32"), name) for name in ("given", "v"))
        give = synk.function([], [], updates=[(v, given)])
        values = (np.arange(n * synk.size()) % 251).astype("float32")
        synk.scatter(given, values)
        mean = values.reshape(-1, n).mean(axis=0)
        for way in arguments.exchange:
            for case in ("in slots", "updated"):
                give()
                times = []
                for _ in range(1 + (arguments.repeats if megabytes < 50 else 3)):
                    if case == "updated":
                        give()
                    begin = time.perf_counter()
                    synk.all_reduce(v, exchange=None if way == "float32" else way)
                    times.append(1e3 * (time.perf_counter() - begin))
                rtol = {"bfloat16": 2**-7, "float16": 2**-10}.get(way, 1e-6)
                np.testing.assert_allclose(v.get_value(), mean, rtol=rtol)
                report(megabytes=megabytes, way=way, case=case, ms=float(np.median(times[1:])))
    synk.close()


if __name__ == "__main__":
    sys.exit(main())
