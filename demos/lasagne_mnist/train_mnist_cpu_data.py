"""Train on MNIST with all ranks and data in shared memory: every rank reads its share of each shuffled minibatch.

    python -m synkhronos demos/lasagne_mnist/train_mnist_cpu_data.py --model cnn --checkpoint mnist.npz

Network, update rule and minibatches are those of the serial program, train_mnist_theano.py. Gradients are averaged over
the rows of all ranks, and `steps` runs an epoch as one command. `batches=` selects the rows of each step; every rank
copies only its share. With `--check`, the serial program runs afterwards, and the results are compared.
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # modules shared by the demos

import lasagne
import numpy as np
import theano
import theano.tensor as T
import train_mnist_theano
import training
from lasagne import layers
from minibatches import iter_minibatch_idxs
from networks import build_network, losses_of, random_states

import synkhronos as synk


def main(n_ranks=None, **settings):
    """Train on all ranks, and return the `Run`; ``settings`` are fields of `training.Settings`."""
    settings = training.Settings(**settings)
    theano.config.floatX = settings.floatX
    mnist = training.load_mnist(settings)
    start = time.perf_counter()
    n_ranks = synk.fork(n_ranks)
    print("\ncompiling the network (half a minute the first time)", flush=True)
    input_var, target_var = T.matrix("images"), T.ivector("labels")
    network = build_network(settings.model, input_var, settings.seed)
    params = layers.get_all_params(network, trainable=True)
    loss, valid_loss, accuracy = losses_of(network, target_var)
    rate = theano.shared(np.asarray(settings.learning_rate, settings.floatX), "learning_rate")

    grads = synk.ops.all_reduce(theano.grad(loss, params))
    updates = lasagne.updates.nesterov_momentum(grads, params, learning_rate=rate, momentum=0.9)
    train_fn = synk.function([input_var, target_var], loss, updates=updates)
    evaluate_fn = synk.function([input_var, target_var], [valid_loss, accuracy])
    state = [shared for shared in updates if shared not in params]
    synk.distribute()
    X_train, y_train = synk.data(mnist.X_train), synk.data(mnist.y_train)

    print(
        f"{layers.count_params(network, trainable=True):,} parameters, number of ranks: {n_ranks}, ready after "
        f"{time.perf_counter() - start:.1f} s"
    )
    run = training.train(
        "synkhronos, {}, n={}".format("data in shared memory", n_ranks),
        settings,
        params + state + random_states(network),
        minibatches=lambda epoch: iter_minibatch_idxs(len(X_train), settings.batch_size, settings.seed, epoch),
        set_rate=lambda value: synk.broadcast(rate, value),
        steps=lambda batches, on_step: train_fn.steps(X_train, y_train, batches=batches, on_step=on_step),
        evaluate=lambda X, y: evaluate_fn(X, y, num_slices=4),  # the whole data set in one call
        mnist=mnist,
    )
    synk.close()
    return run


if __name__ == "__main__":
    parser = training.parser(__doc__)
    parser.add_argument("--checkpoint", help="file to save the network to after every epoch, and to resume from")
    parser.add_argument("--check", action="store_true", help="compare with the serial program")
    arguments = training.parse(parser)
    check = arguments.pop("check")
    run = main(**arguments)
    if check:
        arguments.pop("n_ranks")
        serial = train_mnist_theano.main(**dict(arguments, checkpoint=None))
        if not training.agrees(run, serial, arguments["model"]):
            sys.exit("the parallel program's results differ from the serial program's")
