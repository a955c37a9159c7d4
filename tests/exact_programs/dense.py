"""Dense networks: first programs from Lasagne and the Deep Learning Tutorials, and models from papers of that time."""

from collections import OrderedDict

import numpy as np
from corpus import ROWS, Program, bernoulli, classes, error_rate, log_likelihood, weights, zeros
from library import L, T
from trainers import lasagne, layers, nonlinearities, objectives, updates

import synkhronos as synk


def logistic_regression():
    """The tutorials' logistic regression: zero initial weights, an indexed log-likelihood, plain SGD."""
    random = np.random.RandomState(1)
    x, y = T.dmatrix("x"), T.ivector("y")
    w, b = zeros(5, 3, name="W"), zeros(3, name="b")
    p = T.nnet.softmax(T.dot(x, w) + b)
    cost = -log_likelihood(p, y)
    gradients = T.grad(cost=cost, wrt=[w, b])
    steps = [(param, param - 0.13 * gradient) for param, gradient in zip([w, b], gradients)]
    outputs = [cost, error_rate(p, y)]
    return Program([x, y], outputs, [w, b], steps, [random.randn(ROWS, 5), classes(random, 3)])


def mlp_with_penalties():
    """The tutorials' multilayer perceptron: a tanh layer, and L1 and L2 penalties in the cost."""
    random = np.random.RandomState(2)
    x, y = T.dmatrix("x"), T.ivector("y")
    w, b = weights(random, 6, 8, name="W1"), zeros(8, name="b1")
    v, c = zeros(8, 3, name="W2"), zeros(3, name="b2")
    p = T.nnet.softmax(T.dot(T.tanh(T.dot(x, w) + b), v) + c)
    l1 = abs(w).sum() + abs(v).sum()
    l2 = (w**2).sum() + (v**2).sum()
    cost = -log_likelihood(p, y) + 0.001 * l1 + 0.0001 * l2
    params = [w, b, v, c]
    steps = [(param, param - 0.1 * gradient) for param, gradient in zip(params, T.grad(cost, params))]
    outputs = [cost, error_rate(p, y), T.argmax(p, axis=1)]
    return Program([x, y], outputs, params, steps, [random.randn(ROWS, 6), classes(random, 3)])


def mlp():
    """Lasagne's first example: two rectified layers, cross-entropy, adam."""
    random = np.random.RandomState(3)
    x, y = T.dmatrix("x"), T.ivector("y")
    net = layers.InputLayer((None, 6), x)
    for _ in range(2):
        net = layers.DenseLayer(net, 9, nonlinearity=nonlinearities.rectify)
    net = layers.DenseLayer(net, 3, nonlinearity=nonlinearities.softmax)
    prediction = layers.get_output(net)
    loss = objectives.categorical_crossentropy(prediction, y).mean()
    params = layers.get_all_params(net, trainable=True)
    outputs = [loss, prediction]
    return Program([x, y], outputs, params, updates.adam(loss, params), [random.randn(ROWS, 6), classes(random, 3)])


def dropout():
    """Dropout before both layers, with masks as inputs; L2 by Lasagne's regularization; rmsprop."""
    random = np.random.RandomState(4)
    x, y, mask, mask_hidden = T.dmatrix("x"), T.ivector("y"), T.dmatrix("mask"), T.dmatrix("mask_hidden")
    net = layers.InputLayer((None, 6), x)
    net = layers.ElemwiseMergeLayer([net, layers.InputLayer((None, 6), mask / 0.8)], T.mul)
    net = layers.DenseLayer(net, 8, nonlinearity=nonlinearities.leaky_rectify)
    net = layers.ElemwiseMergeLayer([net, layers.InputLayer((None, 8), mask_hidden / 0.5)], T.mul)
    net = layers.DenseLayer(net, 3, nonlinearity=nonlinearities.softmax)
    prediction = layers.get_output(net)
    loss = objectives.aggregate(objectives.categorical_crossentropy(prediction, y), mode="mean")
    loss = loss + 1e-3 * lasagne.regularization.regularize_network_params(net, lasagne.regularization.l2)
    params = layers.get_all_params(net, trainable=True)
    data = [random.randn(ROWS, 6), classes(random, 3), bernoulli(random, 0.8, 6), bernoulli(random, 0.5, 8)]
    return Program([x, y, mask, mask_hidden], [loss], params, updates.rmsprop(loss, params, 0.01), data)


