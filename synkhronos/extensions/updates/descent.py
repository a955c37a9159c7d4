"""Gradient descent."""

from collections import OrderedDict
from typing import Any, Dict

from ..gradients import Updates, flat_gradients, gradients_of
from ..parameters import check_params, state_like
from ..scalars import cast, check_scalars


def sgd(loss_or_grads: Any, params: Any, learning_rate: Any) -> Updates:
    """Step against the gradient: ``p := p - a * g``.

    Stochastic gradient descent.

    Parameters
    ----------
    loss_or_grads, params
        See `synkhronos.extensions.updates`.
    learning_rate : scalar
        The size of the steps, ``a`` above.

    Returns
    -------
    grad_updates, param_updates, grad_shared
        See `synkhronos.extensions.updates`. The rule keeps no state.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong.

    References
    ----------
    * Robbins, H., & Monro, S. (1951). A stochastic approximation method. Annals of Mathematical Statistics, 22(3).

    Examples
    --------
    On two ranks, with a batch that does not divide evenly:

    >>> import synkhronos as synk
    >>> import numpy as np, theano, theano.tensor as T
    >>> from synkhronos.extensions.updates import sgd
    >>> synk.fork(2)
    2
    >>> x, w = T.dmatrix("x"), theano.shared(np.zeros(2), "w")
    >>> loss = ((x - w) ** 2).sum(axis=1).mean()
    >>> grad_updates, param_updates, grad_shared = sgd(loss, [w], learning_rate=0.5)
    >>> grad_fn = synk.function([x], loss, updates=grad_updates, mode="FAST_COMPILE")
    >>> param_fn = synk.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> grad_fn([[1., 0.], [2., 6.], [3., 0.]])
    array(16.66666667)
    >>> synk.all_reduce(grad_shared, weights=grad_fn)
    >>> _ = param_fn()
    >>> w.get_value()                                       # the mean of the rows is the minimum
    array([2., 2.])
    """
    (rate,) = check_scalars(learning_rate=learning_rate)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    return grad_updates, _descend(pairs, rate), grad_shared


def sgd_nonflat(loss_or_grads: Any, params: Any, learning_rate: Any) -> Updates:
    """Step against the gradient as `sgd` does, with one shared gradient for each parameter: ``p := p - a * g``.

    For programs that treat each gradient on its own between the two functions. Many small variables in one `all_reduce`
    are slower than one large.

    Parameters
    ----------
    loss_or_grads, params
        See `synkhronos.extensions.updates`.
    learning_rate : scalar
        The size of the steps, ``a`` above.

    Returns
    -------
    grad_updates : OrderedDict
        ``{shared: gradient}``, in the order of ``params``.
    param_updates : OrderedDict
        ``{p: p - a * shared}``.
    grad_shared : list of shared variables
        One per parameter, of its shape and dtype.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import sgd_nonflat
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = sgd_nonflat((w ** 2).sum(), [w], learning_rate=0.1)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.8 -1.6]
    [ 0.64 -1.28]
    """
    (rate,) = check_scalars(learning_rate=learning_rate)
    params = check_params(params)
    grad_updates = OrderedDict(
        (state_like(param, "gradient"), grad) for param, grad in zip(params, gradients_of(loss_or_grads, params))
    )
    return grad_updates, _descend(zip(params, grad_updates), rate), list(grad_updates)


def _descend(pairs: Any, rate: Any) -> Dict[Any, Any]:
    """Return the updates that step against the gradient, from pairs of parameter and gradient."""
    return OrderedDict((param, param - cast(param, rate)[0] * grad) for param, grad in pairs)
