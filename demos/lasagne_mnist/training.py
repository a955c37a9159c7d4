"""What the training programs have in common: settings, the loop over epochs, the report, the command line."""

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
    """What all programs are given."""

    model: str = "mlp"
    epochs: int = 10
    batch_size: int = 200
    learning_rate: float = 0.05
    warm_up: int = 0  # epochs in which the learning rate grows to that
    rows: Optional[int] = None  # of the training set; all by default
    seed: int = 0
    floatX: str = "float32"
    checkpoint: Optional[str] = None
    progress: bool = True


class Run(NamedTuple):
    """What a training run gave."""

    name: str
    epoch_seconds: list
    losses: list
    accuracies: list  # on the validation rows
    test_accuracy: float


def load_mnist(settings):
    """Load the digits as numbers of the configured precision, as many for training as are wanted."""
    mnist = mnist_data.load()
    rows, floatX = slice(settings.rows), settings.floatX
    return mnist._replace(
        X_train=mnist.X_train[rows].astype(floatX),
        y_train=mnist.y_train[rows],
        X_valid=mnist.X_valid.astype(floatX),
        X_test=mnist.X_test.astype(floatX),
    )


def resume(settings, variables):
    """Load the checkpoint, if there is one; return the record of the epochs so far."""
    recorder = Recorder()
    if settings.checkpoint and os.path.exists(settings.checkpoint):
        recorder.state = checkpoint.load(settings.checkpoint, variables)["recorder"]
        print(f"going on from {settings.checkpoint} after epoch {len(recorder.rows)}")
    return recorder


def warmed_up(settings, epoch):
    """Return the learning rate at a moment of training, in epochs: a tenth at first, growing evenly to all of it."""
    grown = min(1.0, epoch / settings.warm_up) if settings.warm_up else 1.0
    return settings.learning_rate * (0.1 + 0.9 * grown)


def train(name, settings, variables, minibatches, set_rate, steps, evaluate, mnist):
    """Run the epochs, each in one call of ``steps``, or in one for each minibatch while the learning rate grows.

    The clock runs during the training steps only.

    Parameters
    ----------
    variables : list of shared variables
        What checkpoints save: the parameters of the network, and what else changes in training.
    minibatches : function
        From the number of an epoch to its minibatches, in the form that ``steps`` takes.
    set_rate : function
        Takes the learning rate of the steps that follow.
    steps : function
        From a list of minibatches to the loss of each; calls its keyword ``on_step`` with number and loss after each.
    evaluate : function
        From images and labels to loss and accuracy.

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
            disable=None if settings.progress else True,  # None: no bar unless a person is watching
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


# Sums over shards round differently. In float32 a rounding error at the kink of a rectifier (or a tie in max-pooling)
# switches a unit's gradient, so the distance grows from 1e-7 to what was seen at the end of training: 1e-4.
LOSS_TOLERANCE = {"float32": 5e-3, "float64": 1e-6}
# Dropout draws other numbers on other ranks, as with another seed. On 500 digits an accuracy of 95 % has a standard
# deviation of 1 %; two may differ by 5 %.
ACCURACY_TOLERANCE = 0.05


def agrees(run, serial, model):
    """Print how far a run is from the serial program's; return whether it is as near as it must be."""
    if parse_model(model)[1]:
        difference, allowed = abs(run.test_accuracy - serial.test_accuracy), ACCURACY_TOLERANCE
        what = "test accuracy differs from the serial program's by {:.2%} (allowed: {:.0%}; random layers)"
    else:
        difference = float(np.max(np.abs(np.divide(run.losses, serial.losses) - 1)))
        allowed = LOSS_TOLERANCE[theano.config.floatX]
        what = "training losses differ from the serial program's by up to {:.1e} of their values (allowed: {:.0e})"
    print(f"{run.name}: {what.format(difference, allowed)}")
    return difference <= allowed


def parser(description, n_parallel=True):
    """Return the command line that all programs have."""
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
        help="epochs in which the learning rate grows; default: %(default)s",
    )
    parser.add_argument("--rows", type=int, help="number of training images; default: all")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="default: %(default)s")
    parser.add_argument(
        "--floatX", choices=["float32", "float64"], default=defaults.floatX, help="default: %(default)s"
    )
    parser.add_argument("--no-progress", dest="progress", action="store_false", help="no progress bar")
    if n_parallel:
        parser.add_argument("--n-parallel", type=int, help="number of ranks; default: the cores this process may use")
    return parser


def parse(parser):
    """Return the arguments; a model that does not exist is a sentence."""
    arguments = vars(parser.parse_args())
    try:
        parse_model(arguments["model"])
    except ValueError as error:
        sys.exit(str(error))
    return arguments
