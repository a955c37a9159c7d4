"""What batches cost that loader processes prepare while the ranks compute: an epoch beside one whose data are there.

The source takes half of a step's time for a batch. Either it *waits*, as for a disk or a network, beside ranks on all
cores; or it *computes*, beside a single rank, which leaves it a core of two.
"""

import functools
import time

import numpy as np

import synkhronos as synk

from .gradients import mlp
from .library import grad
from .measure import Local, WrongResult, measure_in_turn

#: The contenders beside ours: batches that lie in shared memory beforehand, and the source called between the steps.
THERE, IN_THE_LOOP = "data in memory", "loaded in the loop"

#: The sources, as cases and goals call them.
WAITS, COMPUTES = (f"a loader that {what} half of a step's time" for what in ("waits", "computes"))

#: Part of a step's time that the source takes for a batch.
PART = 0.5


class Source:
    """Makes batches, and takes its time for it."""

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
    """Take a step for each batch."""
    for batch in batches:
        step(*batch)


def loaded_epoch(step, source, steps):
    """Take so many steps, whose batches a loader prepares."""
    with synk.loader(source, range(steps)) as loader:
        epoch(step, loader)


def epoch_in_the_loop(step, source, steps):
    """Take so many steps, before each of which its batch is made."""
    epoch(step, (source(i) for i in range(steps)))


def run(groups, n=2, rows=1000, layers=(784, 800, 800, 10), steps=100, repeats=10):
    """Measure; yield a row for each kind of source with the times of an epoch of so many steps."""
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
                raise WrongResult("a batch of a loader")
            contenders = {
                "synkhronos": Local(functools.partial(loaded_epoch, step, source, steps)),
                THERE: Local(there),
                IN_THE_LOOP: Local(functools.partial(epoch_in_the_loop, step, source, steps)),
            }
            times = measure_in_turn(contenders, repeats, warm=0)
            yield {"case": f"epoch with {COMPUTES if computes else WAITS}", "n": ranks, "times": times}
        finally:
            synk.close()
