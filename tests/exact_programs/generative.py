"""Autoencoders, Boltzmann machines, and stacks of them. Their random draws are inputs."""

from collections import OrderedDict

import numpy as np
from corpus import ROWS, Program, bernoulli, classes, log_likelihood, weights, zeros
from library import L, T
from trainers import lasagne, layers, nonlinearities, updates

BINARY = (np.random.RandomState(40).rand(ROWS, 8) < np.linspace(0.1, 0.9, 8)).astype("float64")


def variational_autoencoder():
    """The variational bound with a Bernoulli decoder, summed over rows, with noise as an input; adam."""
    random = np.random.RandomState(41)
    x, noise = T.dmatrix("x"), T.dmatrix("noise")
    hidden = layers.DenseLayer(layers.InputLayer((None, 8), x), 6, nonlinearity=nonlinearities.tanh)
    mu, log_sigma = (layers.DenseLayer(hidden, 2, nonlinearity=None) for _ in range(2))
    m, s = layers.get_output([mu, log_sigma])
    decoder = layers.InputLayer((None, 2))
    decoder = layers.DenseLayer(decoder, 6, nonlinearity=nonlinearities.tanh)
    decoder = layers.DenseLayer(decoder, 8, nonlinearity=nonlinearities.sigmoid)
    image = layers.get_output(decoder, m + T.exp(s) * noise)
    divergence = 0.5 * T.sum(1 + 2 * s - T.sqr(m) - T.exp(2 * s))
    loss = T.nnet.binary_crossentropy(image, x).sum() - divergence
    params = layers.get_all_params([mu, log_sigma, decoder], trainable=True)
    outputs = [loss, image]
    return Program([x, noise], outputs, params, updates.adam(loss, params, 0.01), [BINARY, random.randn(ROWS, 2)])


def denoising(x, kept, w, b, c, rate=0.1):
    """Return the cost and the updates of the tutorials' denoising autoencoder with tied weights."""
    hidden = T.nnet.sigmoid(T.dot(x * kept, w) + b)
    z = T.nnet.sigmoid(T.dot(hidden, w.T) + c)
    cost = T.mean(-T.sum(x * T.log(z) + (1 - x) * T.log(1 - z), axis=1))
    params = [w, b, c]
    return cost, [(param, param - rate * gradient) for param, gradient in zip(params, T.grad(cost, params))]


def denoising_autoencoder():
    """The tutorials' denoising autoencoder: tied weights, corruption masks as an input, plain SGD."""
    random = np.random.RandomState(42)
    x, kept = T.dmatrix("x"), T.dmatrix("kept")
    w, b, c = weights(random, 8, 5, name="W"), zeros(5, name="b"), zeros(8, name="b_prime")
    cost, steps = denoising(x, kept, w, b, c)
    return Program([x, kept], [cost], [w, b, c], steps, [BINARY, bernoulli(random, 0.7, 8)])


class Backward(layers.Layer):
    """A dense layer with the transposed weights of the layer before it."""

    def __init__(self, incoming, num_units, nonlinearity):
        super().__init__(incoming)
        self.num_units, self.nonlinearity = num_units, nonlinearity
        self.b = self.add_param(lasagne.init.Constant(0.0), (num_units,), name="b", regularizable=False)

    def get_output_shape_for(self, input_shape):
        return (input_shape[0], self.num_units)

    def get_output_for(self, input, **kwargs):
        return self.nonlinearity(T.dot(input, self.input_layer.W.T) + self.b.dimshuffle("x", 0))


def tied_autoencoder():
    """A custom Lasagne layer with tied weights, and a penalty if mean activity deviates from its target; momentum."""
    random = np.random.RandomState(43)
    x = T.dmatrix("x")
    encoder = layers.DenseLayer(layers.InputLayer((None, 8), x), 5, nonlinearity=nonlinearities.sigmoid)
    decoder = Backward(encoder, 8, nonlinearities.sigmoid)
    hidden, image = layers.get_output([encoder, decoder])
    activity = hidden.mean(axis=0)
    sparsity = T.sum(0.2 * T.log(0.2 / activity) + 0.8 * T.log(0.8 / (1 - activity)))
    loss = lasagne.objectives.squared_error(image, x).mean() + 0.05 * sparsity
    params = layers.get_all_params(decoder, trainable=True)
    data = [BINARY + 0.1 * random.randn(ROWS, 8)]
    outputs = [loss, activity, hidden]
    return Program([x], outputs, params, updates.momentum(loss, params, 0.5), data)


