"""Benchmark of PyMC models and a pytensor-ml network on all ranks, compared with one process.

python -m benchmarks.pymc                               # all cases on two ranks, 6 minutes; writes docs/performance.md
python -m benchmarks.pymc --only "logistic regression"  # the cases whose names contain this text
"""

import argparse
import contextlib
import datetime
import functools
import importlib
import importlib.util
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import threadpoolctl
import xarray

import synkhronos as synk
from synkhronos.extensions.pymc import compute_log_likelihood, data_parallel

from .at_once import CEILING, AtOnce
from .goals import Goal, Verdict
from .measure import BUSY, Local, Times, WrongResult, measure_in_turn, stolen
from .report import DOCUMENT, ROOT, machine, verdict_table

#: Marks of this section in docs/performance.md.
MARK = "<!-- written by python -m benchmarks.pymc: {} -->\n"
BEGIN, END = MARK.format("begin"), MARK.format("end")
OURS, BEST = "synkhronos", "the fastest setting of one process"
THREADS = "one process, {} BLAS thread{}"
C_OPENMP, JAX = "one process, C with OpenMP", "one process, JAX"
COLUMNS = 20
TURN_S, ROUNDS = 0.5, 10  # seconds of a contender's turn, and number of turns


class Case(NamedTuple):
    """A model whose gradient is measured, and the target speedup (None: no goal)."""

    name: str
    arrays: Callable[[], Any]  # returns the arrays of rows
    model: Callable[..., pm.Model]  # from the arrays
    parallel: Callable[..., pm.Model]  # from the arrays and the plain model
    goal: Optional[float] = None


# -- models ------------------------------------------------------------------------------------------------------------


def of_model(_, model):
    return data_parallel(model)


def logistic_arrays(rows):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, COLUMNS))
    probability = 1 / (1 + np.exp(-x @ random.normal(size=COLUMNS)))
    return x, (random.random(rows) < probability).astype("int64")


def logistic(x, y):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=COLUMNS)
        pm.Bernoulli("y", logit_p=pm.Data("x", x) @ beta, observed=pm.Data("values", y))
    return model


def groups_arrays(rows):
    random = np.random.default_rng(0)
    group, x = random.integers(0, 85, rows), random.normal(size=rows)
    return group, x, 1 + 0.3 * random.normal(size=85)[group] - 0.7 * x + 0.8 * random.normal(size=rows)


def groups(group, x, y):
    with pm.Model() as model:
        mean, spread = pm.Normal("mean"), pm.HalfNormal("spread")
        level = mean + spread * pm.Normal("z", shape=85)
        mu = level[pm.Data("group", group)] + pm.Normal("slope") * pm.Data("x", x)
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=pm.Data("values", y))
    return model


def purchases_arrays(rows):
    random = np.random.default_rng(0)
    age, number = random.uniform(20, 60, rows), random.poisson(2, rows).astype(float)
    return number, np.where(number > 0, age * random.random(rows), 0), age


def purchases_logp(number, last, age, r, alpha, a, b):
    """Return the log-likelihood of each customer's purchases (BG/NBD; Fader, Hardie and Lee, 2005, eq. 6)."""
    common = pt.gammaln(r + number) - pt.gammaln(r) + r * pt.log(alpha)
    common += pt.gammaln(a + b) + pt.gammaln(b + number) - pt.gammaln(b) - pt.gammaln(a + b + number)
    alive = -(r + number) * pt.log(alpha + age)
    gone = pt.log(a) - pt.log(b + pt.maximum(number, 1) - 1) - (r + number) * pt.log(alpha + last)
    return common + pt.switch(number > 0, pt.logaddexp(alive, gone), alive)


def purchases_priors():
    return [pm.HalfNormal(name, 2) for name in ("r", "alpha", "a", "b")]


def purchases(*arrays):
    with pm.Model() as model:
        params = purchases_priors()
        data = [pm.Data(name, each) for name, each in zip(("number", "last", "age"), arrays)]
        pm.Potential("likelihood", purchases_logp(*data, *params).sum())
    return model


def purchases_parallel(arrays, _):
    with pm.Model() as model:
        data_parallel(purchases_logp, list(arrays), purchases_priors())
    return model


