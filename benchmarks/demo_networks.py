"""Training tasks with the networks, digits and batches of the demos, whose folders are added to ``sys.path``."""

import itertools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import theano
import theano.tensor as T

import synkhronos  # noqa: F401 (prepares Theano for Lasagne)

DEMOS = Path(__file__).resolve().parents[1] / "demos"
# Appended at the end, so that a demo's module does not hide an installed module of the same name.
sys.path += [str(folder) for folder in (DEMOS, DEMOS / "lasagne_mnist", DEMOS / "resnet")]

#: Largest accepted relative difference from plain Theano's mean loss if dropout differs on each rank.
DROPOUT_TOLERANCE = 0.1


class Task(NamedTuple):
    """Training task: a network with its data and batches."""

    inputs: list  # images and labels
    params: list  # shared variables
    loss: Any  # an expression of inputs and params
    data: list  # arrays: all images and labels
    batches: list  # index arrays: the rows of every step
    rate: float  # learning rate
    tolerance: float  # largest accepted relative difference between the mean losses of two runs


def single_precision():
    """Return a context manager that sets floatX=float32, for building networks and their functions."""
    return theano.configparser.change_flags(floatX="float32")


def batches_of(length, size, steps):
    """Return the rows of an epoch's first `steps` steps (all if None), shuffled as in the demos."""
    from minibatches import iter_minibatch_idxs

    return list(itertools.islice(iter_minibatch_idxs(length, size, 0, 0), steps))


def mnist(model, rows=None, steps=None, watch=lambda images: images):
    """Return a task that trains a model of demos/lasagne_mnist on real digits for an epoch, or for `steps` steps.

    Parameters
    ----------
    model : str
        Value of the demo's option ``--model``.
    rows, steps : int, optional
        Number of digits and of steps; all by default.
    watch : callable
        Maps the images to the expression that the network is built on.
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
    """Return the network of demos/resnet with its expressions (a `workload.Task`), and the settings."""
    import workload

    settings = workload.make_settings(depth=depth)
    return workload.build_task(settings, watch), settings


def resnet(depth, steps, watch=lambda images: images):
    """Return a task that trains a residual network of demos/resnet on digits (on random images if `depth` is 50)."""
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
