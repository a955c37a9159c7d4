"""The networks that the demos train, with the digits and the batches; only this module knows where the demos are."""

import itertools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import theano
import theano.tensor as T

import synkhronos  # noqa: F401 (prepares what Lasagne needs of Theano)

DEMOS = Path(__file__).resolve().parents[1] / "demos"
# At the end: a demo's module must not stand before an installed one of that name.
sys.path += [str(folder) for folder in (DEMOS, DEMOS / "lasagne_mnist", DEMOS / "resnet")]

#: How far the mean loss may be from plain Theano's, as part of it: dropout draws other numbers on other ranks.
DROPOUT_TOLERANCE = 0.1


class Task(NamedTuple):
    """What is trained.

    Attributes
    ----------
    inputs : list of variables
        Images and labels.
    params, loss
        Shared variables, and an expression of these and the inputs.
    data : list of arrays
        All images and labels.
    batches : list of index arrays
        The rows of every step.
    rate : float
        Of learning.
    tolerance : float
        How far the mean loss of two runs may differ, as part of it.
    """

    inputs: list
    params: list
    loss: Any
    data: list
    batches: list
    rate: float
    tolerance: float


def single_precision():
    """Return a context in which networks, and functions of them, are built as programs with floatX=float32 do."""
    return theano.configparser.change_flags(floatX="float32")


def batches_of(length, size, steps):
    """Return the rows of the first steps of an epoch (of all if ``steps`` is None), as the demos shuffle them."""
    from minibatches import iter_minibatch_idxs

    return list(itertools.islice(iter_minibatch_idxs(length, size, 0, 0), steps))


def mnist(model, rows=None, steps=None, watch=lambda images: images):
    """Return an epoch, or so many steps, of a model of demos/lasagne_mnist on real digits.

    Parameters
    ----------
    model : str
        As the demo's ``--model``.
    rows, steps : int, optional
        How much of the digits, and of the epoch; all by default.
    watch : callable
        Given the images, returns the expression that the network is built upon.
    """
    import mnist_data
    from lasagne import layers
    from networks import build_network, losses_of, parse_model
    from training import LOSS_TOLERANCE, Settings

    images, labels = T.fmatrix("images"), T.ivector("labels")
    network = build_network(model, watch(images), 0)
    loss = losses_of(network, labels)[0]
    digits, settings = mnist_data.load(), Settings()
    data = [digits.X_train[:rows], digits.y_train[:rows]]
    return Task(
        [images, labels],
        layers.get_all_params(network, trainable=True),
        loss,
        data,
        batches_of(len(data[0]), settings.batch_size, steps),
        settings.learning_rate,
        DROPOUT_TOLERANCE if parse_model(model)[1] else LOSS_TOLERANCE["float32"],
    )


def resnet_graph(depth, watch=lambda images: images):
    """Return the network of demos/resnet and its expressions (a `workload.Task`), and the settings."""
    import workload

    settings = workload.make_settings(depth=depth)
    return workload.build_task(settings, watch), settings


def resnet(depth, steps, watch=lambda images: images):
    """Return steps of training a residual network of demos/resnet, on digits (on random images if depth is 50)."""
    import workload
    from train_resnet import LOSS_TOLERANCE

    task, settings = resnet_graph(depth, watch)
    images = workload.load_images(settings)
    return Task(
        task.inputs,
        task.params,
        task.loss,
        [images.X_train, images.y_train],
        batches_of(len(images.X_train), settings.batch_size, steps),
        settings.learning_rate,
        LOSS_TOLERANCE,
    )
