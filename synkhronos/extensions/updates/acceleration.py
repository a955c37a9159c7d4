"""Momentum: steps that continue in the direction of earlier ones."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Dict, List, Tuple

from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from ..gradients import Updates
from ..parameters import check_params, label, state_like
from ..scalars import cast, check_scalars
from .descent import sgd


def momentum(loss_or_grads: Any, params: Any, learning_rate: Any, momentum: Any = 0.9) -> Updates:
    """Step with momentum: ``v := m * v - a * g``, ``p := p + v``.

    `sgd` with `apply_momentum`: the heavy ball method.

    Parameters
    ----------
    loss_or_grads, params
        See `synkhronos.extensions.updates`.
    learning_rate : scalar
        The size of the steps, ``a`` above.
    momentum : scalar
        ``m`` above: how much of the last step goes into the next.

    Returns
    -------
    grad_updates, param_updates, grad_shared
        See `synkhronos.extensions.updates`. The state is ``v``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong.

    References
    ----------
    * Polyak, B. T. (1964). Some methods of speeding up the convergence of iteration methods. USSR Computational
      Mathematics and Mathematical Physics, 4(5).

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import momentum
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = momentum((w ** 2).sum(), [w], learning_rate=0.1)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.8 -1.6]
    [ 0.46 -0.92]
    """
    grad_updates, param_updates, grad_shared = sgd(loss_or_grads, params, learning_rate)
    return grad_updates, apply_momentum(param_updates, momentum=momentum), grad_shared


def nesterov_momentum(loss_or_grads: Any, params: Any, learning_rate: Any, momentum: Any = 0.9) -> Updates:
    """Step with Nesterov's momentum: ``v := m * v - a * g``, ``p := p + m * v - a * g``.

    `sgd` with `apply_nesterov_momentum`: the accelerated gradient in the form that takes the gradient at the
    current parameters.

    Parameters
    ----------
    loss_or_grads, params
        See `synkhronos.extensions.updates`.
    learning_rate : scalar
        The size of the steps, ``a`` above.
    momentum : scalar
        ``m`` above: how much of the last step goes into the next.

    Returns
    -------
    grad_updates, param_updates, grad_shared
        See `synkhronos.extensions.updates`. The state is ``v``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong.

    References
    ----------
    * Nesterov, Y. (1983). A method of solving a convex programming problem with convergence rate O(1/k^2). Soviet
      Mathematics Doklady, 27(2).
    * Bengio, Y., Boulanger-Lewandowski, N., & Pascanu, R. (2013). Advances in optimizing recurrent networks.
      ICASSP.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import nesterov_momentum
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = nesterov_momentum((w ** 2).sum(), [w], learning_rate=0.1)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.62 -1.24]
    [ 0.2224 -0.4448]
    """
    grad_updates, param_updates, grad_shared = sgd(loss_or_grads, params, learning_rate)
    return grad_updates, apply_nesterov_momentum(param_updates, momentum=momentum), grad_shared


def apply_momentum(param_updates: Any, params: Any = None, momentum: Any = 0.9) -> Dict[Any, Any]:
    """Add momentum to any updates: ``v := m * v + new(p) - p``, ``p := p + v``, instead of ``p := new(p)``.

    Parameters
    ----------
    param_updates : dict, or list of (shared variable, expression)
        Such as the second of what a rule returns. It is not changed.
    params : list of shared variables, optional
        Which of the updated variables get momentum. All by default: give the parameters if ``param_updates`` has
        other variables too, as those of rules that keep averages.
    momentum : scalar
        ``m`` above: how much of the last step goes into the next.

    Returns
    -------
    OrderedDict
        The updates with momentum, and those of ``v``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong, or a parameter is not among the updates.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adagrad, apply_momentum
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = adagrad((w ** 2).sum(), [w], learning_rate=0.5)
    >>> param_updates = apply_momentum(param_updates, [w], momentum=0.5)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.5 -1.5]
    [ 0.0264 -0.95  ]
    """
    updates, params, m = _check_apply(param_updates, params, momentum)
    for param in params:
        velocity = state_like(param, "velocity")
        new = cast(param, m)[0] * velocity + updates[param]
        updates[velocity] = new - param
        updates[param] = new
    return updates


def apply_nesterov_momentum(param_updates: Any, params: Any = None, momentum: Any = 0.9) -> Dict[Any, Any]:
    """Add Nesterov's momentum to any updates: ``v := m * v + new(p) - p``, ``p := new(p) + m * v``.

    Before, they were ``p := new(p)``. See `nesterov_momentum` for the sources.

    Parameters
    ----------
    param_updates : dict, or list of (shared variable, expression)
        Such as the second of what a rule returns. It is not changed.
    params : list of shared variables, optional
        Which of the updated variables get momentum. All by default: give the parameters if ``param_updates`` has
        other variables too, as those of rules that keep averages.
    momentum : scalar
        ``m`` above: how much of the last step goes into the next.

    Returns
    -------
    OrderedDict
        The updates with momentum, and those of ``v``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong, or a parameter is not among the updates.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adagrad, apply_nesterov_momentum
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = adagrad((w ** 2).sum(), [w], learning_rate=0.5)
    >>> param_updates = apply_nesterov_momentum(param_updates, [w], momentum=0.5)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.25 -1.25]
    [-0.0569 -0.7275]
    """
    updates, params, m = _check_apply(param_updates, params, momentum)
    for param in params:
        velocity = state_like(param, "velocity")
        (m_param,) = cast(param, m)
        updates[velocity] = velocity_new = m_param * velocity + updates[param] - param
        updates[param] = m_param * velocity_new + updates[param]
    return updates


def _check_apply(param_updates: Any, params: Any, momentum: Any) -> Tuple[Dict[Any, Any], List[Any], Any]:
    """Return the arguments of `apply_momentum`, checked: a copy of the updates, a list, and a scalar."""
    (momentum,) = check_scalars(momentum=momentum)
    is_pairs = isinstance(param_updates, (list, tuple)) and all(
        isinstance(entry, (list, tuple)) and len(entry) == 2 for entry in param_updates
    )
    if not is_pairs and not isinstance(param_updates, Mapping):
        raise ArgumentTypeError(
            "param_updates",
            "a dict or a list of (shared variable, expression), such as the second of the three that a rule returns",
            repr(param_updates),
        )
    updates = OrderedDict(param_updates)
    params = check_params(updates if params is None else params)
    for i, param in enumerate(params):
        if param not in updates:
            hint = "give the params that the rule was given"
            raise ArgumentValueError(label(i, param), "a key of param_updates", "one that has no update", hint)
    return updates, params, momentum
