"""Benchmark of epochs with batches from loader processes, compared with data in memory and loading in the loop.

The source needs half of a step's time for a batch. It either *waits*, like a disk or a network, while ranks use all
cores, or *computes*, while a single rank leaves one of two cores free.
"""

import functools
import time

import numpy as np

import synkhronos as synk

from .gradients import mlp
from .library import grad
from .measure import Local, WrongResult, measure_in_turn

#: Contenders without a loader: batches in shared memory from the start, and the source called between the steps.
THERE, IN_THE_LOOP = "data in memory", "loaded in the loop"

#: Names of the sources in cases and goals.
WAITS, COMPUTES = (f"a loader that {what} for half of a step's time" for what in ("waits", "computes"))

#: The source's time for a batch, relative to the time of a step.
PART = 0.5


class Source:
    """A slow source of batches."""

    def __init__(self, rows, layers, computes):
        self.images = np.random.RandomState(3).rand(rows, layers[0]).astype("float32")
        self.labels = np.arange(rows, dtype="int32") % layers[-1]
        self.seconds, self.computes = 0.0, computes

    def __call__(self, i):
        begun = time.perf_counter()
        if not self.computes:
            time.sleep(self.seconds)
        while time.perf_counter() - begun < self.seconds:
            np.sort(self.images[:10])
        return self.images, self.labels


def epoch(step, batches):
    """Run a step for each batch."""
    for batch in batches:
        step(*batch)


def loaded_epoch(step, source, steps):
    """Run `steps` steps on batches from a loader."""
    with synk.loader(source, range(steps)) as loader:
        epoch(step, loader)


def epoch_in_the_loop(step, source, steps):
    """Run `steps` steps, creating each batch just before its step."""
    epoch(step, (source(i) for i in range(steps)))


def run(groups, n=2, rows=1000, layers=(784, 800, 800, 10), steps=100, repeats=10):
    """Yield a row for each kind of source with the times of an epoch of `steps` steps."""
    x, y, loss, params = mlp(layers)
    updates = [(param, param - np.float32(1e-4) * gradient) for param, gradient in zip(params, grad(loss, params))]
    step = synk.function([x, y], loss, updates=updates)
    for ranks, computes in ((n, False), (1, True)):
        synk.fork(ranks, use_gpu=False, threads=1)
        try:
            source = Source(rows, layers, computes)
            here = [synk.data(array) for array in source(0)]

            there = functools.partial(epoch, step, [here] * steps)
            source.seconds = PART * np.median(Local(there).measure(3, warm=1)) / steps
            (arrived,) = synk.loader(source, [0])
            if not all(np.array_equal(*pair) for pair in zip(map(np.asarray, arrived), source(0))):
                raise WrongResult("a batch of a loader differs from its source")
            contenders = {
                "synkhronos": Local(functools.partial(loaded_epoch, step, source, steps)),
                THERE: Local(there),
                IN_THE_LOOP: Local(functools.partial(epoch_in_the_loop, step, source, steps)),
            }
            times = measure_in_turn(contenders, repeats, warm=0)
            yield {"case": f"epoch with {COMPUTES if computes else WAITS}", "n": ranks, "times": times}
        finally:
            synk.close()
