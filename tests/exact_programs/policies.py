"""Policies that draw actions around a mean, and methods that improve them by means of earlier actions."""

import numpy as np
from corpus import ROWS, Program, weights, zeros
from library import L, T
from trainers import updates

OBSERVED, ACTIONS, HIDDEN = 5, 2, 4


class Gaussian:
    """A diagonal normal distribution for each row: means, and logarithms of deviations."""

    def __init__(self, mean, log_std):
        self.mean, self.log_std = mean, log_std

    def log_likelihood(self, x):
        away = (x - self.mean) / T.exp(self.log_std)
        both = T.sum(self.log_std, axis=-1) + 0.5 * T.sum(T.sqr(away), axis=-1)
        return -both - 0.5 * self.mean.shape[-1] * np.log(2 * np.pi)

    def divergence_from(self, old):
        """Return the Kullback-Leibler divergence from this distribution to an old one, for each row."""
        old_std, std = T.exp(old.log_std), T.exp(self.log_std)
        both = T.sqr(old.mean - self.mean) + T.sqr(old_std) - T.sqr(std)
        return T.sum(both / (2 * T.sqr(std) + 1e-8) + self.log_std - old.log_std, axis=-1)

    def entropy(self):
        return T.sum(self.log_std + np.log(np.sqrt(2 * np.pi * np.e)), axis=-1)


def policy(random, observed):
    """Return a network's distribution of actions, whose deviations ignore observations, and its parameters."""
    w, v, u = (
        weights(random, *shape, name=name)
        for shape, name in (((OBSERVED, HIDDEN), "W"), ((HIDDEN, HIDDEN), "V"), ((HIDDEN, ACTIONS), "U"))
    )
    b, c, d = zeros(HIDDEN, name="b"), zeros(HIDDEN, name="c"), zeros(ACTIONS, name="d")
    log_std = zeros(ACTIONS, name="log_std")
    mean = T.dot(T.tanh(T.dot(T.tanh(T.dot(observed, w) + b), v) + c), u) + d
    # One row for each row, regardless of other axes.
    rows = T.tile(log_std.dimshuffle("x", 0), T.concatenate([observed.shape[:-1], [1]]), ndim=2)
    return Gaussian(mean, rows), [w, b, v, c, u, d, log_std]


def inputs_of(random):
    """Return variables and data of observations, actions, advantages, and the distributions of the actions."""
    names = ("observed", "action", "advantage", "old_mean", "old_log_std")
    variables = [T.dvector(name) if name == "advantage" else T.dmatrix(name) for name in names]
    mean, log_std = random.randn(ROWS, ACTIONS), 0.3 * random.randn(ROWS, ACTIONS)
    action = mean + np.exp(log_std) * random.randn(ROWS, ACTIONS)
    return variables, [random.randn(ROWS, OBSERVED), action, random.randn(ROWS), mean, log_std]


def policy_gradient():
    """Advantages weighted by likelihood ratios, with a penalty on the divergence; adam."""
    random = np.random.RandomState(61)
    variables, data = inputs_of(random)
    observed, action, advantage, *of_old = variables
    old, (new, params) = Gaussian(*of_old), policy(random, observed)
    ratio = T.exp(new.log_likelihood(action) - old.log_likelihood(action))
    divergence = new.divergence_from(old)
    loss = -T.mean(ratio * advantage) + 0.1 * T.mean(divergence) - 0.01 * T.mean(new.entropy())
    outputs = [loss, T.mean(divergence), T.max(divergence), new.mean, new.log_std]
    return Program(variables, outputs, params, updates.adam(loss, params, 0.01), data)


def trust_region():
    """A gradient step whose length depends on the divergence's curvature, by a Hessian-vector product."""
    random = np.random.RandomState(62)
    variables, data = inputs_of(random)
    observed, action, advantage, *of_old = variables
    old, (new, params) = Gaussian(*of_old), policy(random, observed)
    loss = -T.mean(T.exp(new.log_likelihood(action) - old.log_likelihood(action)) * advantage)
    divergence = T.mean(new.divergence_from(old))
    grads = T.grad(loss, params)
    along = sum(T.sum(one * T.as_tensor(grad)) for one, grad in zip(T.grad(divergence, params), fixed(grads)))
    curved = T.grad(along, params)
    curvature = sum(T.sum(one * grad) for one, grad in zip(curved, grads))
    rate = T.sqrt(2 * 0.001 / (abs(curvature) + 1e-8))
    flat = T.concatenate([one.flatten() for one in curved])
    steps = [(one, one - rate * grad) for one, grad in zip(params, grads)]
    return Program(variables, [loss, divergence, flat], params, steps, data)


def fixed(grads):
    """Return gradients as constants for further derivatives."""
    return [L.gradient("disconnected_grad")(grad) for grad in grads]


PROGRAMS = [policy_gradient, trust_region]
