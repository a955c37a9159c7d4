"""Shared code of both training programs: settings, images, expressions, and the loop over batches."""

import argparse
import itertools
import os
import sys
import time
import warnings
from typing import NamedTuple

import lasagne
import numpy as np
import theano
import theano.tensor as T
from batch_norm import BatchNormLayer
from lasagne import layers
from resnet import build_resnet, image_shape
from tqdm import tqdm

from synkhronos.extensions import batch_norm, checkpoint

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import mnist_data  # noqa: E402 (in the parent folder)

RULES = ("sgd", "momentum", "nesterov_momentum", "adam")  # in lasagne.updates and synkhronos.extensions.updates
MAX_SYNTHETIC_BATCHES = 8  # batches of distinct images, which then repeat
SAVE_EVERY = 50  # number of batches in a command, and from one checkpoint to the next
SETTLING_BATCHES = 30  # update only the batch-norm statistics; 0.9 ** 30 = 4% of the old statistics remain


class Settings(NamedTuple):
    """Settings of a training run."""

    depth: int = 20
    batches: int = 50
    batch_size: int = 64
    learning_rate: float = 0.05
    rule: str = "nesterov_momentum"
    normalize: bool = True
    sync_bn: bool = False  # normalize over the rows of all ranks instead of each rank's rows
    dtype: str = "float32"
    seed: int = 0
    progress: bool = True


class Images(NamedTuple):
    """Images of shape ``(images, channels, rows, columns)``, labels of shape ``(images,)``, and their source.

    There are no validation images if the labels are random.
    """

    X_train: np.ndarray
    y_train: np.ndarray
    X_valid: np.ndarray
    y_valid: np.ndarray
    source: str

    @property
    def can_validate(self):
        return len(self.X_valid) > 0


class Task(NamedTuple):
    """A network and its expressions for training and validation."""

    network: layers.Layer
    inputs: list  # images and labels
    params: list
    loss: T.TensorVariable
    valid_loss: T.TensorVariable
    valid_accuracy: T.TensorVariable


class Run(NamedTuple):
    """Results of a training run."""

    name: str
    n_images: int
    seconds: float
    losses: list
    valid_loss: float  # None without validation images, like the accuracy
    valid_accuracy: float


def load_images(settings):
    """Load MNIST padded to 32x32 or, for depth 50, generate random images with random labels."""
    shape = image_shape(settings.depth)
    if shape[0] == 1:
        mnist = mnist_data.load()
        return Images(
            padded(mnist.X_train, settings.dtype),
            mnist.y_train,
            padded(mnist.X_valid, settings.dtype),
            mnist.y_valid,
            f"{mnist.source}, padded to 32 x 32",
        )
    random = np.random.RandomState(settings.seed)
    length = settings.batch_size * min(settings.batches, MAX_SYNTHETIC_BATCHES)
    X = random.standard_normal((length,) + shape).astype(settings.dtype)
    y = random.randint(0, 1000, length).astype(np.int32)
    return Images(X, y, X[:0], y[:0], "{} synthetic images of {} x {} x {}".format(length, *shape))


def padded(images, dtype):
    """Pad each 28x28 image with two rows and columns of zeros on all sides."""
    return np.pad(images.reshape(-1, 1, 28, 28), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="constant").astype(dtype)


def build_task(settings, watch=lambda images: images):
    """Build the network and its expressions; initial values depend only on the seed.

    `watch` maps the images to the expression that the training network receives.
    """
    lasagne.random.set_rng(np.random.RandomState(settings.seed))
    images, labels = T.tensor4("images"), T.ivector("labels")
    norm_layer = batch_norm.BatchNormLayer if settings.sync_bn else BatchNormLayer
    network = build_resnet(settings.depth, images, norm_layer if settings.normalize else None)
    loss = cross_entropy(layers.get_output(network, watch(images)), labels)
    prediction = layers.get_output(network, deterministic=True)
    accuracy = T.mean(T.eq(T.argmax(prediction, axis=1), labels), dtype=theano.config.floatX)
    params = layers.get_all_params(network, trainable=True)
    return Task(network, [images, labels], params, loss, cross_entropy(prediction, labels), accuracy)


def cross_entropy(prediction, labels):
    return lasagne.objectives.categorical_crossentropy(prediction, labels).mean()


def build_validation(function, task):
    """Build a function that updates only batch-norm statistics, and a function for validation loss and accuracy.

    Both accept images and labels. ``function`` is `theano.function` or `synkhronos.function`. The first function
    applies the default updates of batch normalization.
    """
    return function(task.inputs, task.loss), function(task.inputs, [task.valid_loss, task.valid_accuracy])


