"""Adaptive rules: a separate learning rate for every element, based on the magnitude of its past gradients."""

from typing import Any

import theano.tensor as T

from ..gradients import Updates, for_each_parameter, state_like
from ..scalars import check_scalars


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

    def step(p: Any, g: Any, a: Any, e: Any) -> Any:
        s = state_like(p, "squares")
        s_new = s + T.sqr(g)
        return [(s, s_new), (p, p - a * g / T.sqrt(s_new + e))]

    return for_each_parameter(loss_or_grads, params, step, rate, epsilon)


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

    def step(p: Any, g: Any, a: Any, r: Any, r_rest: Any, e: Any) -> Any:
        s = state_like(p, "mean_square")
        s_new = r * s + r_rest * T.sqr(g)
        return [(s, s_new), (p, p - a * g / T.sqrt(s_new + e))]

    return for_each_parameter(loss_or_grads, params, step, rate, rho, 1 - rho, epsilon)


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

    def step(p: Any, g: Any, a: Any, r: Any, r_rest: Any, e: Any) -> Any:
        s, u = state_like(p, "mean_square"), state_like(p, "mean_square_step")
        s_new = r * s + r_rest * T.sqr(g)
        d = g * T.sqrt(u + e) / T.sqrt(s_new + e)
        return [(s, s_new), (u, r * u + r_rest * T.sqr(d)), (p, p - a * d)]

    return for_each_parameter(loss_or_grads, params, step, rate, rho, 1 - rho, epsilon)
