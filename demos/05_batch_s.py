"""Data in shared variables: scattered once, selected on each rank with ``batch_s=``, sliced with ``num_slices=``.

python -m synkhronos demos/05_batch_s.py --n-ranks 3
"""

import argparse

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk


def main(n_ranks=None, devices=None):
    """Fit a linear model with gradient descent; compare every call with plain Theano on rows selected by NumPy."""
    n_ranks = synk.fork(n_ranks, devices is not None, devices=devices)
    random = np.random.RandomState(0)
    X, Y = random.rand(100, 4), random.rand(100)
    x, y = T.dmatrix("x"), T.dvector("y")

    def step(w):
        loss = T.mean((x.dot(w) - y) ** 2)
        return dict(outputs=loss, updates=[(w, w - 0.1 * T.grad(loss, w))])

    X_shared, Y_shared = theano.shared(X[:0], "X"), theano.shared(Y[:0], "Y")  # each rank's part of the data
    w, w_serial = theano.shared(np.zeros(4), "w"), theano.shared(np.zeros(4))
    f = synk.function(inputs=[], givens={x: X_shared, y: Y_shared}, sliceable_shareds=[X_shared, Y_shared], **step(w))
    serial = theano.function([x, y], **step(w_serial))
    synk.scatter([X_shared, Y_shared], [X, Y])  # the only transfer of the data

    parts = np.array_split(np.arange(100), n_ranks)  # the rows of each rank
    shortest = min(map(len, parts))
    print("ranks: {}; rows of the data on each rank: {}".format(n_ranks, " + ".join(str(len(part)) for part in parts)))
    same = list(random.permutation(shortest)[:10])
    each = [random.permutation(len(part))[: 10 + rank] for rank, part in enumerate(parts)]
    for what, batch_s, rows in [
        ("nothing: all rows", None, [slice(None)] * n_ranks),
        ("a slice for all ranks", slice(0, 8), [slice(0, 8)] * n_ranks),
        ("a list for all ranks", same, [same] * n_ranks),
        (
            "slices, one per rank",
            [slice(rank, None, 2) for rank in range(n_ranks)],
            [slice(rank, None, 2) for rank in range(n_ranks)],
        ),
        ("arrays, one per rank", each, each),
    ]:
        for num_slices in (1, 3):
            parallel = f(batch_s=batch_s, num_slices=num_slices)
            synk.all_reduce(w, weights=f)  # the ranks have different numbers of rows
            chosen = np.concatenate([part[row] for part, row in zip(parts, rows)])
            np.testing.assert_allclose(parallel, serial(X[chosen], Y[chosen]), rtol=1e-12, err_msg=what)
            np.testing.assert_allclose(w.get_value(), w_serial.get_value(), rtol=1e-12, err_msg=what)
            print(f"{what:24s} num_slices={num_slices}: {len(chosen):3d} rows, loss {float(parallel):.4f}")
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
