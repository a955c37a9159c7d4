"""Benchmark of the gradient of a PyMC model on all ranks, compared with plain PyMC and with independent programs.

python -m benchmarks.pymc                       # 1,000,000 rows and 20 columns, two ranks; writes docs/performance.md
python -m benchmarks.pymc --rows 100000 --repeats 50
"""

import argparse
import datetime
import functools
import logging
import os
import sys
import time

import numpy as np
import pymc as pm
import threadpoolctl

import synkhronos as synk
from synkhronos.extensions.pymc import data_parallel

from .at_once import CEILING, AtOnce
from .goals import Goal, Verdict
from .measure import BUSY, Local, WrongResult, measure_in_turn, stolen
from .report import DOCUMENT, machine, verdict_table

ROWS, REPEATS = 1_000_000, 200
CASE = "gradient of a logistic regression in PyMC"
THREADS = "plain PyMC, {} threads"
#: Marks of this section in docs/performance.md.
MARK = "<!-- written by python -m benchmarks.pymc: {} -->\n"
BEGIN, END = MARK.format("begin"), MARK.format("end")
GOALS = [
    Goal(f"{CASE}, relative to the ceiling", CASE, 0.93, CEILING, least=True),
    Goal(f"{CASE}, relative to plain PyMC", CASE, 1.0, THREADS.format(2), least=True),
]
SAMPLING = dict(
    draws=50, tune=50, chains=1, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False
)
COLUMNS = 20


def data_of(rows, seed=0):
    """Generate data of a logistic regression."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, COLUMNS))
    probability = 1 / (1 + np.exp(-x @ random.normal(size=COLUMNS)))
    return x, (random.random(rows) < probability).astype("int64")


def model_of(x, y):
    """Return the plain PyMC model of a logistic regression."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=COLUMNS)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta, observed=pm.Data("values", y))
    return model


class Gradient:
    """Callable that evaluates the value and gradient of a model, at another point in each call."""

    def __init__(self, model):
        self.function = model.logp_dlogp_function(ravel_inputs=True)
        self.points = np.random.default_rng(1).normal(scale=0.1, size=(64, COLUMNS))
        self.calls = 0
        self()  # compiles

    def __call__(self):
        self.calls += 1
        return self.function(self.points[self.calls % len(self.points)])


def run(rows=ROWS, n=2, repeats=REPEATS, sampling=SAMPLING):
    """Return the `Times` of gradients by contender, and the seconds of sampling for two of the contenders."""
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
                    raise WrongResult(CASE)
            contenders = {
                "synkhronos": Local(ours, before=functools.partial(limit, 1)),
                "plain PyMC, one thread": Local(plain, before=functools.partial(limit, 1)),
                THREADS.format(n): Local(plain, before=functools.partial(limit, n)),
                CEILING: at_once.contender("gradient"),
            }
            times = measure_in_turn(contenders, repeats, rounds=10)
            sampled = sample({"synkhronos": (parallel_model, 1), THREADS.format(n): (plain_model, n)}, sampling)
        finally:
            synk.close()
    return times, sampled


def sample(models, sampling):
    """Return the seconds of sampling for every model, without the time to compile functions."""
    logging.getLogger("pymc").setLevel(logging.ERROR)  # it warns about the small number of draws
    seconds, chains = {}, []
    for name, (model, threads) in models.items():
        threadpoolctl.threadpool_limits(threads)
        pm.sample(model=model, **dict(sampling, draws=1, tune=1))
        begin = time.perf_counter()
        chain = pm.sample(model=model, discard_tuned_samples=False, **sampling)
        seconds[name] = time.perf_counter() - begin
        chains.append(np.concatenate([group["beta"].values[0] for group in (chain.warmup_posterior, chain.posterior)]))
    if not np.allclose(chains[0][:10], chains[1][:10], rtol=1e-6):
        raise WrongResult("the first 10 draws of NUTS differ")
    return seconds


def judge(times):
    """Return a verdict for each goal."""
    found = [(goal, times["synkhronos"].median, times[goal.beside].median) for goal in GOALS if goal.beside in times]
    return [Verdict(goal, other / ours, ours, other) for goal, ours, other in found]


def document(rows, n, times, sampled, state):
    """Return the section of docs/performance.md, in Markdown."""
    lines = [
        f"Date: {datetime.date.today().isoformat()}. Machine: {machine()}, PyMC {pm.__version__}. {state}\n",
        f"Value and gradient of a logistic regression with {rows:,} rows and {COLUMNS} columns, on {n} ranks:\n",
        verdict_table(judge(times)),
        "| program | median, ms | minimum, ms |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {each.median / 1e3:.2f} | {each.least / 1e3:.2f} |" for name, each in times.items()),
        "\n`pm.sample`, one chain of {tune} tuning draws and {draws} further draws (the first ten agree): ".format(
            **SAMPLING
        )
        + ", ".join(f"{name} {each:.1f} s" for name, each in sampled.items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def write(text, path=DOCUMENT):
    """Replace the generated section of the document."""
    before, rest = path.read_text().split(BEGIN)
    path.write_text(before + BEGIN + text + END + rest.split(END, 1)[1])


def main(arguments=None):
    """Run the benchmark; return the exit status: 0 if the goals were met, 1 if not, 2 if results are inconclusive."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pymc", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--anyway", action="store_true", help="measure and judge even on a busy machine")
    parser.add_argument("--no-write", action="store_true", help="do not write docs/performance.md")
    given = parser.parse_args(arguments)
    before = stolen()
    if before > BUSY and not given.anyway:
        print(
            f"Other programs take {100 * before:.0f} % of a core (load {os.getloadavg()[0]:.1f}). Wait, or add "
            "--anyway."
        )
        return 2
    times, sampled = run(given.rows, given.ranks, given.repeats)
    worst = max(before, stolen())
    state = (
        f"Load {os.getloadavg()[0]:.1f}; other programs took at most {100 * worst:.1f} % of a core before and after."
    )
    text = document(given.rows, given.ranks, times, sampled, state)
    print(text)
    if worst > BUSY and not given.anyway:
        print("Other programs ran during the measurements, so the results are inconclusive.")
        return 2
    if (given.rows, given.ranks) == (ROWS, 2) and not given.no_write:
        write(text)
    return 0 if all(verdict.met for verdict in judge(times)) else 1


if __name__ == "__main__":
    sys.exit(main())