def highway():
    """A highway network, whose gates let inputs bypass layers; bounded gradient norm; Nesterov momentum."""
    random = np.random.RandomState(5)
    x, y = T.dmatrix("x"), T.ivector("y")
    net = layers.DenseLayer(layers.InputLayer((None, 6), x), 8)
    for _ in range(3):
        transform = layers.DenseLayer(net, 8, nonlinearity=nonlinearities.tanh)
        gate = layers.DenseLayer(net, 8, b=lasagne.init.Constant(-1.0), nonlinearity=nonlinearities.sigmoid)
        net = layers.ElemwiseSumLayer(
            [
                layers.ElemwiseMergeLayer([transform, gate], T.mul),
                layers.ElemwiseMergeLayer([net, layers.NonlinearityLayer(gate, lambda g: 1 - g)], T.mul),
            ]
        )
    net = layers.DenseLayer(net, 3, nonlinearity=nonlinearities.softmax)
    loss = T.mean(objectives.categorical_crossentropy(layers.get_output(net), y))
    params = layers.get_all_params(net, trainable=True)
    gradients, norm = updates.total_norm_constraint(T.grad(loss, params), 0.5, return_norm=True)
    steps = updates.nesterov_momentum(gradients, params, 0.1, 0.9)
    data = [random.randn(ROWS, 6), classes(random, 3)]
    return Program([x, y], [loss, norm], params, steps, data)


def maxout():
    """Maxout units, each the largest of three; weight norms are bounded after every step; momentum."""
    random = np.random.RandomState(6)
    x, y = T.dmatrix("x"), T.ivector("y")
    net = layers.InputLayer((None, 6), x)
    for _ in range(2):
        net = layers.FeaturePoolLayer(layers.DenseLayer(net, 12, nonlinearity=None), pool_size=3)
    net = layers.DenseLayer(net, 3, nonlinearity=nonlinearities.softmax)
    loss = T.mean(objectives.categorical_crossentropy(layers.get_output(net), y))
    params = layers.get_all_params(net, trainable=True)
    steps = updates.momentum(loss, params, 0.1, 0.9)
    for param in params:
        if param.ndim == 2:
            steps[param] = updates.norm_constraint(steps[param], 1.2)
    return Program([x, y], [loss], params, steps, [random.randn(ROWS, 6), classes(random, 3)])


def multi_task():
    """One hidden layer for a class and two numbers: two losses, the second over rows with a target; adagrad."""
    random = np.random.RandomState(7)
    x, y, t, known = T.dmatrix("x"), T.ivector("y"), T.dmatrix("t"), T.dvector("known")
    shared = layers.DenseLayer(layers.InputLayer((None, 6), x), 10, nonlinearity=nonlinearities.tanh)
    by_class = layers.DenseLayer(shared, 3, nonlinearity=nonlinearities.softmax)
    by_value = layers.DenseLayer(shared, 2, nonlinearity=None)
    p, value = layers.get_output([by_class, by_value])
    of_class = objectives.categorical_crossentropy(p, y).mean()
    of_value = objectives.aggregate(objectives.squared_error(value, t).sum(axis=1), known, mode="normalized_sum")
    loss = of_class + 0.3 * of_value
    params = layers.get_all_params([by_class, by_value], trainable=True)
    data = [random.randn(ROWS, 6), classes(random, 3), random.randn(ROWS, 2), bernoulli(random, 0.6)]
    outputs = [loss, of_class, of_value]
    return Program([x, y, t, known], outputs, params, updates.adagrad(loss, params, 0.1), data)


