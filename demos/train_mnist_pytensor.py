"""Train a network of pytensor-ml on real MNIST digits on all cores, then without ranks, and compare the results.

    python demos/train_mnist_pytensor.py
    python demos/train_mnist_pytensor.py --devices jax      # on the devices of JAX instead of processes

The parallel program is `train_with_synkhronos`, derived from the serial `train_with_pytensor`. The programs differ in
two ways. In a block of `synkhronos.functions`, pytensor-ml compiles functions that run on all ranks and compute the
serial functions' results. An epoch is one command (`steps`). Both programs start from the same values and use the same
minibatches, so they must end with the same parameters, up to rounding.
"""

import os
import sys
import time

import mnist_data
import numpy as np
import pytensor
from mnist_training import Settings, describe, flat_values, new_parser, parse, report, train
from threadpoolctl import threadpool_limits

import synkhronos as synk

try:
    from pytensor_ml.activations import Swish
    from pytensor_ml.layers import Input, Linear, Sequential
    from pytensor_ml.loss import CrossEntropy
    from pytensor_ml.model import Model
    from pytensor_ml.optim import sgd
    from pytensor_ml.pytensorf import compile_predict
except ModuleNotFoundError as error:
    sys.exit(f"this demo needs pytensor-ml, which runs on Python 3.12 and later ({error}): pip install pytensor-ml")

DEFAULTS = {"mlp": Settings(epochs=30, batch_size=500, learning_rate=0.2)}


# The network: plain pytensor-ml code.


def build_mlp(seed, units=(784, 800, 800, 10)):
    """Build the network; initial values depend only on the seed.

    The activation ``x * sigmoid(4 * x)`` is a rectifier without a kink. At a kink, a rounding error switches a unit's
    gradient on or off. Two correct programs then drift apart, and a strict comparison is impossible.
    """
    images = Input("images", shape=(None, units[0]))
    layers = []
    for depth, (n_in, n_out) in enumerate(zip(units[:-1], units[1:]), 1):
        layers += [Linear(f"linear{depth}", n_in=n_in, n_out=n_out), Swish(beta=4.0)]
    return Model(Sequential(*layers[:-1])(images)).initialize(seed)


def compile_functions(model, settings):
    """Compile a training step and a prediction; return both."""
    rule = sgd(settings.learning_rate, momentum=settings.momentum)
    step = model.compile_train(rule, CrossEntropy(expect_logits=True))
    return step, compile_predict(model.y)


def new_accuracy_fn(predict):
    """Return a function that computes the accuracy of a prediction."""
    return lambda images, labels: np.mean(np.argmax(predict(images), axis=1) == labels)


# The two programs. PyTensor compiles a function at its first call. Training times do not include this compilation.
# `synkhronos.distribute` compiles for all ranks before training, and `compile_now` compiles in the serial program.


def train_with_synkhronos(mnist, settings, n_ranks=None, devices=None):
    """Train on all ranks, in a new session."""
    start = time.perf_counter()
    n_ranks = synk.fork(n_ranks, devices=devices)
    name = f"synkhronos, {n_ranks} rank{'s' if n_ranks > 1 else ''}{' (JAX)' if devices else ''}"
    print(f"\n{name}: compiling the network (a minute or two the first time)", flush=True)
    model = build_mlp(settings.seed)
    initial = flat_values(model.weights)
    with synk.functions():
        step, predict = compile_functions(model, settings)
    synk.distribute()
    on_device = {"device": True} if devices else {}  # the ranks keep their rows on their devices
    X_train, y_train = synk.data(mnist.X_train, **on_device), synk.data(mnist.y_train, **on_device)
    prepare_seconds = time.perf_counter() - start

    def train_epoch(minibatches, on_step):
        return step.steps(X_train, y_train, batches=minibatches, on_step=on_step)

    accuracy_fn = new_accuracy_fn(predict)
    run = train(name, train_epoch, accuracy_fn, model.weights, initial, prepare_seconds, mnist, settings)
    synk.close()
    return run


def train_with_pytensor(mnist, settings, blas_threads):
    """Train without ranks, in this process only."""
    name = f"plain PyTensor, {blas_threads} BLAS thread{'s' if blas_threads > 1 else ''}"
    print(f"\n{name}: compiling the network", flush=True)
    start = time.perf_counter()
    model = build_mlp(settings.seed)
    initial = flat_values(model.weights)
    step, predict = compile_functions(model, settings)
    compile_now(step, mnist.X_valid, mnist.y_valid)
    compile_now(predict, mnist.X_valid)
    prepare_seconds = time.perf_counter() - start

    def train_epoch(minibatches, on_step):
        losses = []
        for i, batch_idxs in enumerate(minibatches):
            losses.append(step(mnist.X_train[batch_idxs], mnist.y_train[batch_idxs]))
            on_step(i, losses[-1])
        return losses

    accuracy_fn = new_accuracy_fn(predict)
    with threadpool_limits(limits=blas_threads):  # after the first call, which loads SciPy's BLAS
        return train(name, train_epoch, accuracy_fn, model.weights, initial, prepare_seconds, mnist, settings)


def compile_now(function, *args):
    """Call a function to compile it; restore the values that the call updates."""
    shareds = function.get_shared()
    values = [shared.get_value() for shared in shareds]
    function(*args)
    for shared, value in zip(shareds, values):
        shared.set_value(value)


def main(n_ranks=None, baseline=True, devices=None, **settings):
    """Train in parallel, then serially, and compare the results.

    Parameters
    ----------
    n_ranks : int, optional
        Number of ranks; by default, the number of usable cores, or of JAX's devices.
    devices : "jax", optional
        Whether the ranks are JAX's devices instead of processes.
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
    parallel = train_with_synkhronos(mnist, settings, n_ranks, devices)
    serials = []
    if baseline:
        for blas_threads in sorted({1, len(os.sched_getaffinity(0))}):
            serials.append(train_with_pytensor(mnist, settings, blas_threads))
    return report(parallel, serials, "plain PyTensor"), [parallel] + serials


if __name__ == "__main__":
    parser = new_parser(__doc__.split("\n")[0], DEFAULTS)
    parser.add_argument("--devices", choices=["jax"], help="the ranks are JAX's devices; default: CPU processes")
    agree, _ = main(**parse(parser))
    if not agree:
        sys.exit("the parallel program's results differ from the serial program's")
