"""Functions: inputs are scattered by rows, every rank computes on its own, and each output says how it comes together.

python -m synkhronos demos/01_functions.py --n-parallel 3
"""

import argparse

import numpy as np
import theano.tensor as T

import synkhronos as synk


def main(n_parallel=None, devices=None):
    """Call one function with every reduce operation and compare with plain Theano."""
    n_ranks = synk.fork(n_parallel, devices is not None, devices=devices)
    x = T.dvector("x")
    f = synk.function(
        inputs=[x],
        outputs={
            "avg": x.mean(),  # no op: the average of the ranks' means, weighted by rows, which is the mean of all rows
            "sum": (x.sum(), "sum"),
            "prod": (x.prod(), "prod"),
            "min": (x.min(), "min"),
            "max": (x.max(), "max"),
            "gather": (x**2, "gather"),  # the rows of every rank, one after the other
            "rows": (x.shape[0], "gather"),  # of a number: one for every rank
            "None": (x.sum(), None),  # the master's own result
        },
    )
    values = np.arange(1, 11) / 4  # plain arrays are welcome; 10 rows need not divide evenly
    parallel, serial = f(values), f.as_theano(values)

    rows = parallel.pop("rows")
    print("{} ranks took {} of {} rows".format(n_ranks, " + ".join(map(str, rows)), serial.pop("rows")))
    serial["None"] = values[: rows[0]].sum()  # the master is rank 0, and rows are scattered in rank order
    for op in ("avg", "sum", "prod", "min", "max", "gather", "None"):
        np.testing.assert_allclose(parallel[op], serial[op], rtol=1e-12, err_msg=op)
        print(f"{op:>8s}: {parallel[op]}")
    print("all as in plain Theano, but for None: the master's share of the sum")
    synk.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n-parallel", type=int, help="number of ranks; default: the cores this process may use")
    parser.add_argument("--devices", nargs="+", help="of every rank, e.g. cuda0 cuda1; default: CPU processes")
    arguments = parser.parse_args()
    print("compiling (some seconds the first time)", flush=True)
    main(**vars(arguments))
