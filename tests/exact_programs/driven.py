"""Programs that change their variables between calls: schedules, custom optimizers, loaded weights.

A program takes a function builder, the library's ``function`` or ours, runs to its end, and returns numbers, such as
losses, and its variables.
"""

import numpy as np
import scipy.optimize
from corpus import BATCH, ROWS, bernoulli, classes, log_likelihood, weights, zeros
from library import L, T
from trainers import adam, momentum, sgd


def rows_in_batches(*arrays, order=None):
    """Yield batches of all rows; the last one is smaller."""
    order = np.arange(len(arrays[0])) if order is None else order
    for start in range(0, len(order), BATCH):
        yield [array[order[start : start + BATCH]] for array in arrays]


# -- a generator, and a discriminator with classes ---------------------------------------------------------------------


def log_sum_exp(x):
    """Return ``log(sum(exp(x)))`` over the classes of each row."""
    largest = x.max(axis=1)
    return largest + T.log(T.exp(x - largest.dimshuffle(0, "x")).sum(axis=1))


class WeightNormed:
    """A dense layer with weight normalization; its first rows determine lengths and biases."""

    def __init__(self, random, n_in, n_out, nonlinearity, name):
        self.direction = weights(random, n_in, n_out, name=f"v_{name}")
        self.length, self.b = L.shared(np.ones(n_out), f"g_{name}"), zeros(n_out, name=f"b_{name}")
        self.params, self.nonlinearity, self.setting = [self.direction, self.length, self.b], nonlinearity, []

    def __call__(self, x, set_up=False):
        norms = T.sqrt(T.sqr(self.direction).sum(axis=0))
        found = T.dot(x, self.direction * (self.length / norms).dimshuffle("x", 0))
        if not set_up:
            return self.nonlinearity(found + self.b.dimshuffle("x", 0))
        mean, deviation = (
            found.mean(axis=0),
            T.sqrt(T.mean(T.sqr(found - found.mean(axis=0, keepdims=True)), axis=0) + 1e-4),
        )
        self.setting = [(self.length, self.length / deviation), (self.b, -mean / deviation)]
        return self.nonlinearity((found - mean.dimshuffle("x", 0)) / deviation.dimshuffle("x", 0))


def feature_matching(function):
    """A semi-supervised GAN for images of digits: weight norm, batch norm, feature matching, averaged weights."""
    random = np.random.RandomState(71)
    labelled, y, unlabelled, noise, rate = (
        T.dmatrix("labelled"),
        T.ivector("y"),
        T.dmatrix("u"),
        T.dmatrix("z"),
        T.dscalar("lr"),
    )
    w, gain, shift, v = (
        weights(random, 4, 6, name="w"),
        L.shared(np.ones(6), "gain"),
        zeros(6, name="shift"),
        weights(random, 6, 8),
    )
    hidden = T.dot(noise, w)
    normal = (hidden - hidden.mean(axis=0)) / T.sqrt(hidden.var(axis=0) + 1e-4)
    made = T.nnet.sigmoid(T.dot(T.nnet.softplus(normal * gain + shift), v))
    judge = [
        WeightNormed(random, 8, 7, T.nnet.relu, "1"),
        WeightNormed(random, 7, 5, T.nnet.relu, "2"),
        WeightNormed(random, 5, 3, lambda x: x, "3"),
    ]

    def judged(x, set_up=False):
        for layer in judge[:-1]:
            x = layer(x, set_up)
        return x, judge[-1](x, set_up)

    judged(unlabelled, set_up=True)
    set_up = function([unlabelled], [], updates=[pair for layer in judge for pair in layer.setting])
    _, of_labelled = judged(labelled)
    features, of_unlabelled = judged(unlabelled)
    features_made, of_made = judged(made)
    supervised = -of_labelled[T.arange(y.shape[0]), y].mean() + log_sum_exp(of_labelled).mean()
    real, fake = log_sum_exp(of_unlabelled), log_sum_exp(of_made)
    unsupervised = 0.5 * (-real.mean() + T.nnet.softplus(real).mean() + T.nnet.softplus(fake).mean())
    params = [param for layer in judge for param in layer.params]
    averages = [L.shared(param.get_value(), f"average of {param.name}") for param in params]
    steps = adam(supervised + unsupervised, params, rate)
    averaging = [(average, average + 0.01 * (steps[param] - average)) for average, param in zip(averages, params)]
    error = T.neq(T.argmax(of_labelled, axis=1), y).mean()
    train_judge = function(
        [labelled, y, unlabelled, noise], [supervised, unsupervised, error], [rate], [*steps.items(), *averaging]
    )
    matching = T.sqr(features_made.mean(axis=0) - features.mean(axis=0)).mean()
    of_generator = [w, gain, shift, v]
    train_generator = function(
        [unlabelled, noise], [matching], [rate], list(adam(matching, of_generator, rate).items())
    )
    test = function([labelled, y], [error, of_labelled.sum()], givens=list(zip(params, averages)))
    pixels, digits = random.rand(ROWS, 8), classes(random, 3)
    others, draws = random.rand(ROWS, 8), random.rand(2, ROWS, 4)
    set_up(others)
    found = []
    for epoch in range(3):
        lr = 0.02 * min(2 - epoch / 2.0, 1.0)
        order = random.permutation(ROWS)
        for x, c, u, z, z2 in rows_in_batches(pixels[order], digits[order], others, draws[0], draws[1]):
            found += [*train_judge(x, c, u, z, lr), *train_generator(u, z2, lr)]
        found += test(pixels, digits)
    return found, [*params, *averages, *of_generator]


