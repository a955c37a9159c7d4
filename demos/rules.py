"""Train a network with each communication rule in turn; print and plot accuracy, time and traffic.

    python -m synkhronos demos/rules.py

All runs start from the same values and use the same minibatches. Ranks step along the gradients of their own rows, and
a rule of `synkhronos.extensions.rules` determines when and how the ranks exchange parameters. The first run averages
gradients in every step, as `train_mnist.py` does. Local SGD that averages after every step is equivalent, so these two
runs must end with the same parameters, up to rounding.
"""

import argparse
import sys
import time
import warnings
from contextlib import nullcontext
from typing import NamedTuple

import lasagne
import mnist_data
import numpy as np
import theano
import theano.tensor as T
from lasagne import layers
from mnist_training import TOLERANCE, describe, flat_values, iter_minibatch_idxs, parse
from tqdm import tqdm

import synkhronos as synk
from synkhronos.extensions import rates, rules
from synkhronos.extensions.train import make_train_function
from synkhronos.extensions.updates import momentum

PLOT = "rules.png"
SYNCHRONOUS, EVERY_STEP = "synchronous", "LocalSGD, every step"


class Run(NamedTuple):
    """Results of training with a communication rule, or with synchronous steps."""

    name: str
    accuracies: list  # after each epoch
    seconds: float
    collectives: int
    megabytes: list  # total that a rank had read from other ranks by the end of each epoch
    values: np.ndarray


def make_rules(train_fn, n_epochs):
    """Return, for each communication rule, a function that creates it, and a divisor for the learning rate."""
    n = synk.size()
    groups = [ranks.tolist() for ranks in np.array_split(np.arange(n), 2 if n > 1 else 1)]  # simulates two hosts
    edge = n_epochs // 5
    return {
        EVERY_STEP: (lambda: rules.LocalSGD(train_fn, every=1), 1),
        "LocalSGD": (lambda: rules.LocalSGD(train_fn, every=8), 1),
        "LocalSGD, bfloat16": (lambda: rules.LocalSGD(train_fn, every=8, exchange="bfloat16"), 1),
        "EASGD": (lambda: rules.EASGD(train_fn, every=10), 1),
        "DiLoCo": (lambda: rules.DiLoCo(train_fn, every=20), 1),
        "SlowMo": (lambda: rules.SlowMo(train_fn, every=20), 1),
        "Gossip": (lambda: rules.Gossip(train_fn, probability=0.1), 1),
        "ASGD": (lambda: rules.ASGD(train_fn, every=4, rate=1), n),
        "DASO": (lambda: rules.DASO(train_fn, groups=groups, epochs=n_epochs, warm_up=edge, cool_down=edge), 1),
    }


def build(n_units, learning_rate, seed):
    """Return two training functions (synchronous, local to each rank), the learning rate, and an accuracy function."""
    lasagne.random.set_rng(np.random.RandomState(seed))
    images, labels = T.matrix("images"), T.ivector("labels")
    network = layers.DenseLayer(layers.InputLayer((None, 784), images), n_units, nonlinearity=T.tanh)
    network = layers.DenseLayer(network, 10, nonlinearity=T.nnet.softmax)
    prediction = layers.get_output(network)
    loss = lasagne.objectives.categorical_crossentropy(prediction, labels).mean()
    params = layers.get_all_params(network, trainable=True)
    rate = theano.shared(np.asarray(learning_rate, theano.config.floatX), "rate")
    together, alone = [
        make_train_function(loss, params, images, labels, momentum, rate, communicate_every=every) for every in (1, 0)
    ]
    right = T.mean(T.eq(T.argmax(prediction, axis=1), labels), dtype=theano.config.floatX)
    return together, alone, rate, synk.function([images, labels], (right, "avg"))


def traffic():
    """Return the number of all_reduce collectives, and the megabytes that a rank has read in them on average."""
    all_moved = [moved for name, moved in synk.traffic().items() if "all_reduce" in name]
    return np.array([sum(moved.calls for moved in all_moved), sum(np.mean(moved.read) for moved in all_moved) / 1e6])


def train(name, train_epoch, rule, accuracy_fn, params, data, epochs, bar):
    """Train with a communication rule, or with synchronous steps if ``rule`` is None; return the `Run`."""
    X, Y, X_test, Y_test, minibatches = data
    accuracies, seconds, moved = [], 0.0, [np.zeros(2)]
    synk.distribute()
    for epoch in range(epochs):
        before, start = traffic(), time.perf_counter()
        losses = train_epoch(X, Y, batches=minibatches[epoch])
        if isinstance(rule, rules.DASO):
            rule.epoch(np.mean(losses))
        seconds += time.perf_counter() - start
        moved.append(moved[-1] + traffic() - before)  # without the traffic of the consensus
        with rule.consensus() if rule else nullcontext():
            accuracies.append(float(accuracy_fn(X_test, Y_test)))
        bar.update()
    if rule:
        rule.finish()
    megabytes = [each[1] for each in moved[1:]]
    return Run(name, accuracies, seconds, int(moved[-1][0]), megabytes, flat_values(params))