def contractive_autoencoder():
    """An autoencoder with a penalty on its code's Jacobian, computed for all rows as a batch of matrices."""
    random = np.random.RandomState(44)
    x = T.dmatrix("x")
    w, b, c = weights(random, 8, 5, name="W"), zeros(5, name="b"), zeros(8, name="b_prime")
    hidden = T.nnet.sigmoid(T.dot(x, w) + b)
    z = T.nnet.sigmoid(T.dot(hidden, w.T) + c)
    jacobian = T.reshape(hidden * (1 - hidden), (x.shape[0], 1, 5)) * T.reshape(w, (1, 8, 5))
    cost = T.mean(-T.sum(x * T.log(z) + (1 - x) * T.log(1 - z), axis=1))
    contraction = T.sum(jacobian**2) / x.shape[0]
    loss = cost + 0.1 * contraction
    params = [w, b, c]
    outputs = [cost, contraction]
    return Program([x], outputs, params, updates.sgd(loss, params, 0.1), [BINARY])


def stacked_autoencoder():
    """Two denoising autoencoders, one after the other, then both in a network with a classifier on top."""
    random = np.random.RandomState(45)
    x, y, kept, kept_hidden = T.dmatrix("x"), T.ivector("y"), T.dmatrix("kept"), T.dmatrix("kept_hidden")
    w, b, c = weights(random, 8, 6, name="W1"), zeros(6, name="b1"), zeros(8, name="c1")
    v, d, e = weights(random, 6, 4, name="W2"), zeros(4, name="b2"), zeros(6, name="c2")
    u, f = zeros(4, 3, name="W3"), zeros(3, name="b3")
    hidden = T.nnet.sigmoid(T.dot(x, w) + b)
    first, first_steps = denoising(x, kept, w, b, c)
    second, second_steps = denoising(hidden, kept_hidden, v, d, e)
    p = T.nnet.softmax(T.dot(T.nnet.sigmoid(T.dot(hidden, v) + d), u) + f)
    cost, params = -log_likelihood(p, y), [w, b, v, d, u, f]
    steps = [(param, param - 0.3 * gradient) for param, gradient in zip(params, T.grad(cost, params))]
    masks = bernoulli(random, 0.7, 8), bernoulli(random, 0.7, 6)
    return [
        Program([x, kept], [first], [w, b, c], first_steps, [BINARY, masks[0]]),
        Program([x, kept_hidden], [second], [v, d, e], second_steps, [BINARY, masks[1]]),
        Program([x, y], [cost], params, steps, [BINARY, classes(random, 3)]),
    ]


class Boltzmann:
    """A restricted Boltzmann machine as in the tutorials; it draws by means of uniform numbers that are inputs."""

    def __init__(self, w, b, c):
        self.params = [w, b, c]

    def free_energy(self, v):
        w, b, c = self.params
        return -T.dot(v, c) - T.sum(T.log(1 + T.exp(T.dot(v, w) + b)), axis=1)

    def up(self, v):
        w, b, _ = self.params
        return T.nnet.sigmoid(T.dot(v, w) + b)

    def down(self, h):
        w, _, c = self.params
        return T.nnet.sigmoid(T.dot(h, w.T) + c)

    def chain(self, v, draws):
        """Return the rows after Gibbs sampling, with one step for each draw of hidden and visible units."""

        def step(of_hidden, of_visible, before):
            hidden = T.cast(of_hidden < self.up(before), "float64")
            return T.cast(of_visible < self.down(hidden), "float64")

        of_hidden, of_visible = draws
        chain, _ = L.scan(step, sequences=[of_hidden, of_visible], outputs_info=[v])
        return chain[-1]

    def cost(self, v, draws):
        """Return the cost of contrastive divergence, and its gradients."""
        end = self.chain(v, draws)
        cost = T.mean(self.free_energy(v)) - T.mean(self.free_energy(end))
        return cost, T.grad(cost, self.params, consider_constant=[end])


