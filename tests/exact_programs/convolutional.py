"""Networks over images, such as the tutorials' LeNet, Lasagne's network, a ResNet and a spatial transformer."""

from collections import OrderedDict

import numpy as np
import theano
from corpus import ROWS, Program, bernoulli, classes, error_rate, log_likelihood, weights, zeros
from lasagne import init, layers, nonlinearities, objectives, updates
from theano import tensor as T
from theano.tensor.nnet import conv2d
from theano.tensor.signal import pool


def lenet():
    """Return the tutorials' network: images from rows, convolution and pooling, a hidden layer, gradient descent."""
    random = np.random.RandomState(21)
    x, y = T.dmatrix("x"), T.ivector("y")
    filters, b = weights(random, 3, 1, 3, 3, name="filters"), zeros(3, name="b")
    w, c = weights(random, 3 * 4 * 4, 6, name="w", scale=0.2), zeros(6, name="c")
    v, d = weights(random, 6, 3, name="v"), zeros(3, name="d")
    images = x.reshape((x.shape[0], 1, 10, 10))
    pooled = pool.pool_2d(conv2d(images, filters, filter_shape=(3, 1, 3, 3)), ws=(2, 2), ignore_border=True)
    features = T.tanh(pooled + b.dimshuffle("x", 0, "x", "x")).flatten(2)
    p = T.nnet.softmax(T.dot(T.tanh(T.dot(features, w) + c), v) + d)
    cost = -log_likelihood(p, y)
    params = [filters, b, w, c, v, d]
    steps = [(param, param - 0.1 * gradient) for param, gradient in zip(params, T.grad(cost, params))]
    outputs = [cost, error_rate(p, y)]
    return Program([x, y], outputs, params, steps, [random.randn(ROWS, 100), classes(random, 3)])


def cnn():
    """Return Lasagne's second example: two convolutions with pooling, dropout by given masks, adam."""
    random = np.random.RandomState(22)
    x, y, mask = T.dtensor4("x"), T.ivector("y"), T.dmatrix("mask")
    net = layers.InputLayer((None, 1, 12, 12), x)
    net = layers.Conv2DLayer(net, 4, (3, 3), nonlinearity=nonlinearities.rectify, W=init.GlorotUniform())
    net = layers.MaxPool2DLayer(net, (2, 2))
    net = layers.Conv2DLayer(net, 4, (3, 3), pad="same", nonlinearity=T.nnet.softplus)
    net = layers.Pool2DLayer(net, (2, 2), mode="average_inc_pad", ignore_border=False)
    net = layers.FlattenLayer(net)
    net = layers.ElemwiseMergeLayer([net, layers.InputLayer((None, 36), mask / 0.5)], T.mul)
    net = layers.DenseLayer(net, 3, nonlinearity=nonlinearities.softmax)
    prediction = layers.get_output(net)
    loss = objectives.categorical_crossentropy(prediction, y).mean()
    params = layers.get_all_params(net, trainable=True)
    outputs = [loss, T.mean(T.eq(T.argmax(prediction, axis=1), y), dtype="float64")]
    data = [random.randn(ROWS, 1, 12, 12), classes(random, 3), bernoulli(random, 0.5, 36)]
    return Program([x, y, mask], outputs, params, updates.adam(loss, params), data)


class Normalized:
    """Batch normalization as in its paper: by the mean and variance over rows and places, with running averages."""

    def __init__(self, channels):
        self.gamma = theano.shared(np.ones(channels), "gamma")
        self.beta = zeros(channels, name="beta")
        self.running = [zeros(channels, name="mean"), theano.shared(np.ones(channels), "variance")]
        self.updates = []

    def __call__(self, x):
        mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
        self.updates = [(old, 0.9 * old + 0.1 * new) for old, new in zip(self.running, (mean, variance))]
        mean, variance, gamma, beta = (
            one.dimshuffle("x", 0, "x", "x") for one in (mean, variance, self.gamma, self.beta)
        )
        return (x - mean) * (gamma / T.sqrt(variance + 1e-4)) + beta