CASES = [
    Case(
        f"logistic regression, {rows:,} rows x {COLUMNS}",
        functools.partial(logistic_arrays, rows),
        logistic,
        of_model,
        goal,
    )
    for rows, goal in ((1_000_000, 1.85), (100_000, 1.6), (10_000, None), (1_000, None))
]
CASES += [
    Case("BG/NBD, 100,000 customers", functools.partial(purchases_arrays, 100_000), purchases, purchases_parallel, 1.8),
    Case("85 groups, 200,000 rows", functools.partial(groups_arrays, 200_000), groups, of_model),
]
POINTWISE = "log-likelihood of 100,000 rows, per draw"
NETWORK = "epoch of MNIST, convolutional network of pytensor-ml"
GOALS = {**{case.name: case.goal for case in CASES}, POINTWISE: 1.8, NETWORK: 1.8}


# -- measurements ------------------------------------------------------------------------------------------------------


class Gradient:
    """Callable that evaluates the value and gradient of a model, at a different point in each call."""

    def __init__(self, model, **flags):
        self.flags = flags
        with self.settings():
            self.function = model.logp_dlogp_function(ravel_inputs=True)
        self.function.set_extra_values(model.initial_point())
        n = sum(np.size(each) for each in model.initial_point().values())
        self.points = np.random.default_rng(1).normal(scale=0.1, size=(64, n))
        self.calls = 0
        self()  # compiles

    def settings(self):
        return pytensor.config.change_flags(**self.flags) if self.flags else contextlib.nullcontext()

    def __call__(self):
        self.calls += 1
        with self.settings():
            return self.function(self.points[self.calls % len(self.points)])


def limited(threads):
    return functools.partial(threadpoolctl.threadpool_limits, threads)


def measured(contenders):
    """Return the `Times` of contenders, measured in turn; a turn of the slowest contender takes half a second."""
    for contender in contenders.values():
        contender.measure(1)
    slowest = max(contender.measure(1)[0] for contender in contenders.values())
    return measure_in_turn(contenders, max(ROUNDS, int(ROUNDS * TURN_S / slowest)), ROUNDS)


def gradients(case, n):
    """Return the `Times` of a case's gradient by contender."""
    arrays = case.arrays()
    shares = zip(*(np.array_split(each, n) for each in arrays))
    parts = [Gradient(case.model(*share)) for share in shares]  # before the fork
    model = case.model(*arrays)
    plain = Gradient(model)
    contenders = {
        THREADS.format(threads, "s" * (threads > 1)): Local(plain, before=limited(threads)) for threads in (1, n)
    }
    contenders[C_OPENMP] = Local(Gradient(model, mode="CVM", openmp=True, cxx=pytensor.config.cxx), before=limited(n))
    if importlib.util.find_spec("jax"):
        contenders[JAX] = Local(Gradient(model, mode="JAX"), before=limited(n))
    parallel = case.parallel(arrays, model)
    with AtOnce([{"gradient": Local(part)} for part in parts]) as at_once:
        synk.fork(n, use_gpu=False)
        try:
            ours = Gradient(parallel)
            for value, expected in zip(ours.function(plain.points[0]), plain.function(plain.points[0])):
                if not np.allclose(value, expected, rtol=1e-9):
                    raise WrongResult(case.name)
            contenders = {OURS: Local(ours, before=limited(1)), **contenders, CEILING: at_once.contender("gradient")}
            return measured(contenders)
        finally:
            synk.close()


#: Draws of a short and a long computation. Their difference is the time of the additional draws, without compilation.
FEW, MANY = 20, 220


def per_draw(many, few):
    """Return the `Times` of an additional draw. (Differences of single runs would contain the noise of both.)"""
    statistics = [(a - b) / (MANY - FEW) for a, b in zip(many[:3], few[:3])]
    return Times(*statistics, many.count)