def prepare(settings):
    """Check the settings and configure Theano."""
    for name in ("batches", "batch_size"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name}: expected at least 1, got {getattr(settings, name)}")
    if settings.sync_bn and not settings.normalize:
        raise ValueError("sync_bn: expected batch normalization to synchronize, got --no-batch-norm")
    warnings.filterwarnings("ignore", module="lasagne")  # Lasagne 0.1 uses keywords that Theano renamed
    theano.config.floatX = settings.dtype


def iter_minibatch_idxs(length, size, random):
    """Yield shuffled row indices in batches of ``size``, epoch after epoch; an epoch's last batch may be smaller."""
    while True:
        order = random.permutation(length)
        for start in range(0, length, size):
            yield order[start : start + size]


def resume(path, variables):
    """Load a checkpoint if the file exists; return the number of batches trained on so far."""
    if not path or not os.path.exists(path):
        return 0
    first = int(checkpoint.load(path, variables)["batches"])
    print(f"continuing from {path} after batch {first}")
    return first


def train(name, steps, settle, validate, images, settings, first=0, save=lambda n_batches: None):
    """Train for the given number of batches, many per command; validate if there are validation images.

    The running statistics of batch normalization lag behind a quickly changing network. After 50 batches, accuracies
    varied from 55% to 70%, but reached 92% with settled statistics. Therefore, some batches update only the statistics
    before validation.

    Parameters
    ----------
    name : str
    steps : function
        Runs a step for each array in a list of arrays of row indices, and returns each step's loss. After each step, it
        calls its second argument with the step's number and loss.
    settle : function
        Updates the running statistics with the rows of the given indices.
    validate : function
        Returns validation loss and accuracy.
    images : Images
    settings : Settings
    first : int
        Number of batches trained on in earlier runs.
    save : function
        Saves the network, given the total number of batches; called after at most `SAVE_EVERY` batches.

    Returns
    -------
    Run
    """
    batches = iter_minibatch_idxs(len(images.X_train), settings.batch_size, np.random.RandomState(settings.seed))
    batches = itertools.islice(batches, first, None)
    losses, n_images, seconds = [], 0, 0.0
    with tqdm(
        total=settings.batches,
        desc=name,
        unit="batch",
        leave=False,
        disable=None if settings.progress else True,  # None shows a bar only on a terminal
    ) as bar:

        def show(i, loss):
            bar.set_postfix(loss=f"{float(loss):.4f}", refresh=False)
            bar.update()

        while len(losses) < settings.batches:
            start = time.perf_counter()
            piece = list(itertools.islice(batches, min(SAVE_EVERY, settings.batches - len(losses))))
            losses += map(float, steps(piece, show))
            seconds += time.perf_counter() - start
            n_images += sum(map(len, piece))
            save(first + len(losses))
    valid_loss, valid_accuracy = None, None
    if images.can_validate:
        for _ in range(SETTLING_BATCHES if settings.normalize else 0):
            settle(next(batches))
        valid_loss, valid_accuracy = (float(value) for value in validate())
    return Run(name, n_images, seconds, losses, valid_loss, valid_accuracy)


def argument_parser(description):
    """Return a parser for the fields of `Settings`; some defaults depend on the depth."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--depth", type=int, help="20, 32, 44 or 56 for MNIST; 50 for ResNet-50 on synthetic images")
    parser.add_argument("--batches", type=int, help="number of batches; default: 50 (4 for depth 50)")
    parser.add_argument("--batch-size", type=int, help="images in a batch over all ranks; default: 64 (8 for depth 50)")
    parser.add_argument("--learning-rate", type=float, help="default: 0.05 (0.003 for depth 50)")
    parser.add_argument("--rule", choices=RULES, help="update rule; default: nesterov_momentum")
    parser.add_argument("--no-batch-norm", dest="normalize", action="store_false", default=None)
    parser.add_argument("--dtype", choices=("float32", "float64"), help="default: float32")
    parser.add_argument("--seed", type=int, help="seed of initial values and minibatches; default: 0")
    parser.add_argument("--no-progress", dest="progress", action="store_false", default=None, help="no progress bar")
    return parser


def parse(parser):
    """Return the options set on the command line, by name."""
    return {name: value for name, value in vars(parser.parse_args()).items() if value is not None}


def make_settings(**given):
    """Return settings from the given fields and the defaults for the depth."""
    # the paper's learning rate of 0.1 for 256 images, scaled to 8 images
    defaults = {"batches": 4, "batch_size": 8, "learning_rate": 0.003} if given.get("depth") == 50 else {}
    return Settings(**{**defaults, **given})
