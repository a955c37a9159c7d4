"""Shared code of the MNIST demos for both engines: loop over epochs, table, and options.

Only training steps are timed.
"""

import argparse
import sys
import time
from typing import NamedTuple

import numpy as np
from other_programs import OtherPrograms, sentence
from tqdm import tqdm

# Largest accepted distance from the serial program's parameters, divided by their change in training (Euclidean norm).
# Sums over shards round differently. Distances from 6e-7 to 5e-6 were observed at the end of training.
TOLERANCE = 1e-3


class Settings(NamedTuple):
    """Settings of a training run, except for the network."""

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.9
    seed: int = 0
    progress: bool = True


class Run(NamedTuple):
    """Results of a training run."""

    name: str
    prepare_seconds: float
    train_seconds: float
    losses: list
    valid_accuracy: float
    test_accuracy: float
    way: np.ndarray  # final minus initial parameters, all in one vector
    others: float = 0.0  # share of CPU time used by other programs


def iter_minibatch_idxs(length, size, random):
    """Yield shuffled row indices in batches of ``size``; the last batch may be smaller."""
    order = random.permutation(length)
    for start in range(0, length, size):
        yield order[start : start + size]


def train(name, train_epoch, accuracy_fn, param_vars, initial, prepare_seconds, mnist, settings):
    """Train for all epochs, and print the progress after each epoch; return the `Run`."""
    random = np.random.RandomState(settings.seed)
    length, seconds, losses = len(mnist.X_train), 0.0, []
    print(f"{name}: ready after {prepare_seconds:.1f} s", flush=True)
    others = OtherPrograms()
    batches_per_epoch = -(-length // settings.batch_size)
    with tqdm(
        total=settings.epochs * batches_per_epoch,
        desc="training",
        unit="batch",
        leave=False,
        disable=None if settings.progress else True,  # None shows a bar only on a terminal
    ) as bar:
        for epoch in range(settings.epochs):
            start = time.perf_counter()
            minibatches = list(iter_minibatch_idxs(length, settings.batch_size, random))
            batch_losses = train_epoch(minibatches, on_step=lambda i, loss: bar.update())
            epoch_seconds = time.perf_counter() - start
            seconds += epoch_seconds
            losses.append(np.average(batch_losses, weights=[len(batch_idxs) for batch_idxs in minibatches]))
            valid_accuracy = float(accuracy_fn(mnist.X_valid, mnist.y_valid))
            bar.write(
                f"  epoch {epoch + 1:2d}   loss {losses[-1]:.4f}   validation accuracy {valid_accuracy:6.2%} "
                f"  {epoch_seconds:.2f} s",
                file=sys.stdout,
            )
            sys.stdout.flush()  # shows the epoch immediately, even if stdout is a pipe
    share = others.share()
    test_accuracy = float(accuracy_fn(mnist.X_test, mnist.y_test))
    way = flat_values(param_vars) - initial
    return Run(name, prepare_seconds, seconds, losses, valid_accuracy, test_accuracy, way, share)


def flat_values(param_vars):
    """Return the values of all parameters in one vector."""
    return np.concatenate([param.get_value().ravel() for param in param_vars])


def difference(run, serial):
    """Return the relative distance between two runs' parameters, ``|p - p_serial| / |p_serial - p_initial|``."""
    return float(np.linalg.norm(run.way - serial.way) / np.linalg.norm(serial.way))


def describe(mnist):
    """Print the source of the digits and the number of rows in each set."""
    print(
        f"{mnist.source}: {len(mnist.X_train):,} rows for training, {len(mnist.X_valid):,} for validation, "
        f"{len(mnist.X_test):,} for testing"
    )


def report(parallel, serials, plain):
    """Print the table; return whether the parameters equal those of the serial program `plain` within `TOLERANCE`."""
    runs = [parallel] + serials
    print(
        "\n{:30s} {:>9s} {:>9s} {:>9s} {:>11s} {:>8s}".format(
            "", "prepare", "training", "per epoch", "validation", "test"
        )
    )
    for run in runs:
        print(
            f"{run.name:30s} {run.prepare_seconds:7.1f} s {run.train_seconds:7.2f} s "
            f"{run.train_seconds / len(run.losses):7.3f} s {run.valid_accuracy:11.2%} "
            f"{run.test_accuracy:8.2%}"
        )
    taken = sentence(max(run.others for run in runs))
    if taken:
        print("\n" + taken)
    if not serials:
        return True
    best = min(serials, key=lambda run: run.train_seconds)
    print(f"\nspeedup over {best.name} (the faster run of {plain}): {best.train_seconds / parallel.train_seconds:.2f}")
    worst = max(difference(parallel, serial) for serial in serials)
    print(
        f"parameters differ from {plain}'s by {worst:.1e}, relative to their change in training "
        f"(allowed: {TOLERANCE:.0e})"
    )
    return worst <= TOLERANCE


def new_parser(description, defaults):
    """Return a parser for the common options; `defaults` maps names of models to `Settings`."""

    def values(field):
        each = [f"{getattr(settings, field)} for the {model}" for model, settings in defaults.items()]
        return "default: " + ", ".join(each)

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, help=values("epochs"))
    parser.add_argument("--batch-size", type=int, help=values("batch_size"))
    parser.add_argument("--learning-rate", type=float, help=values("learning_rate"))
    parser.add_argument(
        "--n-ranks", "--n-parallel", type=int, help="number of ranks; default: the number of usable cores"
    )
    parser.add_argument("--seed", type=int, help="seed of initial values and minibatches; default: 0")
    parser.add_argument("--skip-baseline", dest="baseline", action="store_false", help="do not run the serial program")
    parser.add_argument("--no-progress", dest="progress", action="store_false", help="no progress bar")
    return parser


def parse(parser):
    """Return the options that were set or have a default."""
    return {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