def mixture_density():
    """A network whose outputs are the weights, means and deviations of three normal distributions; adam."""
    random = np.random.RandomState(8)
    x, y = T.dmatrix("x"), T.dcol("y")
    w, b = weights(random, 2, 8, name="W"), zeros(8, name="b")
    heads = [(weights(random, 8, 3, name=name), zeros(3, name="b_" + name)) for name in ("pi", "mu", "sigma")]
    hidden = T.tanh(T.dot(x, w) + b)
    pi, mu, sigma = (T.dot(hidden, v) + c for v, c in heads)
    log_pi = (
        pi - T.log(T.exp(pi - pi.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)) - pi.max(axis=1, keepdims=True)
    )
    log_sigma = T.clip(sigma, -3, 3)
    log_p = log_pi - log_sigma - 0.5 * T.sqr((y - mu) / T.exp(log_sigma)) - 0.5 * np.log(2 * np.pi)
    highest = T.max(log_p, axis=1, keepdims=True)
    log_p = highest + T.log(T.sum(T.exp(log_p - highest), axis=1, keepdims=True))
    loss = -T.mean(log_p)
    params = [w, b] + [param for head in heads for param in head]
    points = random.randn(ROWS, 2)
    target = np.sin(points.sum(axis=1, keepdims=True)) + 0.1 * random.randn(ROWS, 1)
    return Program([x, y], [loss], params, updates.adam(loss, params, 0.02), [points, target])


def siamese():
    """Pairs of rows in one network: near if they are alike, at least a margin apart if not; rmsprop."""
    random = np.random.RandomState(9)
    first, second, same = T.dmatrix("first"), T.dmatrix("second"), T.dvector("same")
    net = layers.InputLayer((None, 6))
    net = layers.DenseLayer(net, 8, nonlinearity=nonlinearities.rectify)
    net = layers.DenseLayer(net, 2, b=None, nonlinearity=None)
    distance = T.sqrt(T.sum(T.sqr(layers.get_output(net, first) - layers.get_output(net, second)), axis=1) + 1e-6)
    loss = T.mean(same * T.sqr(distance) + (1 - same) * T.sqr(T.maximum(0, 2 - distance)))
    params = layers.get_all_params(net, trainable=True)
    data = [random.randn(ROWS, 6), random.randn(ROWS, 6), bernoulli(random, 0.5)]
    outputs = [loss, distance]
    return Program([first, second, same], outputs, params, updates.rmsprop(loss, params, 0.01), data)


def generator_and_judge():
    """Two adversarial networks, each with its own loss and adam, in one function."""
    random = np.random.RandomState(10)
    z, x = T.dmatrix("z"), T.dmatrix("x")
    generator = layers.DenseLayer(layers.InputLayer((None, 3)), 8)
    generator = layers.DenseLayer(generator, 4, nonlinearity=nonlinearities.tanh)
    judge = layers.DenseLayer(layers.InputLayer((None, 4)), 8, nonlinearity=nonlinearities.leaky_rectify)
    judge = layers.DenseLayer(judge, 1, nonlinearity=nonlinearities.sigmoid)
    real, fake = (layers.get_output(judge, one) for one in (x, layers.get_output(generator, z)))
    of_generator = objectives.binary_crossentropy(fake, 1).mean()
    of_judge = (objectives.binary_crossentropy(real, 1) + objectives.binary_crossentropy(fake, 0)).mean()
    generates, judges = (layers.get_all_params(net, trainable=True) for net in (generator, judge))
    steps = updates.adam(of_generator, generates, 0.005, beta1=0.5)
    steps.update(updates.adam(of_judge, judges, 0.005, beta1=0.5))
    outputs = [(real > 0.5).mean(), (fake < 0.5).mean()]
    return Program([z, x], outputs, generates + judges, steps, [random.rand(ROWS, 3), random.rand(ROWS, 4)])


