"""The class of the corpus's programs, and functions that many of them share."""

from typing import Any, List, NamedTuple

import numpy as np
from library import L, T

#: Rows of the data set and of a batch. The last batch of an epoch is smaller; neither is divisible by 2 or 3.
ROWS, BATCH = 33, 7


class Program(NamedTuple):
    """A training function, as its author would write it for one process.

    Attributes
    ----------
    inputs, outputs, updates
        As for ``theano.function``.
    params : list of shared variables
        The trained parameters; other updated variables are a rule's state or running averages.
    data : list of arrays
        For each input, an array of `ROWS` rows.
    axis : int
        The axis of the rows in all these arrays.
    """

    inputs: List[Any]
    outputs: List[Any]
    params: List[Any]
    updates: Any
    data: List[np.ndarray]
    axis: int = 0


def batches(data, steps, axis=0):
    """Yield batches for a number of steps, epoch after epoch; each epoch's last batch is smaller."""
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
    """Return labels: one per row, or an array of this shape per row."""
    return random.randint(0, n, (ROWS, *shape)).astype("int32")


def bernoulli(random, p, *shape):
    """Return random zeros and ones for every row, such as a dropout mask."""
    return (random.rand(ROWS, *shape) < p).astype("float64")


def log_likelihood(probabilities, y):
    """Return the mean log-likelihood of labels, as in the Deep Learning Tutorials."""
    return T.mean(T.log(probabilities)[T.arange(y.shape[0]), y])


def error_rate(probabilities, y):
    """Return the fraction of rows whose most probable class is wrong."""
    return T.mean(T.neq(T.argmax(probabilities, axis=1), y))
