"""What a program of the corpus is, and its parts that many have."""

from typing import Any, List, NamedTuple

import numpy as np
from library import L, T

#: Rows of the data set and of a batch. The last batch of an epoch is smaller; neither is divisible by 2 or 3.
ROWS, BATCH = 33, 7


class Program(NamedTuple):
    """A function that trains, as its author would write it for one process.

    Attributes
    ----------
    inputs, outputs, updates
        As for ``theano.function``.
    params : list of shared variables
        What is trained; other targets of updates are the state of a rule, or running averages.
    data : list of arrays
        For each input, of `ROWS` rows.
    axis : int
        Along which axis the rows lie, in all of them.
    """

    inputs: List[Any]
    outputs: List[Any]
    params: List[Any]
    updates: Any
    data: List[np.ndarray]
    axis: int = 0


def batches(data, steps, axis=0):
    """Yield as many batches: one epoch after another, each with a smaller last batch."""
    starts = range(0, ROWS, BATCH)
    for step in range(steps):
        start = starts[step % len(starts)]
        rows = (slice(None),) * axis + (slice(start, start + BATCH),)
        yield [array[rows] for array in data]


def weights(random, *shape, name=None, scale=0.5):
    """Return a shared variable with small random values."""
    return L.shared(scale * random.randn(*shape), name)


def zeros(*shape, name=None):
    """Return a shared variable of zeros."""
    return L.shared(np.zeros(shape), name)


def classes(random, n, *shape):
    """Return labels, one a row, or an array of such shape in each row."""
    return random.randint(0, n, (ROWS, *shape)).astype("int32")


def bernoulli(random, p, *shape):
    """Return draws of 0 and 1 for every row: a dropout mask, a corruption, a sample."""
    return (random.rand(ROWS, *shape) < p).astype("float64")


def log_likelihood(probabilities, y):
    """Return the mean log-likelihood of labels, as the tutorials write it."""
    return T.mean(T.log(probabilities)[T.arange(y.shape[0]), y])


def error_rate(probabilities, y):
    """Return the share of rows whose most probable class is not the right one."""
    return T.mean(T.neq(T.argmax(probabilities, axis=1), y))
