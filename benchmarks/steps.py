"""Benchmark of many steps per command (`Function.steps`), compared with a loop, and of collectives inside steps."""

import functools
import time

import numpy as np

import synkhronos as synk

from .at_once import CEILING, AtOnce
from .contenders import PLAIN
from .gradients import mlp
from .library import function, grad, shared
from .measure import Local, WrongResult, measure_in_turn

#: Layer sizes and rows of the MLPs, and the number of SGD steps per command.
PROGRAMS = (((20, 20, 10), 32, 1000), ((100, 200, 200, 10), 256, 100))

#: Number of float32 elements to reduce inside a step.
REDUCED = 1024


class Sgd:
    """SGD steps of an MLP without averaging, with our function or the plain library's; create it before `fork`."""

    def __init__(self, layers, compile):
        x, y, loss, self.params = mlp(layers)
        updates = [
            (param, param - np.float32(1e-3) * gradient)
            for param, gradient in zip(self.params, grad(loss, self.params))
        ]
        self.function = compile([x, y], loss, updates=updates)
        self._initial = [param.get_value() for param in self.params]

    def begin(self):
        """Restore the initial values in this process."""
        for param, value in zip(self.params, self._initial):
            param.set_value(value)

    def loop(self, images, labels, batches):
        """Run a step for each batch, as a plain program does."""
        return [self.function(images[rows], labels[rows]) for rows in batches]

    def steps(self, images, labels, batches):
        """Run all steps in one command."""
        return self.function.steps(images, labels, batches=batches)


def run(groups, n=2, programs=PROGRAMS, repeats=30, rounds=1000):
    """Yield a row per program with the times of one step, and a row with the time of an all_reduce inside a step."""
    prepared, works = [], [{} for _ in range(n)]
    random = np.random.RandomState(2)
    for i, (layers, rows, count) in enumerate(programs):
        images = random.rand(8 * rows, layers[0]).astype("float32")
        labels = random.randint(0, layers[-1], len(images)).astype("int32")
        batches = np.array([random.permutation(len(images))[:rows] for _ in range(count)])
        ours, plain = Sgd(layers, synk.function), Sgd(layers, function)
        plain.loop(images, labels, batches[:1])  # lets PyTensor compile before the fork
        plain.begin()
        prepared.append((ours, plain, images, labels, batches))
        for rank in range(n):
            works[rank][i] = Local(functools.partial(plain.loop, images, labels, batches[:, rank::n]))
    with_op, without = (reducer(is_reduced) for is_reduced in (True, False))
    with AtOnce(works) as at_once:
        synk.fork(n, use_gpu=False)
        try:
            for i, (ours, plain, images, labels, batches) in enumerate(prepared):
                data = synk.data(images), synk.data(labels)
                synk.broadcast(ours.params)
                found, expected = ours.steps(*data, batches[:1]), plain.loop(images, labels, batches[:1])
                if not np.allclose(found, expected, rtol=1e-4):
                    raise WrongResult("the loss of an MLP differs from the plain program's")
                times = measure_in_turn(
                    {
                        "synkhronos": Local(functools.partial(ours.steps, *data, batches)),
                        PLAIN: Local(functools.partial(plain.loop, images, labels, batches)),
                        CEILING: at_once.contender(i),
                    },
                    repeats,
                    warm=1,
                )
                each = {
                    name: of_all._replace(
                        median=of_all.median / len(batches),
                        p99=of_all.p99 / len(batches),
                        least=of_all.least / len(batches),
                    )
                    for name, of_all in times.items()
                }
                work = each[PLAIN].median / 1e3
                yield {"case": f"steps of {len(batches):,}, {work:.2g} ms of work each", "n": n, "times": each}
            yield {
                "case": "all_reduce of 4 KB inside steps, us",
                "n": n,
                "value": difference(with_op, without, rounds, repeats),
            }
        finally:
            synk.close()


def reducer(is_reduced):
    """Return a function that updates a vector, optionally with an average over ranks."""
    w = shared(np.ones(REDUCED, "float32"), "w")
    new = w * np.float32(0.999)
    return synk.function([], updates=[(w, synk.ops.all_reduce(new) if is_reduced else new)])


def difference(with_op, without, count, repeats):
    """Return how many microseconds longer a step of the first function takes, from medians measured in turn."""
    seconds = {with_op.steps: [], without.steps: []}
    for _ in range(max(3, repeats // 3)):
        for steps, found in seconds.items():
            steps(n_steps=max(1, count // 10))
            begin = time.perf_counter()
            steps(n_steps=count)
            found.append((time.perf_counter() - begin) / count)
    return 1e6 * float(np.subtract(*map(np.median, seconds.values())))
