"""Programs that contain the batch size as a number, as many programs of 2012 to 2017 do.

In some of them, the size is also the width of a layer. It cannot be divided evenly among 3 ranks.
"""

import numpy as np
from corpus import ROWS, Program, bernoulli, classes, weights, zeros
from library import L, T
from trainers import lasagne, layers, nonlinearities, objectives, updates

SIZE, TIME = 8, 5


def descent(cost, params, rate=0.1):
    return [(param, param - rate * gradient) for param, gradient in zip(params, T.grad(cost, params))]


def logistic_sgd():
    """The tutorials' logistic regression: the log-likelihood at explicitly numbered positions."""
    random = np.random.RandomState(71)
    x, y = T.dmatrix("x"), T.ivector("y")
    params = [weights(random, 12, SIZE, name="W"), zeros(SIZE, name="b")]
    p = T.nnet.softmax(T.dot(x, params[0]) + params[1])
    cost = -T.sum(T.log(p)[T.arange(SIZE), y]) / SIZE
    errors = T.neq(p.argmax(axis=1), y).sum() / float(SIZE)
    return Program([x, y], [cost, errors], params, descent(cost, params), [random.randn(ROWS, 12), classes(random, 8)])


def characters():
    """Predict the class of every character: rows and times are merged into one axis and separated again."""
    random = np.random.RandomState(72)
    x, y = T.dtensor3("x"), T.imatrix("y")
    w = weights(random, 3, SIZE, name="W")
    p = T.nnet.softmax(T.dot(x.reshape((SIZE * TIME, 3)), w))
    own = -T.log(p[T.arange(SIZE * TIME), y.flatten()]).reshape((SIZE, TIME))
    flat = -T.log(p).flatten()[T.arange(SIZE * TIME) * SIZE + y.flatten()]
    cost = own.sum(axis=1).mean() + flat.sum() / (SIZE * TIME)
    return Program(
        [x, y], [cost, own], [w], descent(cost, [w]), [random.randn(ROWS, TIME, 3), classes(random, 8, TIME)]
    )


def autoencoder_of_mnist():
    """A variational autoencoder with a column of ones for the biases; the noise is an input; adagrad."""
    random = np.random.RandomState(73)
    x, noise, one = T.dmatrix("x"), T.dmatrix("noise"), T.ones((SIZE, 1), "float64")
    params = [weights(random, *shape) for shape in [(13, SIZE), (SIZE + 1, 2), (SIZE + 1, 2), (3, 12)]]

    def layer(value, w):
        return T.dot(T.concatenate([value, one], axis=1), w)

    hidden = T.tanh(layer(x, params[0]))
    mean, log_variance = layer(hidden, params[1]), layer(hidden, params[2])
    y = T.nnet.sigmoid(layer(mean + T.exp(0.5 * log_variance) * noise, params[3]))
    likelihood = T.sum(x * T.log(y) + (1 - x) * T.log(1 - y))
    divergence = -0.5 * T.sum(1 + log_variance - mean**2 - T.exp(log_variance))
    cost = (divergence - likelihood) / SIZE
    steps = updates.adagrad(cost, params, 0.1)
    return Program([x, noise], [cost], params, steps, [bernoulli(random, 0.5, 12), random.randn(ROWS, 2)])


def recurrent(layer, **options):
    random = np.random.RandomState(74)
    x, y = T.dtensor3("x"), T.ivector("y")
    net = layers.InputLayer((SIZE, TIME, 3), x)
    net = layer(net, SIZE, **options)
    net = layers.ReshapeLayer(net, (SIZE * TIME, SIZE))
    net = layers.DenseLayer(net, 4, nonlinearity=nonlinearities.tanh)
    net = layers.SliceLayer(layers.ReshapeLayer(net, (SIZE, TIME, 4)), -1, 1)
    net = layers.DenseLayer(net, 3, nonlinearity=nonlinearities.softmax)
    prediction = layers.get_output(net)
    cost = objectives.categorical_crossentropy(prediction, y).mean()
    params = layers.get_all_params(net, trainable=True)
    data = [random.randn(ROWS, TIME, 3), classes(random, 3)]
    return Program([x, y], [cost, prediction], params, updates.adam(cost, params, 0.01), data)


def lstm():
    """Lasagne's LSTM layer after an input layer with a fixed size, and layers that reshape by this size."""
    return recurrent(layers.LSTMLayer, grad_clipping=100)


def gru():
    """Like `lstm`, with a GRU layer that learns its first state."""
    return recurrent(layers.GRULayer, learn_init=True)


def dropped_out():
    """Dropout with an input as the mask. Its shape contains the batch size, as Lasagne's masks do."""
    random = np.random.RandomState(75)
    x, mask, y = T.dmatrix("x"), T.dmatrix("mask"), T.ivector("y")
    net = layers.DenseLayer(layers.InputLayer((SIZE, 12), x), SIZE, nonlinearity=nonlinearities.rectify)
    hidden = layers.get_output(net) * T.specify_shape(mask, (SIZE, SIZE)) * 2
    w = weights(random, SIZE, 3, name="w_out")
    p = T.nnet.softmax(T.dot(hidden.reshape((SIZE, -1)), w))
    params = [*layers.get_all_params(net, trainable=True), w]
    cost = -T.log(p[T.arange(SIZE), y]).mean() + 1e-3 * sum(T.sqr(param).sum() for param in params)
    steps = updates.nesterov_momentum(lasagne.updates.total_norm_constraint(T.grad(cost, params), 1.0), params, 0.1)
    return Program(
        [x, mask, y], [cost], params, steps, [random.randn(ROWS, 12), bernoulli(random, 0.5, 8), classes(random, 3)]
    )


def attention():
    """A scan with the batch size in its steps, in its first states and in its gradient."""
    random = np.random.RandomState(76)
    x, y = T.dtensor3("x"), T.dmatrix("y")
    params = [weights(random, 3, SIZE), weights(random, SIZE, SIZE), weights(random, SIZE, 2)]

    def step(now, hidden, total):
        now = T.concatenate([now, T.ones((SIZE, 1), now.dtype)], axis=1)[:, :3]
        scores = T.nnet.softmax(T.dot(hidden, params[1]).reshape((SIZE, SIZE)))
        hidden = T.tanh(T.dot(now, params[0]) + scores * hidden + T.zeros((SIZE, SIZE), now.dtype))
        return hidden, total + hidden

    first = [T.zeros((SIZE, SIZE), x.dtype), T.alloc(np.float64(0), SIZE, SIZE)]
    (_, totals), _ = L.scan(step, sequences=x.dimshuffle(1, 0, 2), outputs_info=first)
    cost = T.sqr(T.dot(totals[-1], params[2]) - y).sum() / SIZE
    data = [random.randn(ROWS, TIME, 3), random.randn(ROWS, 2)]
    return Program([x, y], [cost, totals[-1]], params, descent(cost, params, 0.01), data)


PROGRAMS = [logistic_sgd, characters, autoencoder_of_mnist, lstm, gru, dropped_out, attention]
