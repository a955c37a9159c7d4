"""Shared variables: updates change a rank's own copy, and ranks communicate only where the program says so.

python -m synkhronos demos/03_shared_variables.py --n-parallel 3
"""

import argparse

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk


def main(n_parallel=None, devices=None):
    """Run one collective after the other and compare with NumPy and plain Theano."""
    n_ranks = synk.fork(n_parallel, devices is not None, devices=devices)
    x = T.dmatrix("x")
    s = theano.shared(np.zeros(3), name="s")
    add = synk.function(inputs=[x], updates=[(s, s + x.sum(axis=0))])
    values = np.arange(30.0).reshape(10, 3)

    def show(what, expected):
        """Compare what every rank holds (in rank order) with what is expected, and print it."""
        held = [synk.get_value(rank, s) for rank in range(n_ranks)]
        for rank in range(n_ranks):
            np.testing.assert_allclose(held[rank], expected[rank], rtol=1e-12, err_msg=what)
        print("{:36s} {}".format(what, "   ".join(str(value.ravel()) for value in held)))

    show("at first, the same on all ranks:", [np.zeros(3)] * n_ranks)
    np.testing.assert_(synk.in_sync(s))

    add(values)  # every rank adds the rows it was given
    shards = synk.gather(s)  # stacked: one row per rank
    show("add(values), on each its own rows:", shards)
    add.as_theano(values)  # plain Theano, on the master alone: its variable is a plain shared variable
    np.testing.assert_allclose(s.get_value() - shards[0], shards.sum(axis=0))
    s.set_value(shards[0])
    if n_ranks > 1:
        print(f"    in_sync says: {synk.in_sync(s)!r}")

    for op, reduced in [("sum", shards.sum(0)), ("min", shards.min(0)), ("avg", shards.mean(0))]:
        np.testing.assert_allclose(synk.reduce(s, op=op, in_place=False), reduced)
        print("reduce, op={:25s} {} for the master, nothing changed".format(repr(op) + ":", reduced))

    synk.all_reduce(s, op="sum")
    show("all_reduce(s, op='sum'):", [values.sum(axis=0)] * n_ranks)
    np.testing.assert_(synk.in_sync(s))

    synk.set_value(n_ranks - 1, s, np.ones(3))
    show("set_value(last rank, s, ones):", [values.sum(axis=0)] * (n_ranks - 1) + [np.ones(3)])

    synk.broadcast(s, np.full(3, 5.0))
    show("broadcast(s, fives):", [np.full(3, 5.0)] * n_ranks)

    synk.scatter(s, np.arange(float(2 * n_ranks + 1)))  # one row more than divides evenly
    lengths = synk.get_lengths(s)
    show("scatter(s, arange(2 n + 1)):", np.split(np.arange(float(2 * n_ranks + 1)), np.cumsum(lengths)[:-1]))

    synk.all_gather(s)
    show("all_gather(s):", [np.arange(float(2 * n_ranks + 1))] * n_ranks)
    print("all as in NumPy and plain Theano")
    synk.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n-parallel", type=int, help="number of ranks; default: the cores this process may use")
    parser.add_argument("--devices", nargs="+", help="of every rank, e.g. cuda0 cuda1; default: CPU processes")
    arguments = parser.parse_args()
    print("compiling (some seconds the first time)", flush=True)
    main(**vars(arguments))