def resnet():
    """Return residual blocks with batch normalization over all rows, running averages as updates, and momentum."""
    random = np.random.RandomState(23)
    x, y = T.dtensor4("x"), T.ivector("y")
    params, norms = [], []

    def convolved(images, n_in, n_out, stride=1):
        filters = weights(random, n_out, n_in, 3, 3, name="filters", scale=(2 / 9 / n_in) ** 0.5)
        norms.append(Normalized(n_out))
        params.extend([filters, norms[-1].gamma, norms[-1].beta])
        return norms[-1](conv2d(images, filters, border_mode="half", subsample=(stride, stride)))

    found = T.nnet.relu(convolved(x, 2, 4))
    for n_in, n_out, stride in ((4, 4, 1), (4, 6, 2)):
        block = convolved(T.nnet.relu(convolved(found, n_in, n_out, stride)), n_out, n_out)
        if n_in != n_out:
            found = T.concatenate(
                [found[:, :, ::stride, ::stride], T.zeros_like(found[:, : n_out - n_in, ::stride, ::stride])], axis=1
            )
        found = T.nnet.relu(found + block)
    v, c = weights(random, 6, 3, name="v"), zeros(3, name="c")
    params += [v, c]
    p = T.nnet.softmax(T.dot(found.mean(axis=(2, 3)), v) + c)
    loss = T.nnet.categorical_crossentropy(p, y).mean()
    steps = updates.momentum(loss + 1e-3 * sum(T.sum(param**2) for param in params), params, 0.05)
    for norm in norms:
        steps.update(norm.updates)
    data = [random.randn(ROWS, 2, 6, 6), classes(random, 3)]
    return Program([x, y], [loss], params, steps, data)


def spatial_transformer():
    """Return a network that finds an affine map for each image and samples the image there, by four neighbors."""
    random = np.random.RandomState(24)
    x, y = T.dtensor3("x"), T.ivector("y")
    size, out = 8, 6
    w, b = weights(random, size * size, 5, name="w", scale=0.1), zeros(5, name="b")
    v = weights(random, 5, 6, name="v", scale=0.1)
    c = theano.shared(np.array([0.8, 0.05, 0.02, -0.03, 0.9, 0.04]), "c")
    theta = (T.dot(T.tanh(T.dot(x.flatten(2), w) + b), v) + c).reshape((-1, 2, 3))
    # Positions of the output's pixels in the square from -1 to 1, with a third coordinate of 1: (3, out * out).
    line = np.linspace(-1, 1, out)
    grid = np.stack([np.tile(line, out), np.repeat(line, out), np.ones(out * out)])
    places = (T.dot(theta, grid) + 1) * (size - 1) / 2
    across, down = (T.clip(places[:, i].flatten(), 0, size - 1.001) for i in range(2))
    left, top = T.floor(across), T.floor(down)
    first = T.repeat(T.arange(x.shape[0]) * size * size, out * out)  # first pixel of each row, among all pixels
    pixels = x.flatten()

    def at(i, j):
        return pixels[first + T.cast(j, "int64") * size + T.cast(i, "int64")]

    a, d = across - left, down - top
    sampled = (1 - a) * (1 - d) * at(left, top) + a * (1 - d) * at(left + 1, top)
    sampled += (1 - a) * d * at(left, top + 1) + a * d * at(left + 1, top + 1)
    u, e = weights(random, out * out, 3, name="u", scale=0.2), zeros(3, name="e")
    p = T.nnet.softmax(T.dot(sampled.reshape((x.shape[0], out * out)), u) + e)
    loss = T.nnet.categorical_crossentropy(p, y).mean()
    params = [w, b, v, c, u, e]
    return Program(
        [x, y],
        [loss, sampled.reshape((x.shape[0], out, out))],
        params,
        updates.adam(loss, params, 0.01),
        [random.rand(ROWS, size, size), classes(random, 3)],
    )


def fully_convolutional_autoencoder():
    """Return an autoencoder of strided convolutions to a code, and transposed ones back to the image; adadelta."""
    random = np.random.RandomState(25)
    x = T.dtensor4("x")
    filters, b = weights(random, 4, 1, 4, 4, name="filters", scale=0.3), zeros(4, name="b")
    back, c = weights(random, 4, 1, 4, 4, name="back", scale=0.3), zeros(1, name="c")
    code = T.nnet.sigmoid(
        conv2d(x, filters, border_mode=(1, 1), subsample=(2, 2), filter_flip=False) + b.dimshuffle("x", 0, "x", "x")
    )
    image = T.nnet.abstract_conv.conv2d_grad_wrt_inputs(
        code, back, (None, 1, 8, 8), border_mode=(1, 1), subsample=(2, 2), filter_flip=False
    ) + c.dimshuffle("x", 0, "x", "x")
    loss = T.sqr(image - x).mean()
    params = [filters, b, back, c]
    steps = OrderedDict(updates.adadelta(loss, params, 1.0))
    return Program([x], [loss, image], params, steps, [random.rand(ROWS, 1, 8, 8)])