def main(n_ranks=None, epochs=10, batch_size=64, learning_rate=0.05, n_units=100, seed=0, plot=PLOT, progress=True):
    """Train with each rule, and compare the results.

    Parameters
    ----------
    n_ranks : int, optional
        Number of ranks; by default, the number of usable cores.
    epochs : int
    batch_size : int
        Number of rows in a batch over all ranks.
    learning_rate : float
    n_units : int
        Number of hidden units.
    seed : int
        Seed of initial values and minibatches.
    plot : str
        File for the plot; no plot if empty.
    progress : bool

    Returns
    -------
    agree : bool
        Whether local SGD that averages in every step agrees with synchronous steps, and all ranks have equal parameters
        after every rule.
    runs : list of Run
    """
    warnings.filterwarnings("ignore", module="lasagne")  # Lasagne 0.1 uses keywords that Theano renamed
    theano.config.floatX = "float32"
    mnist = mnist_data.load()
    describe(mnist)
    n_ranks = synk.fork(n_ranks, use_gpu=False)
    print(f"{n_ranks} rank{'s' if n_ranks > 1 else ''}; compiling (half a minute the first time)", flush=True)
    together, alone, rate, accuracy_fn = build(n_units, learning_rate, seed)
    params = together.params
    initial = [param.get_value() for param in params]
    random = np.random.RandomState(seed)
    minibatches = [list(iter_minibatch_idxs(len(mnist.X_train), batch_size, random)) for _ in range(epochs)]
    X_test = np.concatenate([mnist.X_valid, mnist.X_test])
    Y_test = np.concatenate([mnist.y_valid, mnist.y_test])
    data = [synk.data(each) for each in (mnist.X_train, mnist.y_train, X_test, Y_test)] + [minibatches]
    accuracy_fn(X_test, Y_test)
    changed = rates.LearningRate(rate)
    made = make_rules(alone, epochs)
    runs, agree = [], True
    with tqdm(total=(len(made) + 1) * epochs, unit="epoch", leave=False, disable=None if progress else True) as bar:
        for name in [SYNCHRONOUS, *made]:
            step = together if name == SYNCHRONOUS else alone
            for shared, value in zip(params, initial):
                synk.broadcast(shared, value)
            for shared in step.state:
                synk.broadcast(shared, np.zeros_like(shared.get_value()))
            make, divisor = made.get(name, (None, 1))
            changed.set(learning_rate / divisor)
            rule = make() if make else None
            bar.set_description(name)
            run = train(name, rule.run if rule else step.steps, rule, accuracy_fn, params, data, epochs, bar)
            agree &= bool(synk.in_sync(params))
            runs.append(run)
    synk.close()
    report(runs)
    if plot:
        draw(runs, plot)
    serial = runs[0].values - np.concatenate([value.ravel() for value in initial])
    far = np.linalg.norm(runs[1].values - runs[0].values) / np.linalg.norm(serial)
    print(
        f"\n{EVERY_STEP}: parameters differ from those of {SYNCHRONOUS} steps by {far:.1e}, "
        f"relative to their change in training (allowed: {TOLERANCE:.0e})"
    )
    return agree and far <= TOLERANCE, runs


def report(runs):
    """Print a table of all runs."""
    print(f"\n{'':22s} {'accuracy':>9s} {'collectives':>12s} {'seconds':>9s} {'MB per rank':>12s}")
    for run in runs:
        moved = f"{run.collectives:12d} {run.seconds:9.2f} {run.megabytes[-1]:12.1f}"
        print(f"{run.name:22s} {run.accuracies[-1]:9.1%} {moved}")


def draw(runs, path):
    """Plot accuracy against epochs and against traffic, if matplotlib is installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot, because matplotlib is not installed: python -m pip install matplotlib")
        return
    figure = Figure(figsize=(11, 4.5))
    FigureCanvasAgg(figure)
    by_epoch, by_bytes = figure.subplots(1, 2, sharey=True)
    for run in runs:
        by_epoch.plot(range(1, len(run.accuracies) + 1), run.accuracies, marker=".", label=run.name)
        by_bytes.plot(run.megabytes, run.accuracies, marker=".", label=run.name)
    by_epoch.set(xlabel="epochs", ylabel="accuracy")
    by_bytes.set(xlabel="MB read by a rank from other ranks", xscale="symlog")
    by_bytes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    print(f"\nplotted to {path}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--n-ranks", "--n-parallel", type=int, help="number of ranks; default: the number of usable cores"
    )
    parser.add_argument("--epochs", type=int, help="default: 10")
    parser.add_argument("--batch-size", type=int, help="rows in a batch over all ranks; default: 64")
    parser.add_argument("--learning-rate", type=float, help="default: 0.05")
    parser.add_argument("--n-units", type=int, help="hidden units; default: 100")
    parser.add_argument("--seed", type=int, help="seed of initial values and minibatches; default: 0")
    parser.add_argument("--plot", metavar="PNG", help=f"file for the plot; default: {PLOT}; '' for no plot")
    parser.add_argument("--no-progress", dest="progress", action="store_false", help="no progress bar")
    return parse(parser)


if __name__ == "__main__":
    if not main(**parse_arguments())[0]:
        sys.exit("the results of a rule differ from the expected results")
