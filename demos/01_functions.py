"""Functions: every rank computes its share of the rows, and one operation per output combines the ranks' results.

python -m synkhronos demos/01_functions.py --n-ranks 3
"""

import argparse

import numpy as np
import theano.tensor as T

import synkhronos as synk


def main(n_ranks=None, devices=None):
    """Call a function with every reduce operation, and compare the results with plain Theano."""
    n_ranks = synk.fork(n_ranks, devices is not None, devices=devices)
    x = T.dvector("x")
    f = synk.function(
        inputs=[x],
        outputs={
            "avg": x.mean(),  # default: the mean over all rows (the ranks' means, weighted by rows)
            "sum": (x.sum(), "sum"),
            "prod": (x.prod(), "prod"),
            "min": (x.min(), "min"),
            "max": (x.max(), "max"),
            "gather": (x**2, "gather"),  # the rows of all ranks, concatenated
            "rows": (x.shape[0], "gather"),  # a scalar becomes a vector with one element per rank
            "None": (x.sum(), None),  # the master's own result
        },
    )
    values = np.arange(1, 11) / 4  # plain arrays are accepted; ranks may have different numbers of rows
    parallel, serial = f(values), f.as_theano(values)

    rows = parallel.pop("rows")
    print("ranks: {}; rows on each: {}; in total: {}".format(n_ranks, " + ".join(map(str, rows)), serial.pop("rows")))
    serial["None"] = values[: rows[0]].sum()  # the master is rank 0, and rows are scattered in rank order
    for op in ("avg", "sum", "prod", "min", "max", "gather", "None"):
        np.testing.assert_allclose(parallel[op], serial[op], rtol=1e-12, err_msg=op)
        print(f"{op:>8s}: {parallel[op]}")
    print("all equal to plain Theano, except None, which is the master's share of the sum")
    synk.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--n-ranks", "--n-parallel", type=int, help="number of ranks; default: the number of usable cores"
    )
    parser.add_argument("--devices", nargs="+", help="device of each rank, e.g. cuda0 cuda1; default: CPU processes")
    arguments = parser.parse_args()
    print("compiling (a few seconds the first time)", flush=True)
    main(**vars(arguments))
