"""Update rules for data-parallel training: every rank takes the same step, from the mean gradient over all rows.

Each rule except `sgd_nonflat` has the name, options and formula of its counterpart in Lasagne. A rule returns three
values, because the ranks average the gradients between two functions::

    grad_updates, param_updates, grad_shared = adam(loss, params, learning_rate=0.001)
    grad_fn = synk.function([x, y], loss, updates=grad_updates)    # each rank: the gradients of its own rows
    param_fn = synk.function([], updates=param_updates)            # each rank: the same step

    grad_fn(x_batch, y_batch)
    synk.all_reduce(grad_shared, weights=grad_fn)                  # the mean over all rows, on every rank
    param_fn()

If the loss is a mean over rows, this is the serial step up to rounding, for any number of ranks and rows. The sections
below apply to every rule. A rule's own docstring describes its formula, state and source.

Parameters
----------
loss_or_grads : scalar expression, or list of expressions
    The loss, or one gradient per parameter with the parameter's shape.
params : list of shared variables
    The parameters to train: floating-point, of any shape, each listed once, all on one device.
learning_rate : scalar
    The step size, ``a`` in the formulas. All scalars in this list are numbers, shared variables or 0-dimensional
    expressions, and are cast to each parameter's dtype. Inputs of such an expression must be inputs of ``param_fn``.
momentum : scalar
    The fraction of the previous step that is added to the next step, ``m`` in the formulas.
rho : scalar
    The decay rate of running means, ``r`` in the formulas, between 0 and 1.
beta1, beta2 : scalar
    The decay rates, between 0 and 1: ``b1`` for the mean of gradients, ``b2`` for the mean of squared gradients (in
    `adamax`, for their largest magnitude).
epsilon : scalar
    A small constant, ``e`` in the formulas, that prevents division by zero.

Returns
-------
grad_updates : OrderedDict
    ``{flat: gradients}``. ``flat`` is one shared vector for the gradients of all parameters of a dtype, because one
    large collective is faster than many small collectives.
param_updates : OrderedDict
    The updates of the parameters and of the rule's state, in an order that depends only on the arguments. They read
    reshaped views of ``flat``. State (velocities, averages, step counters) is in shared variables, initially zero.
grad_shared : shared variable, or list of shared variables
    ``flat``, or a list with one vector per dtype if the parameters have different dtypes.

Raises
------
ArgumentTypeError, ArgumentValueError
    If an argument is invalid, for example, if the loss does not depend on a parameter, which the message names.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Dict, List, Tuple

import numpy as np
import theano
import theano.tensor as T

from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .gradients import Updates, for_each_parameter, gradients_of, state_like
from .scalars import cast, check_scalars
from .shared_variables import check_params, label

__all__ = [
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "amsgrad",
    "apply_momentum",
    "apply_nesterov_momentum",
    "momentum",
    "nesterov_momentum",
    "rmsprop",
    "sgd",
    "sgd_nonflat",
]


# -- gradient descent --------------------------------------------------------------------------------------------------


def sgd(loss_or_grads: Any, params: Any, learning_rate: Any) -> Updates:
    """Stochastic gradient descent: ``p := p - a * g``.

    State: none. See `synkhronos.extensions.updates` for parameters, results and errors. Source: Robbins, H., & Monro,
    S. (1951). A stochastic approximation method. Annals of Mathematical Statistics, 22(3).

    Examples
    --------
    >>> import synkhronos as synk, numpy as np, theano, theano.tensor as T
    >>> from synkhronos.extensions.updates import sgd
    >>> synk.fork(2)
    2
    >>> x, w = T.dmatrix("x"), theano.shared(np.zeros(2), "w")
    >>> loss = ((x - w) ** 2).sum(axis=1).mean()
    >>> grad_updates, param_updates, grad_shared = sgd(loss, [w], learning_rate=0.5)
    >>> grad_fn = synk.function([x], loss, updates=grad_updates, mode="FAST_COMPILE")
    >>> param_fn = synk.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> grad_fn([[1., 0.], [2., 6.], [3., 0.]])                 # two rows for rank 0, one for rank 1
    array(16.66666667)
    >>> synk.all_reduce(grad_shared, weights=grad_fn)
    >>> _ = param_fn()
    >>> w.get_value()                                       # the mean of the rows minimizes the loss
    array([2., 2.])
    """
    (rate,) = check_scalars(learning_rate=learning_rate)
    return for_each_parameter(loss_or_grads, params, _descend, rate)


def sgd_nonflat(loss_or_grads: Any, params: Any, learning_rate: Any) -> Updates:
    """Stochastic gradient descent with a separate shared gradient for every parameter: ``p := p - a * g``.

    Use this rule to process individual gradients between the two functions. Otherwise, `sgd` is faster, because it
    reduces one large variable. See `synkhronos.extensions.updates` for parameters and errors.

    Returns
    -------
    grad_updates : OrderedDict
        ``{shared: gradient}``, in the order of ``params``.
    param_updates : OrderedDict
        ``{p: p - a * shared}``.
    grad_shared : list of shared variables
        One gradient per parameter, with the parameter's shape and dtype.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import sgd_nonflat
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = sgd_nonflat((w ** 2).sum(), [w], learning_rate=0.1)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.64, -1.28])
    """
    (rate,) = check_scalars(learning_rate=learning_rate)
    params = check_params(params)
    grad_updates = OrderedDict(
        (state_like(param, "gradient"), grad) for param, grad in zip(params, gradients_of(loss_or_grads, params))
    )
    steps = [_descend(param, grad, *cast(param, rate)) for param, grad in zip(params, grad_updates)]
    return grad_updates, OrderedDict(update for step in steps for update in step), list(grad_updates)


def _descend(p: Any, g: Any, a: Any) -> List[Tuple[Any, Any]]:
    return [(p, p - a * g)]


# -- momentum: steps that continue in the direction of earlier steps ---------------------------------------------------


def momentum(loss_or_grads: Any, params: Any, learning_rate: Any, momentum: Any = 0.9) -> Updates:
    """Gradient descent with heavy-ball momentum: ``v := m * v - a * g``, ``p := p + v``.

    State: ``v``. See `synkhronos.extensions.updates` for parameters, results and errors. Source: Polyak, B. T. (1964).
    Some methods of speeding up the convergence of iteration methods. USSR Computational Mathematics and Mathematical
    Physics, 4(5).

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import momentum
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = momentum((w ** 2).sum(), [w], learning_rate=0.1)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.46, -0.92])
    """
    grad_updates, param_updates, grad_shared = sgd(loss_or_grads, params, learning_rate)
    return grad_updates, apply_momentum(param_updates, momentum=momentum), grad_shared


def nesterov_momentum(loss_or_grads: Any, params: Any, learning_rate: Any, momentum: Any = 0.9) -> Updates:
    """Gradient descent with Nesterov momentum: ``v := m * v - a * g``, ``p := p + m * v - a * g``.

    State: ``v``. The gradient is evaluated at the current parameters. See `synkhronos.extensions.updates` for
    parameters, results and errors. Sources: Nesterov, Y. (1983). A method of solving a convex programming problem with
    convergence rate O(1/k^2). Soviet Mathematics Doklady, 27(2). Bengio, Y., Boulanger-Lewandowski, N., & Pascanu, R.
    (2013). Advances in optimizing recurrent networks. ICASSP.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import nesterov_momentum
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = nesterov_momentum((w ** 2).sum(), [w], learning_rate=0.1)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.2224, -0.4448])
    """
    grad_updates, param_updates, grad_shared = sgd(loss_or_grads, params, learning_rate)
    return grad_updates, apply_nesterov_momentum(param_updates, momentum=momentum), grad_shared


def apply_momentum(param_updates: Any, params: Any = None, momentum: Any = 0.9) -> Dict[Any, Any]:
    """Add momentum to existing updates: ``v := m * v + new(p) - p``, ``p := p + v``, instead of ``p := new(p)``.

    Parameters
    ----------
    param_updates : dict, or list of (shared variable, expression)
        The updates, such as the ``param_updates`` of a rule. They are copied, not modified.
    params : list of shared variables, optional
        The updated variables that receive momentum; by default, all of them. Pass only the parameters if
        ``param_updates`` also contains state, such as running averages.
    momentum : scalar
        As in all rules; see `synkhronos.extensions.updates`.

    Returns
    -------
    OrderedDict
        The updates with momentum, and the updates of ``v``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is invalid, or a parameter has no update.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adagrad, apply_momentum
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = adagrad((w ** 2).sum(), [w], learning_rate=0.5)
    >>> step = apply_momentum(step, [w], momentum=0.5)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([ 0.0264, -0.95  ])
    """
    return _with_momentum(param_updates, params, momentum, is_nesterov=False)


def apply_nesterov_momentum(param_updates: Any, params: Any = None, momentum: Any = 0.9) -> Dict[Any, Any]:
    """Add Nesterov momentum to existing updates: ``v := m * v + new(p) - p``, ``p := new(p) + m * v``.

    The original update is ``p := new(p)``. For the sources, see `nesterov_momentum`.

    Parameters
    ----------
    param_updates, params, momentum
        As for `apply_momentum`.

    Returns
    -------
    OrderedDict
        The updates with momentum, and the updates of ``v``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As for `apply_momentum`.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adagrad, apply_nesterov_momentum
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> gradient, step, _ = adagrad((w ** 2).sum(), [w], learning_rate=0.5)
    >>> step = apply_nesterov_momentum(step, [w], momentum=0.5)
    >>> for updates in (gradient, step) * 2:
    ...     _ = theano.function([], updates=updates, mode="FAST_COMPILE")()
    >>> w.get_value().round(4)
    array([-0.0569, -0.7275])
    """
    return _with_momentum(param_updates, params, momentum, is_nesterov=True)


def _with_momentum(param_updates: Any, params: Any, momentum: Any, is_nesterov: bool) -> Dict[Any, Any]:
    (momentum,) = check_scalars(momentum=momentum)
    is_pairs = isinstance(param_updates, (list, tuple)) and all(
        isinstance(entry, (list, tuple)) and len(entry) == 2 for entry in param_updates
    )
    if not is_pairs and not isinstance(param_updates, Mapping):
        raise ArgumentTypeError(
            "param_updates",
            "a dict or a list of (shared variable, expression), such as the param_updates of a rule",
            repr(param_updates),
        )
    updates = OrderedDict(param_updates)
    params = check_params(list(updates) if params is None else params)
    for i, param in enumerate(params):
        if param not in updates:
            hint = "pass the params that the rule received"
            raise ArgumentValueError(label(i, param), "a key of param_updates", "a variable without an update", hint)
    for param in params:
        velocity, (m,), new = state_like(param, "velocity"), cast(param, momentum), updates[param]
        moved = m * velocity + new
        updates[velocity] = moved - param
        updates[param] = m * updates[velocity] + new if is_nesterov else moved
    return updates


# -- a learning rate for every element, from the magnitude of its past gradients ---------------------------------------


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


# -- momentum and a learning rate for every element --------------------------------------------------------------------


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
