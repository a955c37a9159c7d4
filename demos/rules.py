"""Train one network by each rule of communication in turn: accuracy, seconds and bytes, as a table and a picture.

    python -m synkhronos demos/rules.py

Every training begins with the same values and takes the same minibatches. Ranks step along the gradients of their own
rows, and a rule of `synkhronos.extensions.rules` says when and how they exchange parameters; the first training
averages gradients in every step, as `train_mnist.py` does. Local SGD that averages after every step is the same by
another way, so these two must arrive at the same parameters.
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
    """What a training by a rule gave."""

    name: str
    accuracies: list  # after each epoch
    seconds: float
    collectives: int
    megabytes: list  # that a rank has read of others until the end of each epoch
    values: np.ndarray


def make_rules(train_fn, n_epochs):
    """Return, by name, a function that makes a rule, and by what the learning rate is divided."""
    n = synk.size()
    groups = [ranks.tolist() for ranks in np.array_split(np.arange(n), 2 if n > 1 else 1)]  # as if on two hosts
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
    """Return training functions (of all ranks together, and of each alone), the rate, and what counts right answers."""
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
    """Return how many collectives there were, and the megabytes that the average rank has read of others' memory."""
    all_moved = [moved for name, moved in synk.traffic().items() if "all_reduce" in name]
    return np.array([sum(moved.calls for moved in all_moved), sum(np.mean(moved.read) for moved in all_moved) / 1e6])


def train(name, train_epoch, rule, accuracy_fn, params, data, epochs, bar):
    """Train by a function of an epoch's minibatches."""
    X, Y, X_test, Y_test, minibatches = data
    accuracies, seconds, moved = [], 0.0, [np.zeros(2)]
    synk.distribute()
    for epoch in range(epochs):
        before, start = traffic(), time.perf_counter()
        losses = train_epoch(X, Y, batches=minibatches[epoch])
        if isinstance(rule, rules.DASO):
            rule.epoch(np.mean(losses))
        seconds += time.perf_counter() - start
        moved.append(moved[-1] + traffic() - before)  # (without that of the consensus)
        with rule.consensus() if rule else nullcontext():
            accuracies.append(float(accuracy_fn(X_test, Y_test)))
        bar.update()
    if rule:
        rule.finish()
    megabytes = [each[1] for each in moved[1:]]
    return Run(name, accuracies, seconds, int(moved[-1][0]), megabytes, flat_values(params))


def main(n_parallel=None, epochs=10, batch_size=64, learning_rate=0.05, n_units=100, seed=0, plot=PLOT, progress=True):
    """Train by each rule, and compare.

    Parameters
    ----------
    n_parallel : int, optional
        Number of ranks; default: the cores this process may use.
    epochs, batch_size, n_units : int
        The batch is that of all ranks together; the network has so many hidden units.
    learning_rate : float
    seed : int
        Of initial values and minibatches.
    plot : str
        The picture; empty: none.
    progress : bool

    Returns
    -------
    agree : bool
        Whether local SGD that averages every step has arrived where synchronous steps have, and every rule has left
        all ranks with the same parameters.
    runs : list of Run
    """
    warnings.filterwarnings("ignore", module="lasagne")  # Lasagne 0.1 uses keywords that Theano renamed
    theano.config.floatX = "float32"
    mnist = mnist_data.load()
    describe(mnist)
    n_ranks = synk.fork(n_parallel, use_gpu=False)
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
    print(f"\n{EVERY_STEP}, is {far:.1e} of the way in training from {SYNCHRONOUS} steps (allowed: {TOLERANCE:.0e})")
    return agree and far <= TOLERANCE, runs


def report(runs):
    """Print the table."""
    print(f"\n{'':22s} {'accuracy':>9s} {'collectives':>12s} {'seconds':>9s} {'MB per rank':>12s}")
    for run in runs:
        moved = f"{run.collectives:12d} {run.seconds:9.2f} {run.megabytes[-1]:12.1f}"
        print(f"{run.name:22s} {run.accuracies[-1]:9.1%} {moved}")


def draw(runs, path):
    """Save a picture, if matplotlib is installed: accuracy against epochs, and against what was read of others."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed: python -m pip install matplotlib")
        return
    figure = Figure(figsize=(11, 4.5))
    FigureCanvasAgg(figure)
    by_epoch, by_bytes = figure.subplots(1, 2, sharey=True)
    for run in runs:
        by_epoch.plot(range(1, len(run.accuracies) + 1), run.accuracies, marker=".", label=run.name)
        by_bytes.plot(run.megabytes, run.accuracies, marker=".", label=run.name)
    by_epoch.set(xlabel="epochs", ylabel="accuracy")
    by_bytes.set(xlabel="MB that a rank has read of others", xscale="symlog")
    by_bytes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    print(f"\nplotted to {path}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n-parallel", type=int, help="number of ranks; default: the cores this process may use")
    parser.add_argument("--epochs", type=int, help="default: 10")
    parser.add_argument("--batch-size", type=int, help="of all ranks together; default: 64")
    parser.add_argument("--learning-rate", type=float, help="default: 0.05")
    parser.add_argument("--n-units", type=int, help="hidden units; default: 100")
    parser.add_argument("--seed", type=int, help="of initial values and minibatches; default: 0")
    parser.add_argument("--plot", metavar="PNG", help=f"the picture; default: {PLOT}; '': none")
    parser.add_argument("--no-progress", dest="progress", action="store_false", help="no progress bar")
    return parse(parser)


if __name__ == "__main__":
    if not main(**parse_arguments())[0]:
        sys.exit("a rule did not compute what it should")