def weighted_transformer():
    """Return a `spatial_transformer` without indices: every pixel has a weight that falls with its distance."""
    random = np.random.RandomState(26)
    x, y = T.dtensor3("x"), T.ivector("y")
    size, out = 8, 6
    w, b = weights(random, size * size, 5, name="w", scale=0.1), zeros(5, name="b")
    v = weights(random, 5, 4, name="v", scale=0.1)
    c = theano.shared(np.array([0.8, 0.05, 0.9, -0.03]), "c")
    theta = (T.dot(T.tanh(T.dot(x.flatten(2), w) + b), v) + c).reshape((-1, 2, 2))
    line, pixel = np.linspace(-1, 1, out), np.arange(size)
    places = (theta[:, :, 0, None] * line + theta[:, :, 1, None] + 1) * (size - 1) / 2  # (rows, 2, out)
    near = T.maximum(0, 1 - abs(places[:, :, :, None] - pixel))  # (rows, 2, out, size)
    sampled = T.batched_dot(T.batched_dot(near[:, 0], x), near[:, 1].dimshuffle(0, 2, 1))
    u, e = weights(random, out * out, 3, name="u", scale=0.2), zeros(3, name="e")
    p = T.nnet.softmax(T.dot(sampled.flatten(2), u) + e)
    loss = T.nnet.categorical_crossentropy(p, y).mean()
    params = [w, b, v, c, u, e]
    data = [random.rand(ROWS, size, size), classes(random, 3)]
    return Program([x, y], [loss, sampled], params, updates.adam(loss, params, 0.01), data)


def network_in_network():
    """Return a network of 1 by 1 convolutions, normalization over channels, means over places; Nesterov momentum."""
    random = np.random.RandomState(27)
    x, y = T.dtensor4("x"), T.ivector("y")
    net = layers.Conv2DLayer(layers.InputLayer((None, 2, 6, 6), x), 4, (3, 3), pad="same")
    net = layers.LocalResponseNormalization2DLayer(layers.NINLayer(net, 4), n=3)
    net = layers.GlobalPoolLayer(layers.NINLayer(net, 3, nonlinearity=None))
    net = layers.NonlinearityLayer(net, nonlinearities.softmax)
    loss = objectives.categorical_crossentropy(layers.get_output(net), y).mean()
    params = layers.get_all_params(net, trainable=True)
    steps = updates.nesterov_momentum(loss, params, 0.05)
    return Program([x, y], [loss], params, steps, [random.randn(ROWS, 2, 6, 6), classes(random, 3)])


def theanos_batch_norm():
    """Return a program with Theano's own batch normalization and its running averages."""
    random = np.random.RandomState(28)
    x, y = T.dmatrix("x"), T.dmatrix("y")
    w, v = weights(random, 5, 6, name="w"), weights(random, 6, 2, name="v")
    gamma, beta = theano.shared(np.ones(6), "gamma"), zeros(6, name="beta")
    mean, variance = zeros(6, name="mean"), theano.shared(np.ones(6), "variance")
    normal, _, _, new_mean, new_variance = T.nnet.bn.batch_normalization_train(
        T.dot(x, w), gamma, beta, running_mean=mean, running_var=variance
    )
    loss = T.mean(T.sqr(T.dot(T.nnet.relu(normal), v) - y))
    params = [w, v, gamma, beta]
    steps = updates.sgd(loss, params, 0.1)
    steps.update([(mean, new_mean), (variance, new_variance)])
    return Program([x, y], [loss], params, steps, [random.randn(ROWS, 5), random.randn(ROWS, 2)])


PROGRAMS = [
    lenet,
    cnn,
    resnet,
    spatial_transformer,
    weighted_transformer,
    fully_convolutional_autoencoder,
    network_in_network,
    theanos_batch_norm,
]
for program in set(PROGRAMS) - {spatial_transformer, weighted_transformer, theanos_batch_norm}:
    program.mode = theano.Mode("cvm", "fast_compile")  # convolutions have no Python code
