"""A logistic regression in PyMC: its gradient by all ranks beside plain PyMC, and beside programs that never meet.

python -m benchmarks.pymc                       # 1,000,000 rows and 20 columns, two ranks
python -m benchmarks.pymc --rows 100000 --repeats 50
"""

import argparse
import functools
import os

import numpy as np
import pymc as pm
import threadpoolctl

import synkhronos as synk
from synkhronos.extensions.pymc import data_parallel

from .at_once import CEILING, AtOnce
from .measure import BUSY, Local, WrongResult, measure_in_turn, stolen

COLUMNS = 20


def data_of(rows, seed=0):
    """Return so many rows of a logistic regression."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, COLUMNS))
    probability = 1 / (1 + np.exp(-x @ random.normal(size=COLUMNS)))
    return x, (random.random(rows) < probability).astype("int64")


def model_of(x, y):
    """Return the plain model."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=COLUMNS)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta, observed=pm.Data("values", y))
    return model


class Gradient:
    """Value and gradient of a model, at another point in every call."""

    def __init__(self, model):
        self.function = model.logp_dlogp_function(ravel_inputs=True)
        self.points = np.random.default_rng(1).normal(scale=0.1, size=(64, COLUMNS))
        self.calls = 0
        self()  # compiles

    def __call__(self):
        self.calls += 1
        return self.function(self.points[self.calls % len(self.points)])


def run(rows=1_000_000, n=2, repeats=60):
    """Measure; return the times by contender."""
    x, y = data_of(rows)
    parts = [Gradient(model_of(*share)) for share in zip(np.array_split(x, n), np.array_split(y, n))]  # before the fork
    plain_model = model_of(x, y)
    plain = Gradient(plain_model)
    parallel_model = data_parallel(plain_model)
    limit = threadpoolctl.threadpool_limits
    with AtOnce([{"gradient": Local(part)} for part in parts]) as at_once:
        synk.fork(n, use_gpu=False)
        try:
            ours = Gradient(parallel_model)
            for value, expected in zip(ours.function(plain.points[0]), plain.function(plain.points[0])):
                if not np.allclose(value, expected, rtol=1e-10):
                    raise WrongResult("the gradient of a logistic regression")
            return measure_in_turn(
                {
                    "synkhronos": Local(ours, before=functools.partial(limit, 1)),
                    "plain PyMC, one thread": Local(plain, before=functools.partial(limit, 1)),
                    f"plain PyMC, {n} threads": Local(plain, before=functools.partial(limit, n)),
                    CEILING: at_once.contender("gradient"),
                },
                repeats,
            )
        finally:
            synk.close()


def main(arguments=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pymc", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=60)
    given = parser.parse_args(arguments)
    before = stolen()
    times = run(given.rows, given.ranks, given.repeats)
    ours = times["synkhronos"].median
    for name, each in times.items():
        print(f"{name:<45} {each.median / 1000:8.2f} ms, least {each.least / 1000:8.2f}")
    print(f"of what programs that never meet reach: {times[CEILING].median / ours:.3f} (goal 0.93)")
    for name in ("plain PyMC, one thread", f"plain PyMC, {given.ranks} threads"):
        print(f"times as fast as {name}: {times[name].median / ours:.2f}")
    busy = max(before, stolen())
    if busy > BUSY:
        print(
            f"Other programs took {100 * busy:.0f} % of a core (load {os.getloadavg()[0]:.1f}): nothing is concluded."
        )


if __name__ == "__main__":
    main()