def clipped():
    """A regression with elementwise clipped gradients; hand-written momentum, with a decaying rate."""
    random = np.random.RandomState(11)
    x, y = T.dmatrix("x"), T.dvector("y")
    w, b, v = weights(random, 5, 6, name="w"), zeros(6, name="b"), weights(random, 6, name="v")
    rate = L.shared(0.2, "rate")
    error = T.dot(T.nnet.softplus(T.dot(x, w) + b), v) - y
    loss = T.mean(T.switch(abs(error) < 1, 0.5 * error**2, abs(error) - 0.5))
    steps = OrderedDict([(rate, rate * 0.97)])
    for param, gradient in zip([w, b, v], T.grad(loss, [w, b, v])):
        speed = L.shared(param.get_value() * 0, "speed")
        steps[speed] = 0.9 * speed - rate * T.clip(gradient, -0.05, 0.05)
        steps[param] = param + 0.9 * steps[speed] - rate * T.clip(gradient, -0.05, 0.05)
    data = [random.randn(ROWS, 5), 3 * random.randn(ROWS)]
    return Program([x, y], [loss, abs(error).max()], [w, b, v], steps, data)


def policy_gradient():
    """A clipped policy loss with advantages normalized over the batch, a value loss, an entropy term; adam."""
    random = np.random.RandomState(12)
    x, action, gain, old = T.dmatrix("x"), T.ivector("action"), T.dvector("gain"), T.dvector("old")
    hidden = layers.DenseLayer(layers.InputLayer((None, 5), x), 8, nonlinearity=nonlinearities.tanh)
    actor = layers.DenseLayer(hidden, 3, nonlinearity=nonlinearities.softmax)
    critic = layers.DenseLayer(hidden, 1, nonlinearity=None)
    p, value = layers.get_output([actor, critic])
    advantage = L.gradient("disconnected_grad")(gain - value.flatten())
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = p[T.arange(x.shape[0]), action] / old
    surrogate = T.minimum(ratio * advantage, T.clip(ratio, 0.8, 1.2) * advantage)
    entropy = -T.sum(p * T.log(p), axis=1)
    loss = -surrogate.mean() + 0.5 * T.mean(T.sqr(gain - value.flatten())) - 0.01 * entropy.mean()
    params = layers.get_all_params([actor, critic], trainable=True)
    gradients = updates.total_norm_constraint(T.grad(loss, params), 0.5)
    data = [random.randn(ROWS, 5), classes(random, 3), random.randn(ROWS), 0.2 + 0.6 * random.rand(ROWS)]
    outputs = [loss, entropy.mean(), ratio.max()]
    return Program([x, action, gain, old], outputs, params, updates.adam(gradients, params, 0.01), data)


def value_of_actions():
    """Q-learning with a second network that follows the first slowly; the loss is linear for large errors."""
    random = np.random.RandomState(13)
    x, action, reward, then, ends = (
        T.dmatrix("x"),
        T.ivector("action"),
        T.dvector("reward"),
        T.dmatrix("then"),
        T.dvector("ends"),
    )
    now, later = (
        layers.DenseLayer(layers.DenseLayer(layers.InputLayer((None, 5)), 8), 3, nonlinearity=None) for _ in range(2)
    )
    best = layers.get_output(later, then).max(axis=1)
    target = L.gradient("disconnected_grad")(reward + 0.9 * (1 - ends) * best)
    error = target - T.sum(layers.get_output(now, x) * T.extra_ops.to_one_hot(action, 3), axis=1)
    loss = T.mean(T.switch(abs(error) < 1, 0.5 * T.sqr(error), abs(error) - 0.5))
    params, followers = (layers.get_all_params(net, trainable=True) for net in (now, later))
    steps = updates.rmsprop(loss, params, 0.01)
    for param, follower in zip(params, followers):
        steps[follower] = 0.95 * follower + 0.05 * steps[param]
    data = [random.randn(ROWS, 5), classes(random, 3), random.randn(ROWS), random.randn(ROWS, 5)]
    outputs = [loss, error]
    return Program([x, action, reward, then, ends], outputs, params, steps, [*data, bernoulli(random, 0.2)])