# -- a custom optimizer ------------------------------------------------------------------------------------------------


def conjugate_gradients(function):
    """Logistic regression by SciPy's nonlinear conjugate gradients, with all parameters in one vector."""
    random = np.random.RandomState(72)
    x, y = T.dmatrix("x"), T.ivector("y")
    theta = zeros(5 * 3 + 3, name="theta")
    w, b = theta[: 5 * 3].reshape((5, 3)), theta[5 * 3 :]
    p = T.nnet.softmax(T.dot(x, w) + b)
    cost = -log_likelihood(p, y)
    of_batch, gradient = function([x, y], cost), function([x, y], T.grad(cost, theta))
    errors = function([x, y], T.neq(T.argmax(p, axis=1), y).mean())
    data, seen = [random.randn(ROWS, 5), classes(random, 3)], []

    def mean_cost(point):
        theta.set_value(point, borrow=True)
        return np.mean([of_batch(*batch) for batch in rows_in_batches(*data)])

    def mean_gradient(point):
        theta.set_value(point, borrow=True)
        return np.mean([gradient(*batch) for batch in rows_in_batches(*data)], axis=0)

    def note(point):
        theta.set_value(point, borrow=True)
        seen.append(errors(*data))

    best = scipy.optimize.fmin_cg(
        mean_cost, np.zeros(5 * 3 + 3), mean_gradient, callback=note, maxiter=6, disp=False, gtol=1e-9
    )
    return [best, mean_cost(best), *seen], [theta]


def line_search(function):
    """Gradient descent on all rows; a step is halved until the loss decreases, otherwise it is undone."""
    random = np.random.RandomState(73)
    x, y = T.dmatrix("x"), T.dvector("y")
    w = weights(random, 4, name="w")
    loss = T.sqr(T.tanh(T.dot(x, w)) - y).mean()
    value, gradient = function([x, y], loss), function([x, y], T.grad(loss, w))
    data, found = [random.randn(ROWS, 4), random.rand(ROWS)], []
    for _ in range(5):
        start, before, slope, step = w.get_value(), value(*data), gradient(*data), 8.0
        while step > 1e-3:
            w.set_value(start - step * slope)
            if value(*data) < before:
                break
            step /= 2
        else:
            w.set_value(start)
        found += [before, step]
    return found, [w]


# -- wrappers -----------------------------------------------------------------------------------------------------------------


