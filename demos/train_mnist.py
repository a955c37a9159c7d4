"""Train a Lasagne network on real MNIST digits on all cores, then in plain Theano, and compare the results.

    python -m synkhronos demos/train_mnist.py --model mlp

The parallel program is `train_with_synkhronos`, derived from the serial `train_with_theano`. The programs differ in two
ways. Functions are built with ``exact=True``, so that all ranks together compute the serial functions' results. An
epoch is one command (`steps`). Both programs start from the same values and use the same minibatches, so they must end
with the same parameters, up to rounding.
"""

import os
import sys
import time
import warnings

import lasagne
import mnist_data
import numpy as np
import theano
import theano.tensor as T
from lasagne import layers
from mnist_training import Settings, describe, flat_values, new_parser, parse, report, train
from threadpoolctl import threadpool_limits

import synkhronos as synk

DEFAULTS = {
    "mlp": Settings(epochs=30, batch_size=500, learning_rate=0.2),
    "cnn": Settings(epochs=5, batch_size=100, learning_rate=0.04),
}


# The network: plain Lasagne code.


def smooth_rectify(x):
    """Return ``x * sigmoid(4 * x)``, a rectifier without a kink.

    At a kink (or a tie in max-pooling, hence the average pooling in `build_cnn`), a rounding error switches a unit's
    gradient on or off. Two correct programs then drift apart, and a strict comparison is impossible.
    """
    return x * T.nnet.sigmoid(4 * x)


def build_mlp():
    network = layers.InputLayer((None, 784), T.matrix("images"))
    for _ in range(2):
        network = layers.DenseLayer(network, 800, W=lasagne.init.GlorotUniform("relu"), nonlinearity=smooth_rectify)
    return layers.DenseLayer(network, 10, nonlinearity=T.nnet.softmax)


def build_cnn():
    network = layers.InputLayer((None, 784), T.matrix("images"))
    network = layers.ReshapeLayer(network, ([0], 1, 28, 28))
    for _ in range(2):
        network = layers.Conv2DLayer(
            network, 32, (5, 5), W=lasagne.init.GlorotUniform("relu"), nonlinearity=smooth_rectify
        )
        network = layers.Pool2DLayer(network, (2, 2), mode="average_exc_pad")
    network = layers.DenseLayer(network, 256, W=lasagne.init.GlorotUniform("relu"), nonlinearity=smooth_rectify)
    return layers.DenseLayer(network, 10, nonlinearity=T.nnet.softmax)


def build_network(model, seed):
    """Build the network; initial values depend only on the seed."""
    lasagne.random.set_rng(np.random.RandomState(seed))
    network = {"mlp": build_mlp, "cnn": build_cnn}[model]()
    input_var = layers.get_all_layers(network)[0].input_var
    return network, input_var, layers.get_all_params(network, trainable=True)


def setup_training(network):
    target_var = T.ivector("labels")
    prediction = layers.get_output(network)
    loss = lasagne.objectives.categorical_crossentropy(prediction, target_var).mean()
    accuracy = T.mean(T.eq(T.argmax(prediction, axis=1), target_var), dtype=theano.config.floatX)
    return target_var, loss, accuracy


# The two programs.


def train_with_synkhronos(model, mnist, settings, n_ranks=None, devices=None):
    """Train on all ranks, in a new session."""
    start = time.perf_counter()
    n_ranks = synk.fork(n_ranks, devices is not None, devices=devices)
    name = f"synkhronos, {n_ranks} rank{'s' if n_ranks > 1 else ''}"
    print(f"\n{name}: compiling the network (half a minute the first time)", flush=True)
    network, input_var, param_vars = build_network(model, settings.seed)
    initial = flat_values(param_vars)
    target_var, loss, accuracy = setup_training(network)
    updates = lasagne.updates.momentum(loss, param_vars, settings.learning_rate, settings.momentum)
    train_fn = synk.function(inputs=[input_var, target_var], outputs=loss, updates=updates, exact=True)
    accuracy_fn = synk.function(inputs=[input_var, target_var], outputs=accuracy, exact=True)
    synk.distribute()
    X_train, y_train = synk.data(mnist.X_train), synk.data(mnist.y_train)
    prepare_seconds = time.perf_counter() - start

    def train_epoch(minibatches, on_step):
        return train_fn.steps(X_train, y_train, batches=minibatches, on_step=on_step)

    run = train(name, train_epoch, accuracy_fn, param_vars, initial, prepare_seconds, mnist, settings)
    synk.close()
    return run


def train_with_theano(model, mnist, settings, blas_threads):
    """Train in plain Theano, in this process only."""
    name = f"plain Theano, {blas_threads} BLAS thread{'s' if blas_threads > 1 else ''}"
    print(f"\n{name}: compiling the network", flush=True)
    start = time.perf_counter()
    network, input_var, param_vars = build_network(model, settings.seed)
    initial = flat_values(param_vars)
    target_var, loss, accuracy = setup_training(network)
    updates = lasagne.updates.momentum(loss, param_vars, settings.learning_rate, settings.momentum)
    train_fn = theano.function(inputs=[input_var, target_var], outputs=loss, updates=updates)
    accuracy_fn = theano.function(inputs=[input_var, target_var], outputs=accuracy)
    prepare_seconds = time.perf_counter() - start

    def train_epoch(minibatches, on_step):
        losses = []
        for i, batch_idxs in enumerate(minibatches):
            losses.append(train_fn(mnist.X_train[batch_idxs], mnist.y_train[batch_idxs]))
            on_step(i, losses[-1])
        return losses

    with threadpool_limits(limits=blas_threads):
        return train(name, train_epoch, accuracy_fn, param_vars, initial, prepare_seconds, mnist, settings)


def main(model="cnn", n_ranks=None, baseline=True, devices=None, **settings):
    """Train in parallel, then serially, and compare the results.

    Parameters
    ----------
    model : {"mlp", "cnn"}
    n_ranks : int, optional
        Number of ranks; by default, the number of usable cores.
    baseline : bool
        Whether to run plain Theano as well.
    devices : list of str, optional
        The device of each rank, e.g. ``["cuda0", "cuda1"]``; plain Theano then runs on the first device. By default,
        CPU processes.
    **settings
        Fields of `Settings` that replace the model's defaults.

    Returns
    -------
    agree : bool
        Whether the programs agree within `mnist_training.TOLERANCE` (True without a baseline).
    runs : list of Run
        The runs, starting with the parallel run.
    """
    warnings.filterwarnings("ignore", module="lasagne")  # Lasagne 0.1 uses keywords that Theano renamed
    theano.config.floatX = "float32"
    settings = DEFAULTS[model]._replace(**settings)
    mnist = mnist_data.load()
    describe(mnist)

    parallel = train_with_synkhronos(model, mnist, settings, n_ranks, devices)
    serials = []
    if baseline:
        for blas_threads in sorted({1, len(os.sched_getaffinity(0))}):
            serials.append(train_with_theano(model, mnist, settings, blas_threads))
    return report(parallel, serials, "plain Theano"), [parallel] + serials


def parse_arguments():
    parser = new_parser(__doc__.split("\n")[0], DEFAULTS)
    parser.add_argument("--model", choices=sorted(DEFAULTS), default="cnn", help="default: %(default)s")
    parser.add_argument("--devices", nargs="+", help="device of each rank, e.g. cuda0 cuda1; default: CPU processes")
    return parse(parser)


if __name__ == "__main__":
    agree, _ = main(**parse_arguments())
    if not agree:
        sys.exit("the parallel program's results differ from the serial program's")