def machine(random, n, m, number=""):
    return Boltzmann(weights(random, n, m, name="W" + number), zeros(m, name="b" + number), zeros(n, name="c" + number))


def draws_of(random, n, m, steps=2):
    """Return the draws' variables and data. Rows, which are scattered, are the first axis, steps the second."""
    variables = [T.dtensor3("of_hidden"), T.dtensor3("of_visible")]
    return variables, [random.rand(ROWS, steps, m), random.rand(ROWS, steps, n)]


def boltzmann_machine():
    """Contrastive divergence with a two-step scan that is not differentiated; momentum; a pseudo-likelihood."""
    random = np.random.RandomState(46)
    x = T.dmatrix("x")
    rbm = machine(random, 8, 5)
    draws, data = draws_of(random, 8, 5)
    cost, gradients = rbm.cost(x, [one.dimshuffle(1, 0, 2) for one in draws])
    bits, place = T.round(x), L.shared(0, "bit_i")
    flipped = T.set_subtensor(bits[:, place], 1 - bits[:, place])
    likelihood = T.mean(8 * T.log(T.nnet.sigmoid(rbm.free_energy(flipped) - rbm.free_energy(bits))))
    steps = updates.momentum(gradients, rbm.params, 0.1, 0.5)
    steps[place] = (place + 1) % 8
    return Program([x, *draws], [cost, likelihood], rbm.params, steps, [BINARY, *data])


def deep_belief_network():
    """Two Boltzmann machines, trained greedily, then both in a network with a classifier on top."""
    random = np.random.RandomState(47)
    x, y = T.dmatrix("x"), T.ivector("y")
    first, second = machine(random, 8, 6, "1"), machine(random, 6, 4, "2")
    u, f = zeros(4, 3, name="W3"), zeros(3, name="b3")
    programs = []
    below = x
    for rbm, shape in ((first, (8, 6)), (second, (6, 4))):
        draws, data = draws_of(random, *shape, steps=1)
        cost, gradients = rbm.cost(below, [one.dimshuffle(1, 0, 2) for one in draws])
        steps = updates.sgd(gradients, rbm.params, 0.1)
        programs.append(Program([x, *draws], [cost], rbm.params, steps, [BINARY, *data]))
        below = rbm.up(below)
    p = T.nnet.softmax(T.dot(below, u) + f)
    cost, params = -log_likelihood(p, y), [*first.params[:2], *second.params[:2], u, f]
    steps = OrderedDict((param, param - 0.3 * gradient) for param, gradient in zip(params, T.grad(cost, params)))
    return [*programs, Program([x, y], [cost], params, steps, [BINARY, classes(random, 3)])]


def masked_autoencoder():
    """Predict every bit from earlier bits only: weights times constant masks; momentum."""
    random = np.random.RandomState(48)
    x = T.dmatrix("x")
    w, b, v, c = (
        weights(random, 8, 9, name="W"),
        zeros(9, name="b"),
        weights(random, 9, 8, name="V"),
        zeros(8, name="c"),
    )
    order = np.arange(9) % 7
    into, out = np.arange(8)[:, None] <= order, order[:, None] < np.arange(8)
    p = T.nnet.sigmoid(T.dot(T.nnet.relu(T.dot(x, w * into) + b), v * out) + c)
    loss = T.nnet.binary_crossentropy(T.clip(p, 1e-6, 1 - 1e-6), x).sum(axis=1).mean()
    params = [w, b, v, c]
    return Program([x], [loss, p], params, updates.momentum(loss, params, 0.05), [BINARY])


PROGRAMS = [
    variational_autoencoder,
    denoising_autoencoder,
    tied_autoencoder,
    contractive_autoencoder,
    stacked_autoencoder,
    boltzmann_machine,
    deep_belief_network,
    masked_autoencoder,
]
