"""Users' programs that change shared variables between calls: each runs serially and on all ranks.

The two runs differ only in `function`. The programs follow descriptions of real ones; see also tests/exact_programs.
"""

import numpy as np
import pytest
from library import NAME, L, T

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)

RANDOM = np.random.RandomState(3)
X, Y = RANDOM.randn(23, 4), RANDOM.randn(23)
START = RANDOM.randn(4) / 3


@pytest.fixture(params=[("fork", 2, 0), ("threads", 3, 1)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine=NAME)


def exact(*args, **kwargs):
    return synk.function(*args, exact=True, mode=L.quick, **kwargs)


def serial(*args, **kwargs):
    return L.function(*args, mode=L.quick, **kwargs)


def check(program, world, rtol=1e-9):
    """Run a program both ways; compare the results, and check that all ranks have the same bits."""
    ours, shareds = program(exact)
    theirs, _ = program(serial)
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12)
    exact([], [shared * 1 for shared in shareds])()  # the program's last value may still be only on the master
    in_sync = synk.in_sync(shareds)
    assert in_sync, in_sync


def linear(function, rate=None, more=()):
    """Return theta and three functions: the cost, the cost with its gradient, and a training step."""
    x, y, theta = T.dmatrix("x"), T.dvector("y"), L.shared(START.copy(), "theta")
    cost = T.sqr(T.dot(x, theta) - y).mean()
    g = L.module.grad(cost, theta)
    of_cost, with_gradient = function([x, y], cost), function([x, y], [cost, g])
    step = None if rate is None else function([x, y], cost, updates=[(theta, theta - rate * g), *more])
    return theta, of_cost, with_gradient, step


def test_a_scipy_optimiser_sets_theta_before_each_call(world):
    optimize = pytest.importorskip("scipy.optimize")

    def program(function):
        theta, _, with_gradient, _ = linear(function)
        calls = []

        def f(value):
            theta.set_value(value, borrow=True)
            cost, g = with_gradient(X, Y)
            calls.append(float(cost))
            return float(cost), np.array(g, float)

        found = optimize.minimize(f, np.zeros(4), jac=True, method="L-BFGS-B", options={"maxiter": 8})
        return [found.x, calls], [theta]

    check(program, world, rtol=1e-6)


def test_a_line_search_tries_and_takes_back(world):
    def program(function):
        theta, of_cost, with_gradient, _ = linear(function)
        history = []
        for _ in range(5):
            cost, g = with_gradient(X, Y)
            before, step = theta.get_value(), 4.0
            while True:
                theta.set_value(before - step * g)
                if of_cost(X, Y) < cost - 1e-4 * step * np.dot(g, g):
                    break
                step /= 2
            history.append((float(cost), step))
        return [theta.get_value(), history], [theta]

    check(program, world)


def test_a_learning_rate_that_decays_and_a_momentum_that_grows(world):
    """The program sets learning rate and momentum after each epoch, as by nolearn's ``AdjustVariable``."""

    def program(function):
        rate, momentum = L.shared(np.float32(0.3), "rate"), L.shared(np.asarray(0.5), "momentum")
        v = L.shared(np.zeros(4), "v")
        theta, _, with_gradient, step = linear(function, rate, [(v, momentum * v - rate)])
        costs = []
        for epoch in range(6):
            costs += [float(step(X[i : i + 8], Y[i : i + 8])) for i in range(0, 23, 8)]
            rate.set_value(np.float32(rate.get_value() * 0.7))
            momentum.set_value(0.5 + 0.08 * epoch)
        return [theta.get_value(), v.get_value(), costs], [theta, v, rate, momentum]

    check(program, world)


class Wrapper:
    """Model like those of Keras: ``set_weights``, ``get_weights`` and ``K.set_value`` on top of compiled functions."""

    def __init__(self, function):
        self.rate = L.shared(np.asarray(0.1), "rate")
        self.count = L.shared(np.asarray(0.0), "iterations")
        self.theta, self.evaluate, _, self.train = linear(function, self.rate, [(self.count, self.count + 1)])
        self.weights = [self.theta]

    def set_weights(self, values):
        for variable, value in zip(self.weights, values):
            self.set_value(variable, value)

    def get_weights(self):
        return [variable.get_value() for variable in self.weights]

    @staticmethod
    def set_value(variable, value):
        variable.set_value(np.asarray(value, variable.dtype))


