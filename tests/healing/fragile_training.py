"""A training with all kinds of commands, and a function that kills its rank, for programs in which ranks die."""

import os
import signal
from pathlib import Path

import numpy as np

import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

ROWS, ROUNDS = 24, 12


class Fragile:
    """A function that kills its rank while it is unpickled, once for each file in a folder."""

    def __init__(self, folder):
        self.folder, self.master = folder, os.getpid()

    def __call__(self, value):
        return value

    def __setstate__(self, state):
        self.__dict__.update(state)
        if os.getpid() != self.master:
            for path in Path(self.folder).iterdir():
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)


def build():
    """Return functions of all kinds that change values, and the variables that they change.

    Each update depends on the rows of its rank and on the values before, so an update that is lost, made twice or taken
    from another rank changes the results.
    """
    w, v = engine.shared(np.linspace(0.1, 1, 6), "w"), engine.shared(np.zeros((2, 3)), "v")
    stream = engine.random_stream(5, "stream")
    x = engine.variable("x", "float64", 2)
    mean = engine.mean(x)
    noise = engine.uniform(stream, (2, 3))
    alone = synk.function([x], [(mean, "avg"), (x, "gather")], updates=[(w, w * 0.9 + mean)], exact=False)
    drawing = synk.function([x], (mean, "avg"), updates=[(v, v * 0.5 + noise * mean)], exact=False)
    most = synk.ops.all_reduce(w, "avg")
    joint = synk.function([x], [(synk.ops.all_reduce(mean), None)], updates=[(w, most * 1.1 + mean)], exact=False)
    return w, v, alone, drawing, joint


def training(rounds, disturb=lambda: None):
    """Train with all kinds of commands in turn; return all results, and every rank's values at the end."""
    w, v, alone, drawing, joint = build()
    data, found = np.random.RandomState(3).rand(ROWS, 2), []
    for i in range(rounds):
        batch = slice(i % 8, i % 8 + 12)
        disturb()
        found.append(alone(data, batch=batch))
        disturb()
        found.append(drawing(data, batch=[3, i % ROWS, 5, 7, 11]))
        disturb()
        found.append(joint(data, batch=batch))
        disturb()
        kind = i % 6
        if kind == 0:
            synk.all_reduce([w, v])
        elif kind == 1:
            found.append(alone(data, num_slices=2))
        elif kind == 2:
            found.append(drawing.steps(data, batches=[list(range(j, j + 6)) for j in range(18)]))
        elif kind == 3:
            found.append(joint.steps(data, batches=[list(range(j, j + 6)) for j in range(18)]))
        elif kind == 4:
            synk.broadcast(v, np.full((2, 3), 1.0 + i))
        else:
            synk.scatter(w, data[:, 0])
    return found, synk.gather(w), synk.gather(v, nd_up=1)
