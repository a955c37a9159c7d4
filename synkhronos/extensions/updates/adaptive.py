"""Adaptive rules: a separate learning rate for every element, based on the magnitude of its past gradients."""

from collections import OrderedDict
from typing import Any, Dict

import theano.tensor as T

from ..gradients import Updates, flat_gradients
from ..parameters import state_like
from ..scalars import cast, check_scalars


def adagrad(loss_or_grads: Any, params: Any, learning_rate: Any = 1.0, epsilon: Any = 1e-6) -> Updates:
    """Adagrad divides gradients by the root of summed squares: ``s := s + g^2``, ``p := p - a * g / sqrt(s + e)``.

    State: ``s``. See `synkhronos.extensions.updates` for parameters, results and errors. Source: Duchi, J., Hazan, E.,
    & Singer, Y. (2011). Adaptive subgradient methods for online learning and stochastic optimization. JMLR, 12.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adagrad
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = adagrad((w ** 2).sum(), [w], learning_rate=0.5)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.2764, -1.2   ])
    """
    rate, epsilon = check_scalars(learning_rate=learning_rate, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    param_updates: Dict[Any, Any] = OrderedDict()
    for param, grad in pairs:
        a, e = cast(param, rate, epsilon)
        s = state_like(param, "squares")
        param_updates[s] = s_new = s + T.sqr(grad)
        param_updates[param] = param - a * grad / T.sqrt(s_new + e)
    return grad_updates, param_updates, grad_shared


def rmsprop(loss_or_grads: Any, params: Any, learning_rate: Any = 1.0, rho: Any = 0.9, epsilon: Any = 1e-6) -> Updates:
    """RMSProp divides gradients by their running RMS: ``s := r * s + (1 - r) * g^2``, ``p := p - a * g / sqrt(s + e)``.

    State: ``s``. See `synkhronos.extensions.updates` for parameters, results and errors. Source: Tieleman, T., &
    Hinton, G. (2012). Neural networks for machine learning, lecture 6.5: rmsprop. Coursera.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import rmsprop
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = rmsprop((w ** 2).sum(), [w], learning_rate=0.1)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.4989, -1.4739])
    """
    rate, rho, epsilon = check_scalars(learning_rate=learning_rate, rho=rho, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    param_updates: Dict[Any, Any] = OrderedDict()
    for param, grad in pairs:
        a, r, r_rest, e = cast(param, rate, rho, 1 - rho, epsilon)
        s = state_like(param, "mean_square")
        param_updates[s] = s_new = r * s + r_rest * T.sqr(grad)
        param_updates[param] = param - a * grad / T.sqrt(s_new + e)
    return grad_updates, param_updates, grad_shared


def adadelta(
    loss_or_grads: Any, params: Any, learning_rate: Any = 1.0, rho: Any = 0.95, epsilon: Any = 1e-6
) -> Updates:
    """Adadelta scales gradients by the ratio of past steps to past gradients, so steps have the parameters' units.

    ``s := r * s + (1 - r) * g^2``, ``d := g * sqrt(u + e) / sqrt(s + e)``, ``u := r * u + (1 - r) * d^2``,
    ``p := p - a * d``. The paper uses ``a = 1``. ``e`` also makes the first step nonzero.

    State: ``s``, ``u``. See `synkhronos.extensions.updates` for parameters, results and errors. Source: Zeiler, M. D.
    (2012). ADADELTA: an adaptive learning rate method. arXiv:1212.5701.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adadelta
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = adadelta((w ** 2).sum(), [w], epsilon=0.01)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.2568, -1.1639])
    """
    rate, rho, epsilon = check_scalars(learning_rate=learning_rate, rho=rho, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    param_updates: Dict[Any, Any] = OrderedDict()
    for param, grad in pairs:
        a, r, r_rest, e = cast(param, rate, rho, 1 - rho, epsilon)
        s, u = state_like(param, "mean_square"), state_like(param, "mean_square_step")
        param_updates[s] = s_new = r * s + r_rest * T.sqr(grad)
        d = grad * T.sqrt(u + e) / T.sqrt(s_new + e)
        param_updates[u] = r * u + r_rest * T.sqr(d)
        param_updates[param] = param - a * d
    return grad_updates, param_updates, grad_shared
