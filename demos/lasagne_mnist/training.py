"""Shared code of the training programs: settings, loop over epochs, report, and command line."""

import argparse
import os
import sys
from typing import NamedTuple, Optional

import mnist_data
import numpy as np
import theano
from networks import parse_model
from tqdm import tqdm

from synkhronos.extensions import checkpoint
from synkhronos.extensions.recorder import Recorder


class Settings(NamedTuple):
    """Settings of a training run."""

    model: str = "mlp"
    epochs: int = 10
    batch_size: int = 200
    learning_rate: float = 0.05
    warm_up: int = 0  # epochs over which the learning rate grows
    rows: Optional[int] = None  # number of training rows; by default, all rows
    seed: int = 0
    floatX: str = "float32"
    checkpoint: Optional[str] = None
    progress: bool = True


class Run(NamedTuple):
    """Results of a training run."""

    name: str
    epoch_seconds: list
    losses: list
    accuracies: list  # on the validation rows
    test_accuracy: float


def load_mnist(settings):
    """Load the digits in the configured precision, limited to the configured number of training rows."""
    mnist = mnist_data.load()
    rows, floatX = slice(settings.rows), settings.floatX
    return mnist._replace(
        X_train=mnist.X_train[rows].astype(floatX),
        y_train=mnist.y_train[rows],
        X_valid=mnist.X_valid.astype(floatX),
        X_test=mnist.X_test.astype(floatX),
    )


def resume(settings, variables):
    """Load the checkpoint if it exists; return the record of the epochs so far."""
    recorder = Recorder()
    if settings.checkpoint and os.path.exists(settings.checkpoint):
        recorder.state = checkpoint.load(settings.checkpoint, variables)["recorder"]
        print(f"continuing from {settings.checkpoint} after epoch {len(recorder.rows)}")
    return recorder


def warmed_up(settings, epoch):
    """Return the learning rate after `epoch` epochs: it grows linearly from a tenth of its full value."""
    grown = min(1.0, epoch / settings.warm_up) if settings.warm_up else 1.0
    return settings.learning_rate * (0.1 + 0.9 * grown)


def train(name, settings, variables, minibatches, set_rate, steps, evaluate, mnist):
    """Train for all epochs, with a call to ``steps`` per epoch, or per minibatch while the learning rate grows.

    Only training steps are timed.

    Parameters
    ----------
    variables : list of shared variables
        The variables in checkpoints: the network's parameters, and all other training state.
    minibatches : function
        Maps the number of an epoch to its minibatches, in the form that ``steps`` accepts.
    set_rate : function
        Sets the learning rate of the following steps.
    steps : function
        Maps a list of minibatches to their losses. After each step, it calls its argument ``on_step`` with the step's
        number and loss.
    evaluate : function
        Maps images and labels to loss and accuracy.

    Returns
    -------
    Run
    """
    recorder = resume(settings, variables)
    print("\n" + name, flush=True)
    for epoch in range(len(recorder.rows), settings.epochs):
        batches = list(minibatches(epoch))
        n_rows = [sum(map(len, batch)) if isinstance(batch, (list, tuple)) else len(batch) for batch in batches]
        at_once = 1 if epoch < settings.warm_up else len(batches)
        with recorder.epoch(), tqdm(
            total=len(batches),
            desc=f"epoch {epoch + 1}",
            unit="batch",
            leave=False,
            disable=None if settings.progress else True,  # None shows a bar only on a terminal
        ) as bar:
            for i in range(0, len(batches), at_once):
                if settings.warm_up and epoch <= settings.warm_up:
                    set_rate(warmed_up(settings, epoch + i / len(batches)))
                losses = steps(batches[i : i + at_once], on_step=lambda i, loss: bar.update())
                recorder.batch(n_rows[i : i + at_once], loss=losses)
        loss, accuracy = evaluate(mnist.X_valid, mnist.y_valid)
        recorder.note(valid_loss=float(loss), accuracy=float(accuracy))
        row = recorder.rows[-1]
        print(
            f"  epoch {epoch + 1:2d}   training loss {row['loss']:.4f}   validation loss {row['valid_loss']:.4f}   "
            f"accuracy {row['accuracy']:6.2%}   {row['seconds']:.2f} s",
            flush=True,
        )
        if settings.checkpoint:
            checkpoint.save(settings.checkpoint, variables, recorder=recorder.state)
    print(f"\n{recorder}")
    test_accuracy = float(evaluate(mnist.X_test, mnist.y_test)[1])
    print(f"  test accuracy {test_accuracy:.2%}")
    columns = [[row[column] for row in recorder.rows] for column in ("seconds", "loss", "accuracy")]
    return Run(name, *columns, test_accuracy)


# Largest accepted relative difference of the training losses without dropout. Sums over shards round differently. In
# float32, a rounding error at the kink of a rectifier (or a tie in max-pooling) switches a unit's gradient on or off.
# Observed differences then grew from 1e-7 to 1e-4 by the end of training.
LOSS_TOLERANCE = {"float32": 5e-3, "float64": 1e-6}
# Largest accepted difference of the test accuracies with dropout. Its random numbers differ from the serial program's,
# as with a different seed. On 500 digits, an accuracy of 95% has a standard deviation of 1%.
ACCURACY_TOLERANCE = 0.05


def agrees(run, serial, model):
    """Print the difference between a run and the serial program; return whether it is within the tolerance."""
    if parse_model(model)[1]:
        difference, allowed = abs(run.test_accuracy - serial.test_accuracy), ACCURACY_TOLERANCE
        what = "test accuracy differs from the serial program's by {:.2%} (allowed: {:.0%}; random layers)"
    else:
        difference = float(np.max(np.abs(np.divide(run.losses, serial.losses) - 1)))
        allowed = LOSS_TOLERANCE[theano.config.floatX]
        what = "training losses differ from the serial program's by up to {:.1e} of their values (allowed: {:.0e})"
    print(f"{run.name}: {what.format(difference, allowed)}")
    return difference <= allowed


def parser(description, has_ranks=True):
    """Return a parser for the options that all programs share."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    defaults = Settings()
    parser.add_argument(
        "--model",
        default=defaults.model,
        help="mlp, cnn or custom_mlp:DEPTH,WIDTH,DROP_INPUT,DROP_HIDDEN; default: %(default)s",
    )
    parser.add_argument("--epochs", type=int, default=defaults.epochs, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size, help="default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=defaults.learning_rate, help="default: %(default)s")
    parser.add_argument(
        "--warm-up",
        type=int,
        default=defaults.warm_up,
        help="epochs over which the learning rate grows; default: %(default)s",
    )
    parser.add_argument("--rows", type=int, help="number of training images; default: all")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="default: %(default)s")
    parser.add_argument(
        "--floatX", choices=["float32", "float64"], default=defaults.floatX, help="default: %(default)s"
    )
    parser.add_argument("--no-progress", dest="progress", action="store_false", help="no progress bar")
    if has_ranks:
        parser.add_argument(
            "--n-ranks", "--n-parallel", type=int, help="number of ranks; default: the number of usable cores"
        )
    return parser


def parse(parser):
    """Return the arguments; exit with a message if the model is unknown."""
    arguments = vars(parser.parse_args())
    try:
        parse_model(arguments["model"])
    except ValueError as error:
        sys.exit(str(error))
    return arguments
