"""LSTM built with `theano.scan` that reads digits row by row."""

import numpy as np
import theano
import theano.tensor as T

from .demo_networks import Task, batches_of

SIDE, CLASSES = 28, 10


def lstm(units=64, rows=None, steps=None, size=200, watch=lambda images: images):
    """Return a `demo_networks.Task` that trains an LSTM for an epoch, or for `steps` steps.

    The network is from Hochreiter & Schmidhuber (1997), Long short-term memory, Neural Computation 9 (8), with the
    forget gates of Gers, Schmidhuber & Cummins (2000), Neural Computation 12 (10).

    Parameters
    ----------
    units : int
        Number of memory cells.
    rows, steps : int, optional
        Number of digits and of steps; all by default.
    size : int
        Digits per step.
    watch : callable
        Maps the images to the expression that the network is built on.
    """
    import mnist_data

    random = np.random.RandomState(3)

    def weights(name, *shape):
        return theano.shared((random.randn(*shape) / np.sqrt(shape[0])).astype("float32"), name)

    images, labels = T.fmatrix("images"), T.ivector("labels")
    into, back, out = (
        weights("into", SIDE, 4 * units),
        weights("back", units, 4 * units),
        weights("out", units, CLASSES),
    )
    bias = theano.shared(np.zeros(4 * units, "float32"), "bias")
    sequence = watch(images).reshape((-1, SIDE, SIDE)).dimshuffle(1, 0, 2)  # (row of the digit, digit, column)
    nothing = T.zeros((images.shape[0], units), "float32")

    def step(given, cell, hidden):
        gates = given + T.dot(hidden, back)
        take, keep, show = (T.nnet.sigmoid(gates[:, i * units : (i + 1) * units]) for i in range(3))
        cell = keep * cell + take * T.tanh(gates[:, 3 * units :])
        return cell, show * T.tanh(cell)

    (_, hidden), _ = theano.scan(step, sequences=T.dot(sequence, into) + bias, outputs_info=[nothing, nothing])
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(hidden[-1], out)), labels).mean()
    digits = mnist_data.load()
    data = [digits.X_train[:rows], digits.y_train[:rows]]
    return Task(
        [images, labels], [into, back, bias, out], loss, data, batches_of(len(data[0]), size, steps), 0.05, 1e-3
    )