def test_a_wrapper_with_weights_and_callbacks(world):
    """The best weights are saved and restored, and the learning rate is changed after each epoch."""

    def program(function):
        model, best, weights, losses = Wrapper(function), np.inf, None, []
        for epoch in range(8):
            for i in range(0, 23, 6):
                model.train(X[i : i + 6], Y[i : i + 6])
            losses.append(float(model.evaluate(X, Y)))
            if losses[-1] < best:
                best, weights = losses[-1], model.get_weights()
            elif epoch % 2:
                model.set_weights(weights)
            Wrapper.set_value(model.rate, 0.7 / (1 + epoch % 3))
            if epoch == 5:
                model.set_weights([np.zeros(4)])
                model.count.zero()
        model.set_weights(weights)
        losses.append(float(model.evaluate(X, Y)))
        return [losses, model.theta.get_value(), model.count.get_value()], [model.theta, model.count, model.rate]

    check(program, world)


def test_parameters_that_are_loaded(world, tmp_path):
    """Parameters are loaded from a file during training, as by nolearn's ``load_params_from``."""

    def program(function):
        rate = L.shared(0.1, "rate")
        theta, of_cost, _, step = linear(function, rate)
        step(X, Y)
        np.savez(tmp_path / "params.npz", theta=theta.get_value(borrow=True))
        found = [float(step(X, Y)) for _ in range(3)]
        with np.load(tmp_path / "params.npz") as params:
            theta.set_value(params["theta"])
        found += [float(of_cost(X, Y)), *(float(step(X, Y)) for _ in range(3))]
        return [found, theta.get_value()], [theta]

    check(program, world)


def test_averages_of_parameters_are_swapped_in_for_validation(world):
    """Serial functions swap the averages in and out again, as for Polyak averaging."""

    def program(function):
        rate = L.shared(0.1, "rate")
        theta, of_cost, _, step = linear(function, rate)
        average = L.shared(np.zeros(4), "average")
        add = L.function([], updates=[(average, 0.9 * average + 0.1 * theta)], mode=L.quick)
        swap = L.function([], updates=[(average, theta), (theta, average)], mode=L.quick)
        found = []
        for _ in range(5):
            step(X, Y), add()
            swap()
            found.append(float(of_cost(X, Y)))
            swap()
        return [found, theta.get_value(), average.get_value()], [theta]

    check(program, world)


def test_weights_are_clipped_in_place(world):
    """The program clips the weights after each step, as for a Wasserstein critic."""

    def program(function):
        rate = L.shared(0.5, "rate")
        theta, _, _, step = linear(function, rate)
        found = []
        for _ in range(5):
            found.append(float(step(X, Y)))
            np.clip(theta.get_value(borrow=True), -0.2, 0.2, out=theta.get_value(borrow=True))
        return [found, theta.get_value()], [theta]

    check(program, world)


def test_lasagne_sets_all_parameters(world):
    lasagne = pytest.importorskip("lasagne")

    def program(function):
        x, y = T.dmatrix("x"), T.dvector("y")
        lasagne.random.set_rng(np.random.RandomState(4))
        net = lasagne.layers.InputLayer((None, 4), x)
        net = lasagne.layers.DenseLayer(net, 3, nonlinearity=lasagne.nonlinearities.tanh)
        net = lasagne.layers.DenseLayer(net, 1, nonlinearity=None)
        loss = T.sqr(lasagne.layers.get_output(net)[:, 0] - y).mean()
        params = lasagne.layers.get_all_params(net, trainable=True)
        step = function([x, y], loss, updates=lasagne.updates.adam(loss, params))
        start, found = lasagne.layers.get_all_param_values(net), []
        for i in range(3):
            found += [float(step(X, Y)) for _ in range(3)]
            lasagne.layers.set_all_param_values(net, [value * (1 + i / 4) for value in start])
        found.append(float(step(X, Y)))
        return [found, *lasagne.layers.get_all_param_values(net)], params

    check(program, world)
