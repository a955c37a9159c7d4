"""Train a PyTensor network on real MNIST digits on all cores, then in plain PyTensor, and compare the results.

    python demos/train_mnist_pytensor.py

The parallel program is `train_with_synkhronos`, derived from the serial `train_with_pytensor`. The programs differ in
two ways. Functions are built with ``exact=True``, so that all ranks together compute the serial functions' results. An
epoch is one command (`steps`). Both programs start from the same values and use the same minibatches, so they must end
with the same parameters, up to rounding.
"""

import os
import sys
import time

import mnist_data
import numpy as np
import pytensor
import pytensor.tensor as pt
from mnist_training import Settings, describe, flat_values, new_parser, parse, report, train
from threadpoolctl import threadpool_limits

import synkhronos as synk

DEFAULTS = {"mlp": Settings(epochs=30, batch_size=500, learning_rate=0.2)}


# The network: plain PyTensor code.


def smooth_rectify(x):
    """Return ``x * sigmoid(4 * x)``, a rectifier without a kink.

    At a kink, a rounding error switches a unit's gradient on or off. Two correct programs then drift apart, and a
    strict comparison is impossible.
    """
    return x * pt.sigmoid(4 * x)


def build_mlp(seed, units=(784, 800, 800, 10)):
    """Build the network; initial values depend only on the seed."""
    random = np.random.RandomState(seed)
    images, labels = pt.matrix("images"), pt.ivector("labels")
    layer, param_vars = images, []
    for depth, (n_in, n_out) in enumerate(zip(units[:-1], units[1:]), 1):
        limit = np.sqrt(12 / (n_in + n_out))
        W = new_shared(random.uniform(-limit, limit, (n_in, n_out)), f"W{depth}")
        b = new_shared(np.zeros(n_out), f"b{depth}")
        param_vars += [W, b]
        layer = (smooth_rectify(layer) if depth > 1 else layer) @ W + b
    log_probability = pt.special.log_softmax(layer, axis=-1)
    loss = -log_probability[pt.arange(labels.shape[0]), labels].mean()
    accuracy = pt.mean(pt.eq(pt.argmax(layer, axis=1), labels), dtype=pytensor.config.floatX)
    return images, labels, loss, accuracy, param_vars


def new_shared(value, name):
    return pytensor.shared(np.asarray(value, pytensor.config.floatX), name)


def momentum(grads, param_vars, rate, momentum):
    """Return the updates ``v := momentum * v - rate * gradient`` and ``p := p + v`` for all parameters."""
    updates = []
    for param, grad in zip(param_vars, grads):
        velocity = new_shared(np.zeros_like(param.get_value()), "velocity of " + param.name)
        step = momentum * velocity - rate * grad
        updates += [(velocity, step), (param, param + step)]
    return updates


# The two programs. PyTensor compiles a function at its first call. Training times do not include this compilation.
# `synkhronos.distribute` compiles for all ranks before training, and `compile_now` compiles in the plain program.


def train_with_synkhronos(mnist, settings, n_ranks=None):
    """Train on all ranks, in a new session."""
    start = time.perf_counter()
    n_ranks = synk.fork(n_ranks)
    name = f"synkhronos, {n_ranks} rank{'s' if n_ranks > 1 else ''}"
    print(f"\n{name}: compiling the network (a minute or two the first time)", flush=True)
    images, labels, loss, accuracy, param_vars = build_mlp(settings.seed)
    initial = flat_values(param_vars)
    grads = pytensor.grad(loss, param_vars)
    updates = momentum(grads, param_vars, settings.learning_rate, settings.momentum)
    train_fn = synk.function(inputs=[images, labels], outputs=loss, updates=updates, exact=True)
    accuracy_fn = synk.function(inputs=[images, labels], outputs=accuracy, exact=True)
    synk.distribute()
    X_train, y_train = synk.data(mnist.X_train), synk.data(mnist.y_train)
    prepare_seconds = time.perf_counter() - start

    def train_epoch(minibatches, on_step):
        return train_fn.steps(X_train, y_train, batches=minibatches, on_step=on_step)

    run = train(name, train_epoch, accuracy_fn, param_vars, initial, prepare_seconds, mnist, settings)
    synk.close()
    return run


def train_with_pytensor(mnist, settings, blas_threads):
    """Train in plain PyTensor, in this process only."""
    name = f"plain PyTensor, {blas_threads} BLAS thread{'s' if blas_threads > 1 else ''}"
    print(f"\n{name}: compiling the network", flush=True)
    start = time.perf_counter()
    images, labels, loss, accuracy, param_vars = build_mlp(settings.seed)
    initial = flat_values(param_vars)
    grads = pytensor.grad(loss, param_vars)
    updates = momentum(grads, param_vars, settings.learning_rate, settings.momentum)
    train_fn = pytensor.function(inputs=[images, labels], outputs=loss, updates=updates)
    accuracy_fn = pytensor.function(inputs=[images, labels], outputs=accuracy)
    for function in (train_fn, accuracy_fn):
        compile_now(function, mnist.X_valid, mnist.y_valid)
    prepare_seconds = time.perf_counter() - start

    def train_epoch(minibatches, on_step):
        losses = []
        for i, batch_idxs in enumerate(minibatches):
            losses.append(train_fn(mnist.X_train[batch_idxs], mnist.y_train[batch_idxs]))
            on_step(i, losses[-1])
        return losses

    with threadpool_limits(limits=blas_threads):  # after the first call, which loads SciPy's BLAS
        return train(name, train_epoch, accuracy_fn, param_vars, initial, prepare_seconds, mnist, settings)


def compile_now(function, *args):
    """Call a function to compile it; restore the values that the call updates."""
    shareds = function.get_shared()
    values = [shared.get_value() for shared in shareds]
    function(*args)
    for shared, value in zip(shareds, values):
        shared.set_value(value)


def main(n_ranks=None, baseline=True, **settings):
    """Train in parallel, then serially, and compare the results.

    Parameters
    ----------
    n_ranks : int, optional
        Number of ranks; by default, the number of usable cores.
    baseline : bool
        Whether to run plain PyTensor as well.
    **settings
        Fields of `Settings` that replace the defaults.

    Returns
    -------
    agree : bool
        Whether the programs agree within `mnist_training.TOLERANCE` (True without a baseline).
    runs : list of Run
        The runs, starting with the parallel run.
    """
    pytensor.config.floatX = "float32"
    settings = DEFAULTS["mlp"]._replace(**settings)
    mnist = mnist_data.load()
    describe(mnist)
    parallel = train_with_synkhronos(mnist, settings, n_ranks)
    serials = []
    if baseline:
        for blas_threads in sorted({1, len(os.sched_getaffinity(0))}):
            serials.append(train_with_pytensor(mnist, settings, blas_threads))
    return report(parallel, serials, "plain PyTensor"), [parallel] + serials


if __name__ == "__main__":
    agree, _ = main(**parse(new_parser(__doc__.split("\n")[0], DEFAULTS)))
    if not agree:
        sys.exit("the parallel program's results differ from the serial program's")