class Model:
    """A wrapper like Keras's: it is compiled and fitted with callbacks, and its weights are lists of arrays."""

    def __init__(self, function, random, sizes):
        self.function, self.x, self.y = function, T.dmatrix("x"), T.ivector("y")
        self.params, hidden = [], self.x
        for i, (n_in, n_out) in enumerate(zip(sizes, sizes[1:])):
            w, b = weights(random, n_in, n_out, name=f"kernel{i}"), zeros(n_out, name=f"bias{i}")
            hidden = T.dot(hidden, w) + b
            hidden = T.nnet.softmax(hidden) if n_out == sizes[-1] else T.tanh(hidden)
            self.params += [w, b]
        self.output = hidden

    def compile(self, rate):
        self.rate = L.shared(np.asarray(rate), "lr")
        loss = T.nnet.categorical_crossentropy(self.output, self.y).mean()
        accuracy = T.eq(T.argmax(self.output, axis=1), self.y).mean()
        steps = momentum(loss, self.params, self.rate)
        self.train = self.function([self.x, self.y], [loss, accuracy], updates=list(steps.items()))
        self.test = self.function([self.x, self.y], [loss, accuracy])
        self.predict = self.function([self.x], self.output)

    def get_weights(self):
        return [param.get_value() for param in self.params]

    def set_weights(self, values):
        for param, value in zip(self.params, values):
            param.set_value(value)

    def fit(self, x, y, epochs, random, callbacks=()):
        found = []
        for epoch in range(epochs):
            for one in callbacks:
                one(epoch, self)
            for batch in rows_in_batches(x, y, order=random.permutation(len(x))):
                found += self.train(*batch)
        return found


def fitted_with_schedule(function):
    """A model whose rate a callback changes; the best weights are restored at the end, as after early stopping."""
    random = np.random.RandomState(74)
    model = Model(function, random, (5, 7, 3))
    model.compile(0.3)
    x, y, best = random.randn(ROWS, 5), classes(random, 3), []

    def schedule(epoch, model):
        model.rate.set_value(np.asarray(0.3 * 0.5**epoch))

    def keep_best(epoch, model):
        loss = model.test(x[:13], y[:13])[0]
        best.append((float(loss), model.get_weights()))

    found = model.fit(x, y, 3, random, [schedule, keep_best])
    model.set_weights(min(best, key=lambda one: one[0])[1])
    found += model.test(x, y)
    found += model.fit(x, y, 1, random)
    other = Model(function, random, (5, 7, 3))  # its weights equal those of the first, except for the halved rate
    other.compile(0.1)
    other.set_weights([value * 0.5 for value in model.get_weights()])
    found += [other.predict(x), *other.fit(x, y, 1, random)]
    return found, [*model.params, *other.params, model.rate]


class Net:
    """A wrapper like nolearn's: a validation set, adjusted variables, parameters from another net."""

    def __init__(self, function, random, n_hidden, rate, epochs):
        x, y = T.dmatrix("x"), T.ivector("y")
        self.params = {
            "hidden.W": weights(random, 5, n_hidden, name="hidden.W"),
            "hidden.b": zeros(n_hidden, name="hidden.b"),
            "output.W": weights(random, n_hidden, 3, name="output.W"),
            "output.b": zeros(3, name="output.b"),
        }
        w, b, v, c = self.params.values()
        p = T.nnet.softmax(T.dot(T.tanh(T.dot(x, w) + b), v) + c)
        loss = T.nnet.categorical_crossentropy(p, y).mean()
        self.learning_rate, self.momentum = L.shared(np.asarray(rate), "rate"), L.shared(np.asarray(0.9), "momentum")
        self.epochs, self.best = epochs, None
        steps = momentum(loss, [w, b, v, c], self.learning_rate, self.momentum)
        self.train_iter = function([x, y], [loss], updates=list(steps.items()))
        self.eval_iter = function([x, y], [loss, T.eq(T.argmax(p, axis=1), y).mean()])

    def load_params_from(self, source):
        """Load the values of the parameters that have the same name and shape."""
        for name, value in source.items():
            if name in self.params and self.params[name].get_value().shape == value.shape:
                self.params[name].set_value(value)

    def get_all_params_values(self):
        return {name: param.get_value() for name, param in self.params.items()}

    def fit(self, x, y):
        cut, found = len(x) * 4 // 5, []
        for epoch in range(self.epochs):
            losses = [self.train_iter(*batch)[0] for batch in rows_in_batches(x[:cut], y[:cut])]
            valid, accuracy = self.eval_iter(x[cut:], y[cut:])
            found += [np.mean(losses), valid, accuracy]
            if self.best is None or valid < self.best[0]:
                self.best = valid, self.get_all_params_values()
            for variable, end in ((self.learning_rate, 0.01), (self.momentum, 0.99)):
                start = variable.get_value()
                variable.set_value(np.asarray(start + (end - start) * (epoch + 1) / self.epochs))
        self.load_params_from(self.best[1])
        return found


