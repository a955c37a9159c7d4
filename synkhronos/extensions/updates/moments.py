"""Adam and its variants: momentum combined with a separate learning rate for every element."""

from collections import OrderedDict
from typing import Any

import numpy as np
import theano
import theano.tensor as T

from ..gradients import Updates, for_each_parameter, state_like
from ..scalars import cast, check_scalars
from ..shared_variables import check_params


def adam(
    loss_or_grads: Any,
    params: Any,
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
) -> Updates:
    """Adam divides a running mean of gradients by their running root mean square.

    At step t = 1, 2, ...: ``m := b1 * m + (1 - b1) * g``, ``v := b2 * v + (1 - b2) * g^2``,
    ``p := p - a * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + e)``.

    State: ``t``, ``m``, ``v``. See `synkhronos.extensions.updates` for parameters, results and errors. Source: Kingma,
    D. P., & Ba, J. (2015). Adam: a method for stochastic optimization. ICLR. arXiv:1412.6980.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adam
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = adam((w ** 2).sum(), [w], learning_rate=0.1)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.8004, -1.8002])
    """
    return _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, _root_mean_square)


def adamax(
    loss_or_grads: Any,
    params: Any,
    learning_rate: Any = 0.002,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
) -> Updates:
    """Adamax (Adam with the infinity norm) divides gradients' running mean by a running maximum of their magnitudes.

    At step t = 1, 2, ...: ``m := b1 * m + (1 - b1) * g``, ``u := max(b2 * u, |g|)``,
    ``p := p - a / (1 - b1^t) * m / (u + e)``.

    State: ``t``, ``m``, ``u``. See `synkhronos.extensions.updates` for parameters, results and errors. Source: the
    paper cited in `adam`, section 7.1 (with ``e = 0``).

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adamax
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = adamax((w ** 2).sum(), [w], learning_rate=0.1)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.8052, -1.8025])
    """
    return _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, _largest_magnitude, corrects=False)


def amsgrad(
    loss_or_grads: Any,
    params: Any,
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
) -> Updates:
    """AMSGrad is Adam with division by the largest running root mean square so far.

    At step t = 1, 2, ...: ``m := b1 * m + (1 - b1) * g``, ``v := b2 * v + (1 - b2) * g^2``, ``w := max(w, v)``,
    ``p := p - a * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(w) + e)``. The paper leaves the step sizes open and uses
    ``e = 0``. The step sizes here are Adam's, which correct for the initial zeros in ``m`` and ``v``.

    State: ``t``, ``m``, ``v``, ``w``. See `synkhronos.extensions.updates` for parameters, results and errors. Source:
    Reddi, S. J., Kale, S., & Kumar, S. (2018). On the convergence of Adam and beyond. ICLR.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import amsgrad
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = amsgrad((w ** 2).sum(), [w], learning_rate=0.1)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.8004, -1.8002])
    """
    return _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, _largest_root_mean_square)


def _adam(
    loss_or_grads: Any, params: Any, rate: Any, beta1: Any, beta2: Any, epsilon: Any, divide: Any, corrects: bool = True
) -> Updates:
    """``divide(p, g, b2, 1 - b2)`` returns updates, and the divisor; ``corrects``: the divisor is zero initially."""
    rate, beta1, beta2, epsilon = check_scalars(learning_rate=rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    params = check_params(params)
    # The dtype of the step counter is wide enough for powers of decay rates near 1.
    dtype = theano.scalar.upcast(theano.config.floatX, *[param.dtype for param in params])
    steps = theano.shared(np.zeros((), dtype), "steps")
    t = steps + 1
    a_t, b1_t, b2_t = cast(steps, rate, beta1, beta2)
    rate = (a_t * T.sqrt(1 - b2_t**t) if corrects else a_t) / (1 - b1_t**t)

    def step(p: Any, g: Any, a: Any, b1: Any, b1_rest: Any, b2: Any, b2_rest: Any, e: Any) -> Any:
        m = state_like(p, "mean")
        m_new = b1 * m + b1_rest * g
        updates, divisor = divide(p, g, b2, b2_rest)
        return [(m, m_new), *updates, (p, p - a * m_new / (divisor + e))]

    scalars = (rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon)
    grad_updates, param_updates, grad_shared = for_each_parameter(loss_or_grads, params, step, *scalars)
    return grad_updates, OrderedDict([(steps, t), *param_updates.items()]), grad_shared


def _root_mean_square(p: Any, g: Any, b2: Any, b2_rest: Any) -> Any:
    v = state_like(p, "mean_square")
    v_new = b2 * v + b2_rest * T.sqr(g)
    return [(v, v_new)], T.sqrt(v_new)


def _largest_root_mean_square(p: Any, g: Any, b2: Any, b2_rest: Any) -> Any:
    ((v, v_new),), _ = _root_mean_square(p, g, b2, b2_rest)
    largest = state_like(p, "largest_mean_square")
    largest_new = T.maximum(largest, v_new)
    return [(v, v_new), (largest, largest_new)], T.sqrt(largest_new)


def _largest_magnitude(p: Any, g: Any, b2: Any, b2_rest: Any) -> Any:
    u = state_like(p, "largest")
    u_new = T.maximum(b2 * u, abs(g))
    return [(u, u_new)], u_new
