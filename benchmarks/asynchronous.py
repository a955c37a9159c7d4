"""Benchmark of synchronous and asynchronous EASGD, without and with another program on one rank's core.

python -m benchmarks.asynchronous                 # two ranks; a minute
python -m benchmarks.asynchronous --ranks 4 --repeats 30

Both rules use the same rows in steps of equal size. The synchronous rule divides each batch over the ranks, and in the
asynchronous rule each batch belongs to one rank. The rules alternate, first on a quiet machine, then with a busy loop
on the last rank's core, which leaves this rank about half of its core. If one of n ranks has a share s of its core, the
synchronous rule takes 1 / s times as long, because all ranks wait for this rank. The asynchronous rule takes
n / (n - 1 + s) times as long.
"""

import argparse
import contextlib
import functools
import os
import subprocess
import sys

import numpy as np

import synkhronos as synk
from synkhronos.extensions import rules

from .gradients import mlp
from .library import grad
from .measure import BUSY, Local, WrongResult, measure_in_turn, stolen

#: Layer sizes, rows of a rank's step, steps of all ranks together, and a rank's steps between exchanges.
LAYERS, ROWS, STEPS, EVERY = (784, 200, 10), 64, 240, 10


@contextlib.contextmanager
def another_program(core):
    """Keep a core busy while the context is open."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(n=2, repeats=10, layers=LAYERS, rows=ROWS, n_steps=STEPS):
    """Return the `Times` of all steps by rule, first on free cores, then with another program on one core."""
    random = np.random.RandomState(0)
    images = random.rand(20 * rows * n, layers[0]).astype("float32")
    labels = random.randint(0, layers[-1], len(images)).astype("int32")
    x, y, loss, params = mlp(layers)
    updates = [(param, param - np.float32(0.05) * gradient) for param, gradient in zip(params, grad(loss, params))]
    step = synk.function([x, y], (loss, "avg"), updates=updates, exact=False)
    chosen = [random.permutation(len(images))[:rows] for _ in range(n_steps // n * n)]
    of_all = [np.concatenate(chosen[i : i + n]) for i in range(0, len(chosen), n)]
    cores = sorted(os.sched_getaffinity(0))
    synk.fork(n, use_gpu=False)
    try:
        data = synk.data(images), synk.data(labels)
        rule = rules.EASGD(step, params, every=EVERY)
        contenders = {
            "synchronous": Local(functools.partial(rule.run, *data, batches=of_all)),
            "asynchronous": Local(functools.partial(rule.run, *data, batches=chosen, asynchronous=True)),
        }
        losses = rule.run(*data, batches=chosen, asynchronous=True)
        first, last = losses[: n_steps // 4].mean(), losses[-n_steps // 4 :].mean()
        if not last < first:
            raise WrongResult(f"the loss did not decrease: it was {first} at the beginning and {last} at the end")
        alone = measure_in_turn(contenders, repeats, warm=1)
        with another_program(cores[n - 1]):
            return alone, measure_in_turn(contenders, repeats, warm=1)
    finally:
        synk.close()


def main():
    """Measure both rules, and print their times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    taken = stolen()
    if taken > BUSY:
        print(f"Other programs take {taken:.0%} of a core, so the following times are inconclusive.")
    alone, beside = measure(options.ranks, options.repeats)
    for name, times in (("on a core for each rank", alone), ("with another program on one core", beside)):
        print(f"{name}:")
        for kind, (median, p99, least, _) in times.items():
            print(f"  {kind:13} {median / 1e3:8.1f} ms (99th percentile {p99 / 1e3:.1f}, minimum {least / 1e3:.1f})")
        print(f"  ratio         {times['synchronous'].median / times['asynchronous'].median:8.2f}")


if __name__ == "__main__":
    main()
