"""Random streams: every rank draws its own reproducible numbers, and rank 0 draws plain Theano's numbers.

python -m synkhronos demos/06_random_streams.py --n-ranks 3
"""

import argparse

import numpy as np
import theano
from theano.sandbox.rng_mrg import MRG_RandomStreams

import synkhronos as synk


def main(n_ranks=None, devices=None):
    """Draw from split, identical, seeded and restored streams on all ranks; compare the numbers with plain Theano."""
    plain = theano.function([], MRG_RandomStreams(seed=7).uniform((1000,)))
    plain_numbers = [plain() for _ in range(2)]
    draw = synk.function([], (MRG_RandomStreams(seed=7).uniform((1000,)), "gather"))

    def draws(what, count=2):
        """Draw on all ranks, and print each rank's first numbers; return an array of shape (count, n_ranks, 1000)."""
        numbers = np.stack([draw().reshape(synk.size(), 1000) for _ in range(count)])
        print(what)
        for rank in range(synk.size()):
            print(f"    rank {rank}: {np.round(numbers[:, rank, :3].ravel(), 3)}")
        return numbers

    synk.fork(n_ranks, devices is not None, devices=devices)
    split = draws("fork(): each rank has its own stream")
    np.testing.assert_array_equal(split[:, 0], plain_numbers)  # rank 0 draws the serial program's numbers
    pairs = split.reshape(-1, 2)
    np.testing.assert_equal(len(np.unique(pairs, axis=0)), len(pairs))  # no two ranks draw the same numbers

    streams = [shared for shared in draw.get_shared() if getattr(shared.tag, "is_rng", False)]
    saved = [synk.get_value(streams, rank) for rank in range(synk.size())]
    went_on = draws("two more calls")
    for rank, states in enumerate(saved):
        synk.set_value(streams, states, rank)
    np.testing.assert_array_equal(draws("the earlier states restored: the same numbers"), went_on)
    synk.close()

    synk.fork(n_ranks, devices is not None, devices=devices, seed=7)
    np.testing.assert_array_equal(draws("fork(seed=7): all streams restart, as if the program's seed were 7"), split)
    synk.close()

    synk.fork(n_ranks, devices is not None, devices=devices, seed=7, random="same")
    same = draws('fork(seed=7, random="same"): all ranks draw the same numbers')
    for rank in range(synk.size()):
        np.testing.assert_array_equal(same[:, rank], split[:, 0])
    synk.close()
    print("all equal to plain Theano on rank 0, and identical on several ranks only if requested")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--n-ranks", "--n-parallel", type=int, help="number of ranks; default: the number of usable cores"
    )
    parser.add_argument("--devices", nargs="+", help="device of each rank, e.g. cuda0 cuda1; default: CPU processes")
    arguments = parser.parse_args()
    print("compiling (a few seconds the first time)", flush=True)
    main(**vars(arguments))
