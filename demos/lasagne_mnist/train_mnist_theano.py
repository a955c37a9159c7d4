"""Train on MNIST in plain Theano, in one process: the serial program that the parallel programs are derived from.

python -m synkhronos demos/lasagne_mnist/train_mnist_theano.py --model cnn
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # modules shared by the demos

import lasagne
import numpy as np
import theano
import theano.tensor as T
import training
from lasagne import layers
from minibatches import iter_minibatch_idxs, iter_shard_idxs_of_all
from networks import build_network, losses_of, random_states
from threadpoolctl import threadpool_limits


def main(blas_threads=None, n_shards=None, **settings):
    """Train in this process, and return the `Run`.

    Parameters
    ----------
    blas_threads : int, optional
        Number of threads of the BLAS library; by default, one per core.
    n_shards : int, optional
        Number of ranks of `train_mnist_device_data.py`, if training must use the minibatches of that program.
    **settings
        Fields of `training.Settings`.
    """
    settings = training.Settings(**settings)
    theano.config.floatX = settings.floatX
    mnist = training.load_mnist(settings)
    blas_threads = blas_threads or len(os.sched_getaffinity(0))
    print("\ncompiling the network (half a minute the first time)", flush=True)
    input_var, target_var = T.matrix("images"), T.ivector("labels")
    network = build_network(settings.model, input_var, settings.seed)
    params = layers.get_all_params(network, trainable=True)
    loss, valid_loss, accuracy = losses_of(network, target_var)
    rate = theano.shared(np.asarray(settings.learning_rate, settings.floatX), "learning_rate")

    grads = theano.grad(loss, params)
    updates = lasagne.updates.nesterov_momentum(grads, params, learning_rate=rate, momentum=0.9)
    train_fn = theano.function([input_var, target_var], loss, updates=updates)
    evaluate_fn = theano.function([input_var, target_var], [valid_loss, accuracy])
    state = [shared for shared in updates if shared not in params]

    def steps(batches, on_step):
        losses = []
        for i, idxs in enumerate(batches):
            losses.append(train_fn(mnist.X_train[idxs], mnist.y_train[idxs]))
            on_step(i, losses[-1])
        return losses

    n_rows = len(mnist.X_train)
    if n_shards:
        lengths = [len(part) for part in np.array_split(np.arange(n_rows), n_shards)]
        minibatches = iter_shard_idxs_of_all
    else:
        lengths, minibatches = n_rows, iter_minibatch_idxs
    with threadpool_limits(limits=blas_threads):
        return training.train(
            "plain Theano, {} BLAS thread{}".format(blas_threads, "s" if blas_threads > 1 else ""),
            settings,
            params + state + random_states(network),
            minibatches=lambda epoch: minibatches(lengths, settings.batch_size, settings.seed, epoch),
            set_rate=lambda value: rate.set_value(np.asarray(value, settings.floatX)),
            steps=steps,
            evaluate=evaluate_fn,
            mnist=mnist,
        )


if __name__ == "__main__":
    parser = training.parser(__doc__, has_ranks=False)
    parser.add_argument("--blas-threads", type=int, help="number of BLAS threads; default: the number of usable cores")
    parser.add_argument("--checkpoint", help="file to save the network to after every epoch, and to resume from")
    main(**training.parse(parser))
