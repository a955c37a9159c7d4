"""Stochastic gradient descent, with one flat gradient vector or one gradient per parameter."""

from collections import OrderedDict
from typing import Any, List, Tuple

from ..gradients import Updates, for_each_parameter, gradients_of, state_like
from ..scalars import cast, check_scalars
from ..shared_variables import check_params


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
