"""Batches: ``batch=`` selects rows of the whole data set, and only these rows are scattered.

python -m synkhronos demos/04_batch.py --n-ranks 3
"""

import argparse

import numpy as np
import theano.tensor as T

import synkhronos as synk


def main(n_ranks=None, devices=None):
    """Select rows in every supported form; compare the results with plain Theano on rows selected by NumPy."""
    n_ranks = synk.fork(n_ranks, devices is not None, devices=devices)
    x, y = T.dmatrix("x"), T.dvector("y")
    f = synk.function(inputs=[x, y], outputs=[T.mean(x.sum(axis=1) * y), (y, "gather")])

    random = np.random.RandomState(0)
    X, Y = random.rand(100, 4), np.arange(100.0)
    X_data, Y_data = synk.data(X), synk.data(Y)

    def check(what, parallel, rows):
        mean, order = f.as_theano(X[rows], Y[rows])
        np.testing.assert_allclose(parallel[0], mean, rtol=1e-12, err_msg=what)
        np.testing.assert_array_equal(parallel[1], order, err_msg=what)
        shown = " ".join(f"{row:.0f}" for row in order[:6])
        print("{:34s} {:3d} rows: {}{}".format(what, len(order), shown, " ..." if len(order) > 6 else ""))

    print(f"ranks: {n_ranks}; rows of the data set: {len(X_data)}")
    for what, batch, rows in [
        ("an int: the first rows", 10, slice(10)),
        ("a slice: nothing is copied", slice(20, 50), slice(20, 50)),
        ("an open slice from the end", slice(-7, None), slice(-7, None)),
        ("a slice with a step", slice(90, 10, -20), slice(90, 10, -20)),
        ("a list", [5, 3, 99, 3], [5, 3, 99, 3]),
        ("a tuple", (8, 9), [8, 9]),
    ]:
        check(what, f(X_data, Y_data, batch=batch), rows)

    shuffled = random.permutation(100)
    for start in range(0, 100, 40):  # the last minibatch is smaller, but averages are weighted by rows
        rows = shuffled[start : start + 40]
        check("an array: a shuffled minibatch", f(X_data, Y_data, batch=rows), rows)

    Y_batch = synk.data(Y[shuffled[:40]], minibatch=True)  # contains only the rows of the current batch, in order
    check("with a minibatch=True Data", f(X_data, Y_batch, batch=shuffled[:40]), shuffled[:40])
    check("no batch: all rows", f(X_data, Y_data), slice(None))
    print("all equal to plain Theano")
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
