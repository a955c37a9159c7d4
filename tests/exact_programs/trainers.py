"""Lasagne, or where it is not installed, its update rules and objectives in the library's own words."""

from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
from library import IS_THEANO, L, Missing, T


def _gradients(loss, params):
    return list(loss) if isinstance(loss, (list, tuple)) else T.grad(loss, params)


def _zeros_like(param):
    return L.shared(np.zeros_like(param.get_value()), shape=param.type.shape)


def sgd(loss, params, rate):
    """``p - rate * g``"""
    return OrderedDict((p, p - rate * g) for p, g in zip(params, _gradients(loss, params)))


def momentum(loss, params, rate, momentum=0.9):
    """``v = momentum * v - rate * g``, ``p + v``"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        speed = _zeros_like(p)
        new[speed] = momentum * speed - rate * g
        new[p] = p + new[speed]
    return new


def nesterov_momentum(loss, params, rate, momentum=0.9):
    """``v = momentum * v - rate * g``, ``p + momentum * v - rate * g``"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        speed = _zeros_like(p)
        new[speed] = momentum * speed - rate * g
        new[p] = p + momentum * new[speed] - rate * g
    return new


def adagrad(loss, params, rate=1.0, epsilon=1e-6):
    """``s + g^2``, ``p - rate * g / sqrt(s)``"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        sums = _zeros_like(p)
        new[sums] = sums + g**2
        new[p] = p - rate * g / T.sqrt(new[sums] + epsilon)
    return new


def rmsprop(loss, params, rate=1.0, rho=0.9, epsilon=1e-6):
    """``s = rho * s + (1 - rho) * g^2``, ``p - rate * g / sqrt(s)``"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        mean = _zeros_like(p)
        new[mean] = rho * mean + (1 - rho) * g**2
        new[p] = p - rate * g / T.sqrt(new[mean] + epsilon)
    return new


def adadelta(loss, params, rate=1.0, rho=0.95, epsilon=1e-6):
    """``p - rate * g * sqrt(d) / sqrt(s)``, with the means of ``g^2`` and of the steps' squares"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        squares, steps = _zeros_like(p), _zeros_like(p)
        new[squares] = rho * squares + (1 - rho) * g**2
        step = g * T.sqrt(steps + epsilon) / T.sqrt(new[squares] + epsilon)
        new[p] = p - rate * step
        new[steps] = rho * steps + (1 - rho) * step**2
    return new


def adam(loss, params, rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Adam, with one number of steps for all parameters."""
    steps, new = L.shared(np.zeros(())), OrderedDict()
    t = steps + 1
    for p, g in zip(params, _gradients(loss, params)):
        first, second = _zeros_like(p), _zeros_like(p)
        new[first] = beta1 * first + (1 - beta1) * g
        new[second] = beta2 * second + (1 - beta2) * g**2
        new[p] = p - rate * T.sqrt(1 - beta2**t) / (1 - beta1**t) * new[first] / (T.sqrt(new[second]) + epsilon)
    new[steps] = t
    return new


def total_norm_constraint(gradients, max_norm, epsilon=1e-7, return_norm=False):
    """Scale gradients so that the norm of all together is at most a number."""
    norm = T.sqrt(sum(T.sum(g**2) for g in gradients))
    scaled = [g * T.clip(norm, 0, max_norm) / (epsilon + norm) for g in gradients]
    return (scaled, norm) if return_norm else scaled


def aggregate(loss, weights=None, mode="mean"):
    """Return the mean of a loss, or its mean by weights."""
    loss = loss if weights is None else loss * weights
    return loss.sum() / weights.sum() if mode == "normalized_sum" else loss.mean()


if IS_THEANO:
    import lasagne
else:
    lasagne = SimpleNamespace(
        layers=Missing("lasagne.layers"),
        init=Missing("lasagne.init"),
        nonlinearities=Missing("lasagne.nonlinearities"),
        regularization=Missing("lasagne.regularization"),
        random=SimpleNamespace(set_rng=lambda rng: None),
        updates=SimpleNamespace(
            sgd=sgd,
            momentum=momentum,
            nesterov_momentum=nesterov_momentum,
            adagrad=adagrad,
            rmsprop=rmsprop,
            adadelta=adadelta,
            adam=adam,
            total_norm_constraint=total_norm_constraint,
            norm_constraint=Missing("lasagne.updates.norm_constraint"),
        ),
        objectives=SimpleNamespace(
            squared_error=lambda one, other: (one - other) ** 2,
            categorical_crossentropy=T.nnet.categorical_crossentropy,
            binary_crossentropy=T.nnet.binary_crossentropy,
            aggregate=aggregate,
        ),
    )
init, layers, nonlinearities = lasagne.init, lasagne.layers, lasagne.nonlinearities
objectives, updates = lasagne.objectives, lasagne.updates