def wasserstein():
    """A critic with a gradient penalty between real and generated rows: gradients of gradients; adam."""
    random = np.random.RandomState(14)
    real, made, where = T.dmatrix("real"), T.dmatrix("made"), T.dcol("where")
    judge = layers.DenseLayer(layers.InputLayer((None, 4)), 8, nonlinearity=nonlinearities.tanh)
    judge = layers.DenseLayer(judge, 1, b=None, nonlinearity=None)
    between = where * real + (1 - where) * made
    slope = T.grad(layers.get_output(judge, between).sum(), between)
    penalty = T.mean(T.sqr(T.sqrt(T.sum(T.sqr(slope), axis=1)) - 1))
    distance = layers.get_output(judge, real).mean() - layers.get_output(judge, made).mean()
    loss = 10 * penalty - distance
    params = layers.get_all_params(judge, trainable=True)
    data = [random.randn(ROWS, 4), 1 + random.randn(ROWS, 4), random.rand(ROWS, 1)]
    outputs = [distance, penalty]
    return Program([real, made, where], outputs, params, updates.adam(loss, params, 0.005, beta1=0.5, beta2=0.9), data)


def centres():
    """k-means by batches: every center moves toward the mean of the rows that are nearest to it."""
    random = np.random.RandomState(15)
    x = T.dmatrix("x")
    middle, seen = weights(random, 3, 2, name="centres", scale=1.0), zeros(3, name="seen")
    squares = T.sum(T.sqr(x[:, None, :] - middle[None, :, :]), axis=2)
    nearest = T.argmin(squares, axis=1)
    member = T.cast(T.eq(nearest.dimshuffle(0, "x"), T.arange(3).dimshuffle("x", 0)), "float64")
    count = member.sum(axis=0)
    shift = T.dot(member.T, x) - count.dimshuffle(0, "x") * middle
    steps = [(seen, seen + count), (middle, middle + shift / T.maximum(seen + count, 1).dimshuffle(0, "x"))]
    outputs = [squares.min(axis=1).mean(), nearest, count]
    return Program([x], outputs, [middle, seen], steps, [random.randn(ROWS, 2) + 3 * random.randint(0, 3, (ROWS, 1))])


def by_hand():
    """A program with explicit collectives, which change neither the serial program nor the exact one."""
    random = np.random.RandomState(16)
    x, y = T.dmatrix("x"), T.dmatrix("y")
    w, b = weights(random, 5, 2, name="w"), zeros(2, name="b")
    x_mean = synk.ops.all_reduce(x.mean(axis=0))
    loss = T.mean(T.sqr(T.dot(x - x_mean, w) + b - y))
    gradients = synk.ops.all_reduce(T.grad(loss, [w, b]))
    steps = updates.adam(gradients, [w, b], 0.01)
    return Program([x, y], [loss], [w, b], steps, [random.randn(ROWS, 5), random.randn(ROWS, 2)])


def concatenated():
    """Real and generated rows in one batch for a critic, whose outputs are divided again afterwards."""
    random = np.random.RandomState(17)
    real, made = T.dmatrix("real"), T.dmatrix("made")
    judge = layers.DenseLayer(layers.InputLayer((None, 4)), 8)
    judge = layers.DenseLayer(judge, 1, nonlinearity=nonlinearities.sigmoid)
    p = layers.get_output(judge, T.concatenate([real, made], axis=0))
    loss = -T.mean(T.log(p[: real.shape[0]])) - T.mean(T.log(1 - p[real.shape[0] :]))
    params = layers.get_all_params(judge, trainable=True)
    data = [random.randn(ROWS, 4), 1 + random.randn(ROWS, 4)]
    return Program([real, made], [loss], params, updates.adam(loss, params, 0.01), data)


PROGRAMS = [
    logistic_regression,
    mlp_with_penalties,
    mlp,
    dropout,
    highway,
    maxout,
    multi_task,
    mixture_density,
    siamese,
    generator_and_judge,
    clipped,
    policy_gradient,
    value_of_actions,
    wasserstein,
    centres,
    by_hand,
    concatenated,
]
