"""Momentum rules, whose steps continue in the direction of earlier steps."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Dict, List, Tuple

from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from ..gradients import Updates, state_like
from ..scalars import cast, check_scalars
from ..shared_variables import check_params, label
from .descent import sgd


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
    updates, params, m = _check_apply(param_updates, params, momentum)
    for param in params:
        velocity = state_like(param, "velocity")
        new = cast(param, m)[0] * velocity + updates[param]
        updates[velocity] = new - param
        updates[param] = new
    return updates


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
    updates, params, m = _check_apply(param_updates, params, momentum)
    for param in params:
        velocity = state_like(param, "velocity")
        (m_param,) = cast(param, m)
        updates[velocity] = velocity_new = m_param * velocity + updates[param] - param
        updates[param] = m_param * velocity_new + updates[param]
    return updates


def _check_apply(param_updates: Any, params: Any, momentum: Any) -> Tuple[Dict[Any, Any], List[Any], Any]:
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
    return updates, params, momentum
