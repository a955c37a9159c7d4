"""Random streams: every rank draws numbers of its own, rank 0 those of plain Theano; all can be repeated.

python -m synkhronos demos/06_random_streams.py --n-parallel 3
"""

import argparse

import numpy as np
import theano
from theano.sandbox.rng_mrg import MRG_RandomStreams

import synkhronos as synk


def main(n_parallel=None, devices=None):
    """Draw on all ranks: split, the same, by a seed, and continued; compare with plain Theano."""
    plain = theano.function([], MRG_RandomStreams(seed=7).uniform((1000,)))
    plain_numbers = [plain() for _ in range(2)]
    draw = synk.function([], (MRG_RandomStreams(seed=7).uniform((1000,)), "gather"))

    def draws(what, count=2):
        """Draw on all ranks and print the first numbers of each: shape (count, n_ranks, 1000)."""
        numbers = np.stack([draw().reshape(synk.size(), 1000) for _ in range(count)])
        print(what)
        for rank in range(synk.size()):
            print(f"    rank {rank}: {np.round(numbers[:, rank, :3].ravel(), 3)}")
        return numbers

    synk.fork(n_parallel, devices is not None, devices=devices)
    split = draws("fork(): each rank has its own stream")
    np.testing.assert_array_equal(split[:, 0], plain_numbers)  # rank 0 draws what the serial program does
    pairs = split.reshape(-1, 2)
    np.testing.assert_equal(len(np.unique(pairs, axis=0)), len(pairs))  # and no rank draws what another does

    streams = [shared for shared in draw.get_shared() if getattr(shared.tag, "is_rng", False)]
    saved = [synk.get_value(rank, streams) for rank in range(synk.size())]
    went_on = draws("two more calls")
    for rank, states in enumerate(saved):
        synk.set_value(rank, streams, states)
    np.testing.assert_array_equal(draws("the states of before them put back: the same numbers"), went_on)
    synk.close()

    synk.fork(n_parallel, devices is not None, devices=devices, seed=7)
    np.testing.assert_array_equal(draws("fork(seed=7): all begin again, as if the program's seed were 7"), split)
    synk.close()

    synk.fork(n_parallel, devices is not None, devices=devices, seed=7, random="same")
    same = draws('fork(seed=7, random="same"): all ranks draw the same')
    for rank in range(synk.size()):
        np.testing.assert_array_equal(same[:, rank], split[:, 0])
    synk.close()
    print("all as in plain Theano on rank 0, and the same on two ranks only if asked for")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n-parallel", type=int, help="number of ranks; default: the cores this process may use")
    parser.add_argument("--devices", nargs="+", help="of every rank, e.g. cuda0 cuda1; default: CPU processes")
    arguments = parser.parse_args()
    print("compiling (some seconds the first time)", flush=True)
    main(**vars(arguments))
