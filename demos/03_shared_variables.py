"""Shared variables: updates change only a rank's own copy, and ranks communicate only in collectives.

python -m synkhronos demos/03_shared_variables.py --n-ranks 3
"""

import argparse

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk


def main(n_ranks=None, devices=None):
    """Run one collective after another, and compare the results with NumPy and plain Theano."""
    n_ranks = synk.fork(n_ranks, devices is not None, devices=devices)
    x = T.dmatrix("x")
    s = theano.shared(np.zeros(3), name="s")
    add = synk.function(inputs=[x], updates=[(s, s + x.sum(axis=0))])
    values = np.arange(30.0).reshape(10, 3)

    def show(what, expected):
        """Print the values of all ranks, in rank order, and compare them with the expected values."""
        held = [synk.get_value(s, rank) for rank in range(n_ranks)]
        for rank in range(n_ranks):
            np.testing.assert_allclose(held[rank], expected[rank], rtol=1e-12, err_msg=what)
        print("{:36s} {}".format(what, "   ".join(str(value.ravel()) for value in held)))

    show("initially equal on all ranks:", [np.zeros(3)] * n_ranks)
    np.testing.assert_(synk.in_sync(s))

    add(values)  # every rank adds its share of the rows
    shards = synk.gather(s)  # stacked: one row per rank
    show("add(values), each rank's own rows:", shards)
    add.as_theano(values)  # plain Theano, only on the master, where s is a plain shared variable
    np.testing.assert_allclose(s.get_value() - shards[0], shards.sum(axis=0))
    s.set_value(shards[0])
    if n_ranks > 1:
        print(f"    in_sync returns: {synk.in_sync(s)!r}")

    for op, reduced in [("sum", shards.sum(0)), ("min", shards.min(0)), ("avg", shards.mean(0))]:
        np.testing.assert_allclose(synk.reduce(s, op=op, in_place=False), reduced)
        print("reduce, op={:25s} {} on the master, variables unchanged".format(repr(op) + ":", reduced))

    synk.all_reduce(s, op="sum")
    show("all_reduce(s, op='sum'):", [values.sum(axis=0)] * n_ranks)
    np.testing.assert_(synk.in_sync(s))

    synk.set_value(n_ranks - 1, s, np.ones(3))
    show("set_value(last rank, s, ones):", [values.sum(axis=0)] * (n_ranks - 1) + [np.ones(3)])

    synk.broadcast(s, np.full(3, 5.0))
    show("broadcast(s, fives):", [np.full(3, 5.0)] * n_ranks)

    synk.scatter(s, np.arange(float(2 * n_ranks + 1)))  # the last row makes the shards unequal
    lengths = synk.get_lengths(s)
    show("scatter(s, arange(2 n + 1)):", np.split(np.arange(float(2 * n_ranks + 1)), np.cumsum(lengths)[:-1]))

    synk.all_gather(s)
    show("all_gather(s):", [np.arange(float(2 * n_ranks + 1))] * n_ranks)
    print("all equal to NumPy and plain Theano")
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