def pointwise(n):
    """Return the `Times` to compute the log-likelihoods of all rows for one draw."""
    arrays = logistic_arrays(100_000)
    model = logistic(*arrays)
    draws = 0.1 * np.random.default_rng(1).normal(size=(1, MANY, COLUMNS))
    traces = {
        each: xarray.DataTree.from_dict(
            {"posterior": xarray.Dataset({"beta": (("chain", "draw", "i"), draws[:, :each])})}
        )
        for each in (FEW, MANY)
    }
    shares = [logistic(*of_rank) for of_rank in zip(*[np.array_split(array, n) for array in arrays])]
    with AtOnce([{each: Local(likelihoods_of(share, traces[each])) for each in traces} for share in shares]) as at_once:
        synk.fork(n, use_gpu=False)
        try:
            ours = functools.partial(compute_log_likelihood, model=model, progressbar=False)
            found = ours(traces[FEW])["log_likelihood"]["y"].values
            if not np.allclose(found, likelihoods_of(model, traces[FEW])()["y"].values, rtol=1e-10):
                raise WrongResult(POINTWISE)
            contenders = {}
            for each, trace in traces.items():
                contenders[OURS, each] = Local(functools.partial(ours, trace), before=limited(1))
                for k in (1, n):
                    plain = likelihoods_of(model, trace)
                    contenders[THREADS.format(k, "s" * (k > 1)), each] = Local(plain, before=limited(k))
                contenders[CEILING, each] = at_once.contender(each)
            times = measure_in_turn(contenders, 5, 5, warm=0)
            return {name: per_draw(times[name, MANY], times[name, FEW]) for name, each in times if each == FEW}
        finally:
            synk.close()


def likelihoods_of(model, trace):
    """Return a function without arguments that computes a model's log-likelihoods with PyMC."""
    return functools.partial(
        pm.compute_log_likelihood, trace, model=model, extend_inferencedata=False, progressbar=False
    )


def network(n):
    """Return the `Times` of an epoch of a convolutional network of pytensor-ml."""
    from pytensor_ml.activations import Swish
    from pytensor_ml.layers import Conv2D, Flatten, Input, Linear, MaxPool2D, Sequential
    from pytensor_ml.loss import CrossEntropy
    from pytensor_ml.model import Model
    from pytensor_ml.optim import sgd

    sys.path.insert(0, str(ROOT / "demos"))
    mnist = importlib.import_module("mnist_data").load()
    images, labels = mnist.X_train.reshape(-1, 28, 28, 1), mnist.y_train
    order = np.random.default_rng(0).permutation(len(images))
    batches = [order[i : i + 500] for i in range(0, len(order), 500)]

    def compiled():
        first = Input("images", shape=(None, 28, 28, 1))
        layers = [
            Conv2D("first", in_channels=1, out_channels=16, kernel_size=5),
            Swish(),
            MaxPool2D("half", kernel_size=2),
        ]
        layers += [
            Conv2D("second", in_channels=16, out_channels=32, kernel_size=5),
            Swish(),
            MaxPool2D("quarter", kernel_size=2),
        ]
        layers += [Flatten, Linear("classes", n_in=512, n_out=10)]
        model = Model(Sequential(*layers)(first)).initialize(seed=0)
        return model.compile_train(sgd(0.05, momentum=0.9), CrossEntropy(expect_logits=True))

    with pytensor.config.change_flags(floatX="float32"):
        synk.fork(n, use_gpu=False)
        try:
            with synk.functions():
                step = compiled()
            serial = compiled()
            data = synk.data(images), synk.data(labels)
            epoch = functools.partial(step.steps, *data, batches=batches)
            losses = np.ravel(epoch()), np.ravel([serial(images[rows], labels[rows]) for rows in batches])
            if not np.allclose(*losses, rtol=1e-3):
                raise WrongResult(NETWORK)

            def serial_epoch():
                for rows in batches:
                    serial(images[rows], labels[rows])

            contenders = {OURS: Local(epoch, before=limited(1))}
            contenders.update(
                {THREADS.format(k, "s" * (k > 1)): Local(serial_epoch, before=limited(k)) for k in (1, n)}
            )
            return measured(contenders)
        finally:
            synk.close()


