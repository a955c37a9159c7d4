"""Benchmark of nutpie's chains: each on ranks of its own (groups), compared with plain PyMC's chains in threads.

python -m benchmarks.chains                               # two chains, groups of one and of two ranks
python -m benchmarks.chains --chains 4 --ranks 1 2 4      # on a machine with 16 cores

Variants take turns, in random order in each round. Every round samples the same draws: the seed is fixed, and the
numbers of gradients are compared. The table contains the median time of sampling, without compilation and the start of
groups, and the median of the rounds' ratios to the faster of plain PyMC's two variants. On as many cores as ranks, each
of several chains should take the time of a single chain on as many ranks, if the memory's bandwidth suffices.
"""

import argparse
import contextlib
import os
import random
import sys
import time

import numpy as np
import nutpie
import threadpoolctl

import synkhronos as synk
from synkhronos.extensions.pymc import data_parallel
from synkhronos.extensions.pymc.choosing import start_groups

from .measure import stolen
from .pymc import logistic, logistic_arrays
from .report import machine

PLAIN = {"plain, as installed": None, "plain, one BLAS thread": 1}


class Sampler:
    """A compiled model, sampled with the same seed each time."""

    def __init__(self, model, draws):
        self.compiled, self.draws = nutpie.compile_pymc_model(model), draws

    def __call__(self, chains, draws=None):
        """Return the seconds of sampling, and the number of gradients."""
        draws, begin = draws or self.draws, time.perf_counter()
        settings = {"draws": draws, "tune": draws, "chains": chains, "cores": chains, "seed": 1, "progress_bar": False}
        stats = nutpie.sample(self.compiled, save_warmup=True, **settings)
        took = time.perf_counter() - begin
        return took, sum(int(part.n_steps.sum()) for part in (stats.sample_stats, stats.warmup_sample_stats))


@contextlib.contextmanager
def groups_of(model, chains, ranks):
    start_groups(model, chains, ranks)
    try:
        yield
    finally:
        synk.close()


def measured(rows, chains, ranks, rounds, draws):
    """Return lists of (seconds, gradients), with an item for each round, by variant."""
    arrays = logistic_arrays(rows)
    model = logistic(*arrays)
    parallel = data_parallel(model)
    plain, ours = Sampler(model, draws), Sampler(parallel, draws)
    shapes = [(1, r) for r in ranks] + [(chains, r) for r in ranks]
    found = {(of, name): [] for of in (1, chains) for name in PLAIN}
    found.update({shape: [] for shape in shapes})
    for number in range(rounds):
        for key in random.sample(list(found), len(found)):
            of, kind = key
            if key in shapes:
                with groups_of(parallel, of, kind):
                    ours(of, 2)  # distributes the function
                    found[key].append(ours(of))
            else:
                with threadpoolctl.threadpool_limits(PLAIN[kind]):
                    found[key].append(plain(of))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def table(found):
    """Return the lines of a table of chains, ranks, seconds, milliseconds per gradient, and ratios to plain PyMC."""
    lines = ["chains  ranks of each           seconds  ms per gradient  speed, relative to plain PyMC"]
    for (chains, kind), results in found.items():
        seconds = np.array([each[0] for each in results])
        best = np.min([[each[0] for each in found[chains, name]] for name in PLAIN], axis=0)
        per_gradient = 1e3 * np.median([chains * took / n for took, n in results])
        lines.append(
            f"{chains:<8}{kind!s:<23}{np.median(seconds):>8.2f}{per_gradient:>17.3g}"
            f"{np.median(best / seconds):>20.2f} ({(best / seconds).min():.2f} to {(best / seconds).max():.2f})"
        )
    return lines


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=10, help="number of draws, and of tuning draws before them")
    given = parser.parse_args(arguments)
    busy = stolen()
    found = measured(given.rows, given.chains, given.ranks, given.rounds, given.draws)
    print(f"{machine()}; {given.rows:,} rows x 20, {given.draws} + {given.draws} draws, {given.rounds} rounds")
    print(f"Other programs took {100 * max(busy, stolen()):.0f} % of a core; load {os.getloadavg()[0]:.1f}.")
    print("\n".join(table(found)))
    counts = {chains: {n for key, each in found.items() if key[0] == chains for _, n in each} for chains, _ in found}
    if any(len(each) > 1 for each in counts.values()):
        print(f"The numbers of gradients differ, by chains: {counts}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