def fitted_from_another(function):
    """Fit a net, restore its best parameters, and load those that fit into a net with a wider hidden layer."""
    random = np.random.RandomState(75)
    x, y = random.randn(ROWS, 5), classes(random, 3)
    first, second = Net(function, random, 6, 0.4, 3), Net(function, random, 8, 0.2, 2)
    found = first.fit(x, y)
    second.load_params_from(first.get_all_params_values())
    found += [*second.eval_iter(x, y), *second.fit(x, y)]
    return found, [*first.params.values(), *second.params.values(), first.learning_rate, second.momentum]


# -- hard examples ------------------------------------------------------------------------------------------------------------


def above_the_mean(function):
    """Train on only those rows whose loss is above the batch's mean."""
    random = np.random.RandomState(76)
    x, y = T.dmatrix("x"), T.ivector("y")
    w, b = weights(random, 5, 3, name="w"), zeros(3, name="b")
    losses = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, w) + b), y)
    hard = losses[(losses > losses.mean()).nonzero()]
    loss = hard.mean()
    train = function([x, y], [loss, hard.shape[0], losses.mean()], updates=list(sgd(loss, [w, b], 0.2).items()))
    data = [random.randn(ROWS, 5), classes(random, 3)]
    found = [value for _ in range(3) for batch in rows_in_batches(*data) for value in train(*batch)]
    return found, [w, b]


def hardest_by_a_mask(function):
    """The program computes a batch's losses, chooses its three worst rows, and trains on these with a mask."""
    random = np.random.RandomState(77)
    x, y, chosen = T.dmatrix("x"), T.ivector("y"), T.dvector("chosen")
    w, v = weights(random, 5, 6, name="w"), weights(random, 6, 3, name="v")
    losses = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(T.tanh(T.dot(x, w)), v)), y)
    loss = (losses * chosen).sum() / chosen.sum()
    forward = function([x, y], losses)
    train = function([x, y, chosen], [loss], updates=list(adam(loss, [w, v], 0.05).items()))
    data, found = [random.randn(ROWS, 5), classes(random, 3)], []
    for _ in range(3):
        for batch in rows_in_batches(*data):
            of_rows = np.asarray(forward(*batch))
            mask = np.zeros(len(of_rows))
            mask[np.argsort(of_rows)[-3:]] = 1.0
            found += [of_rows, *train(*batch, mask)]
    return found, [w, v]


def masked_batches(function):
    """Like `above_the_mean`, but the threshold is a variable that the program adapts to earlier losses."""
    random = np.random.RandomState(78)
    x, y, kept = T.dmatrix("x"), T.dvector("y"), T.dvector("kept")
    w, threshold = weights(random, 5, name="w"), L.shared(np.asarray(0.5), "threshold")
    losses = T.sqr(T.dot(x, w) - y) * kept
    hard = T.gt(losses, threshold)
    loss = T.switch(hard, losses, 0).sum() / T.maximum(hard.sum(), 1)
    train = function([x, y, kept], [loss, hard.sum(), losses.mean()], updates=list(sgd(loss, [w], 0.02).items()))
    data, found = [random.randn(ROWS, 5), random.randn(ROWS), bernoulli(random, 0.7)], []
    for _ in range(3):
        for batch in rows_in_batches(*data):
            found += train(*batch)
            threshold.set_value(0.5 * threshold.get_value() + 0.5 * np.asarray(found[-1]))
    return found, [w, threshold]


PROGRAMS = [
    feature_matching,
    conjugate_gradients,
    line_search,
    fitted_with_schedule,
    fitted_from_another,
    above_the_mean,
    hardest_by_a_mask,
    masked_batches,
]
