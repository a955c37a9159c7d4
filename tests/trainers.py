"""Lasagne, or replacements of its update rules and objectives if it is not installed."""

from collections import OrderedDict
from types import SimpleNamespace

from library import L, Missing, T
from worlds import HAS_LASAGNE


def _gradients(loss, params):
    return list(loss) if isinstance(loss, (list, tuple)) else T.grad(loss, params)


def sgd(loss, params, learning_rate):
    """``p - learning_rate * g``"""
    return OrderedDict((p, p - learning_rate * g) for p, g in zip(params, _gradients(loss, params)))


def momentum(loss, params, learning_rate, momentum=0.9):
    """``v = momentum * v - learning_rate * g``, ``p + v``"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        speed = L.zeros_like(p)
        new[speed] = momentum * speed - learning_rate * g
        new[p] = p + new[speed]
    return new


def nesterov_momentum(loss, params, learning_rate, momentum=0.9):
    """``v = momentum * v - learning_rate * g``, ``p + momentum * v - learning_rate * g``"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        speed = L.zeros_like(p)
        new[speed] = momentum * speed - learning_rate * g
        new[p] = p + momentum * new[speed] - learning_rate * g
    return new


def adagrad(loss, params, learning_rate=1.0, epsilon=1e-6):
    """``s + g^2``, ``p - learning_rate * g / sqrt(s)``"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        sums = L.zeros_like(p)
        new[sums] = sums + g**2
        new[p] = p - learning_rate * g / T.sqrt(new[sums] + epsilon)
    return new


def rmsprop(loss, params, learning_rate=1.0, rho=0.9, epsilon=1e-6):
    """``s = rho * s + (1 - rho) * g^2``, ``p - learning_rate * g / sqrt(s)``"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        mean = L.zeros_like(p)
        new[mean] = rho * mean + (1 - rho) * g**2
        new[p] = p - learning_rate * g / T.sqrt(new[mean] + epsilon)
    return new


def adadelta(loss, params, learning_rate=1.0, rho=0.95, epsilon=1e-6):
    """``p - learning_rate * g * sqrt(d) / sqrt(s)``, with means ``s`` of ``g^2`` and ``d`` of the steps' squares"""
    new = OrderedDict()
    for p, g in zip(params, _gradients(loss, params)):
        squares, steps = L.zeros_like(p), L.zeros_like(p)
        new[squares] = rho * squares + (1 - rho) * g**2
        step = g * T.sqrt(steps + epsilon) / T.sqrt(new[squares] + epsilon)
        new[p] = p - learning_rate * step
        new[steps] = rho * steps + (1 - rho) * step**2
    return new


def adam(loss, params, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Adam, with one step count for all parameters."""
    steps, new = L.shared(0.0), OrderedDict()
    t = steps + 1
    for p, g in zip(params, _gradients(loss, params)):
        first, second = L.zeros_like(p), L.zeros_like(p)
        new[first] = beta1 * first + (1 - beta1) * g
        new[second] = beta2 * second + (1 - beta2) * g**2
        new[p] = p - learning_rate * T.sqrt(1 - beta2**t) / (1 - beta1**t) * new[first] / (
            T.sqrt(new[second]) + epsilon
        )
    new[steps] = t
    return new


def apply_nesterov_momentum(updates, momentum=0.9):
    """Add Nesterov momentum to the steps of ``updates``."""
    new = OrderedDict(updates)
    for p, value in updates.items():
        speed = L.zeros_like(p)
        new[speed] = momentum * speed + value - p
        new[p] = momentum * new[speed] + value
    return new


def norm_constraint(value, max_norm, epsilon=1e-7):
    """Scale a matrix so that the norm of each column is at most ``max_norm``."""
    norms = T.sqrt(T.sum(value**2, axis=0, keepdims=True))
    return value * T.clip(norms, 0, max_norm) / (epsilon + norms)


def total_norm_constraint(gradients, max_norm, epsilon=1e-7, return_norm=False):
    """Scale gradients so that their total norm is at most ``max_norm``."""
    norm = T.sqrt(sum(T.sum(g**2) for g in gradients))
    scaled = [g * T.clip(norm, 0, max_norm) / (epsilon + norm) for g in gradients]
    return (scaled, norm) if return_norm else scaled


def aggregate(loss, weights=None, mode="mean"):
    """Return the mean of a loss, optionally weighted."""
    loss = loss if weights is None else loss * weights
    return loss.sum() / weights.sum() if mode == "normalized_sum" else loss.mean()


if HAS_LASAGNE:
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
            apply_nesterov_momentum=apply_nesterov_momentum,
            norm_constraint=norm_constraint,
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
