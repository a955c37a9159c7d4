"""How much faster whole programs are on two ranks than plain Theano on one thread."""

import functools

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk
from synkhronos.extensions import train, updates

from .measure import Local, measure_in_turn

#: Layer sizes and rows of MLPs whose gradients take about 0.1, 2, 18 and 110 ms.
MLPS = (((20, 50, 10), 64), ((100, 200, 200, 10), 256), ((784, 512, 512, 10), 512), ((784, 1200, 1200, 10), 1024))


def mlp(layers, seed=0):
    """Return input, target, loss and parameters of a network."""
    random = np.random.RandomState(seed)
    x, y = T.fmatrix("x"), T.ivector("y")
    hidden, params = x, []
    for i, (n_in, n_out) in enumerate(zip(layers, layers[1:])):
        w = theano.shared((random.randn(n_in, n_out) / np.sqrt(n_in)).astype("float32"), "w%d" % i)
        b = theano.shared(np.zeros(n_out, "float32"), "b%d" % i)
        params += [w, b]
        hidden = T.dot(hidden, w) + b
        if i < len(layers) - 2:
            hidden = T.nnet.relu(hidden)
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(hidden), y).mean()
    return x, y, loss, params


def run(groups, n=2, mlps=MLPS, repeats=60, epoch_rows=5000):
    """Measure; yield a row per case."""
    prepared = []
    random = np.random.RandomState(1)
    for layers, rows in mlps:
        x, y, loss, params = mlp(layers)
        outputs = [loss] + T.grad(loss, params)
        plain = theano.function([x, y], outputs)
        # The gradients stay where they are: the master's own are returned, as an update would take them.
        ours = synk.function([x, y], [loss] + [(grad, None) for grad in outputs[1:]])
        prepared.append((plain, ours, random.rand(rows, layers[0]).astype("float32"),
                         random.randint(0, layers[-1], rows).astype("int32")))
    layers, batch = mlps[-2][0], 500
    x, y, loss, params = mlp(layers)
    step = train.make_train_function(loss, params, x, y, updates.momentum, 0.01)
    x_one, y_one, loss_one, params_one = mlp(layers)
    step_one = train.make_train_function_theano(loss_one, params_one, x_one, y_one, updates.momentum, 0.01)
    synk.fork(n, use_gpu=False)
    try:
        for plain, ours, images, labels in prepared:
            data = synk.data(images), synk.data(labels)
            expected = plain(images, labels)[0]
            if not np.allclose(ours(*data)[0], expected, rtol=1e-4):
                raise AssertionError("the wrong loss")
            times = measure_in_turn({"synkhronos": Local(functools.partial(ours, *data)),
                                     "plain Theano": Local(functools.partial(plain, images, labels))}, repeats)
            work = times["plain Theano"].median / 1e3
            yield {"case": "MLP gradient, %.2g ms of work" % work, "n": n, "times": times}
        images = random.rand(epoch_rows, layers[0]).astype("float32")
        labels = random.randint(0, layers[-1], epoch_rows).astype("int32")
        data = synk.data(images), synk.data(labels)
        order = random.permutation(epoch_rows)

        def epoch():
            for begin in range(0, epoch_rows, batch):
                step(*data, batch=order[begin:begin + batch])

        def epoch_one():
            for begin in range(0, epoch_rows, batch):
                rows = order[begin:begin + batch]
                step_one(images[rows], labels[rows])

        times = measure_in_turn({"synkhronos": Local(epoch), "plain Theano": Local(epoch_one)}, max(3, repeats // 10),
                                rounds=3)
        yield {"case": "epoch of MLP training, shuffled", "n": n, "times": times}
    finally:
        synk.close()