def sampled(n, draws=50):
    """Return the seconds of `pm.sample` by contender: one chain of PyMC's sampler, without compilation.

    (nutpie is not measured, because it compiles in every call, and this time varies more than the time of the draws.)
    """
    logging.getLogger("pymc").setLevel(logging.ERROR)  # it warns about the small number of draws
    x, y = logistic_arrays(100_000)
    plain = logistic(x, y)
    models = {OURS: (data_parallel(plain), 1), "one process": (plain, n)}
    arguments = dict(chains=1, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False)
    seconds = {}
    synk.fork(n, use_gpu=False)
    try:
        for name, (model, threads) in models.items():
            threadpoolctl.threadpool_limits(threads)
            times = []
            for number in (1, draws):
                begin = time.perf_counter()
                pm.sample(model=model, nuts_sampler="pymc", draws=number, tune=number, **arguments)
                times.append(time.perf_counter() - begin)
            seconds[name] = times[1] - times[0]
    finally:
        synk.close()
    return seconds


# -- report ------------------------------------------------------------------------------------------------------------


def verdict_of(name, times):
    """Return the verdict of a case: the speedup over the fastest single process (except JAX), by shortest times."""
    others = [each.least for one, each in times.items() if one not in (OURS, CEILING, JAX)]
    goal = Goal(name, name, GOALS[name] or 0.0, BEST, least=True)
    return Verdict(goal, min(others) / times[OURS].least, times[OURS].least, min(others))


def document(found, seconds, state):
    """Return the section of docs/performance.md, in Markdown."""
    verdicts = {name: verdict_of(name, times) for name, times in found.items()}
    columns = list(dict.fromkeys(one for times in found.values() for one in times))
    lines = [
        f"Date: {datetime.date.today().isoformat()}. Machine: {machine()}, PyMC {pm.__version__}, PyTensor "
        f"{pytensor.__version__}. {state}\n",
        verdict_table([each for each in verdicts.values() if each.goal.limit]),
        "Shortest times of 10 turns, in milliseconds; the speedup is relative to the fastest setting of one process "
        "(without JAX):\n",
        "| case | " + " | ".join(columns) + " | speedup |",
        "| --- |" + " ---: |" * (len(columns) + 1),
    ]
    for name, times in found.items():
        cells = [f"{times[one].least / 1e3:.3g}" if one in times else "" for one in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {verdicts[name].ratio:.2f} |")
    if seconds:
        lines += [
            "\n`pm.sample` with PyMC's sampler for the logistic regression with 100,000 rows, one chain of 50 "
            "tuning draws and 50 further draws, without compilation: "
            + ", ".join(f"{name} {each:.1f} s" for name, each in seconds.items())
            + "."
        ]
    return "\n".join(lines) + "\n"


def write(text, path: Path = DOCUMENT):
    """Replace the generated section of the document."""
    before, rest = path.read_text().split(BEGIN)
    path.write_text(before + BEGIN + text + END + rest.split(END, 1)[1])


def main(arguments=None):
    """Run the benchmark; return the exit status: 0 if the goals were met, 1 if not, 2 if results are inconclusive."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pymc", description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="run the cases whose names contain this text, and write nothing")
    parser.add_argument("--anyway", action="store_true", help="measure and judge even on a busy machine")
    parser.add_argument("--no-write", action="store_true", help="do not write docs/performance.md")
    given = parser.parse_args(arguments)
    worst = stolen()
    if worst > BUSY and not given.anyway:
        print(
            f"Other programs take {100 * worst:.0f} % of a core (load {os.getloadavg()[0]:.1f}): wait, or add --anyway."
        )
        return 2
    runs = {case.name: functools.partial(gradients, case) for case in CASES}
    runs.update({POINTWISE: pointwise, NETWORK: network})
    found = {}
    for name, run in runs.items():
        if given.only in name:
            found[name] = run(given.ranks)
            worst = max(worst, stolen())
            print(name, {one: round(each.least / 1e3, 3) for one, each in found[name].items()}, flush=True)
    seconds = {} if given.only else sampled(given.ranks)
    state = f"Load {os.getloadavg()[0]:.1f}; other programs took at most {100 * worst:.1f} % of a core between cases."
    text = document(found, seconds, state)
    print(text)
    if worst > BUSY and not given.anyway:
        print("Other programs ran during the measurements, so the results are inconclusive.")
        return 2
    if not given.only and given.ranks == 2 and not given.no_write:
        write(text)
    return 0 if all(verdict_of(name, times).met for name, times in found.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
