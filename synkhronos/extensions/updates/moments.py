"""Adam and its variants: momentum combined with a separate learning rate for every element."""

from collections import OrderedDict
from typing import Any, Dict, Tuple

import numpy as np
import theano
import theano.tensor as T

from ..gradients import Updates, flat_gradients
from ..parameters import state_like
from ..scalars import cast, check_scalars


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
    return _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, keep_largest=False)


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
    rate, beta1, beta2, epsilon = check_scalars(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    steps, t = _count_steps(pairs)
    a_t, b1_t = cast(steps, rate, beta1)
    rate = a_t / (1 - b1_t**t)
    param_updates: Dict[Any, Any] = OrderedDict([(steps, t)])
    for param, grad in pairs:
        a, b1, b1_rest, b2, e = cast(param, rate, beta1, 1 - beta1, beta2, epsilon)
        m, u = state_like(param, "mean"), state_like(param, "largest")
        param_updates[m] = m_new = b1 * m + b1_rest * grad
        param_updates[u] = u_new = T.maximum(b2 * u, abs(grad))
        param_updates[param] = param - a * m_new / (u_new + e)
    return grad_updates, param_updates, grad_shared


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
    return _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, keep_largest=True)


def _adam(
    loss_or_grads: Any, params: Any, learning_rate: Any, beta1: Any, beta2: Any, epsilon: Any, keep_largest: Any
) -> Updates:
    rate, beta1, beta2, epsilon = check_scalars(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    steps, t = _count_steps(pairs)
    a_t, b1_t, b2_t = cast(steps, rate, beta1, beta2)
    rate = a_t * T.sqrt(1 - b2_t**t) / (1 - b1_t**t)
    param_updates: Dict[Any, Any] = OrderedDict([(steps, t)])
    for param, grad in pairs:
        a, b1, b1_rest, b2, b2_rest, e = cast(param, rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon)
        m, v = state_like(param, "mean"), state_like(param, "mean_square")
        param_updates[m] = m_new = b1 * m + b1_rest * grad
        param_updates[v] = divisor = b2 * v + b2_rest * T.sqr(grad)
        if keep_largest:
            largest = state_like(param, "largest_mean_square")
            param_updates[largest] = divisor = T.maximum(largest, divisor)
        param_updates[param] = param - a * m_new / (T.sqrt(divisor) + e)
    return grad_updates, param_updates, grad_shared


def _count_steps(pairs: Any) -> Tuple[Any, Any]:
    """Return a shared step counter and its next value, in a dtype wide enough for powers of decay rates near 1."""
    dtype = theano.scalar.upcast(theano.config.floatX, *[param.dtype for param, _ in pairs])
    steps = theano.shared(np.zeros((), dtype), "steps")
    return steps, steps + 1
