"""Update rules for all ranks: each computes the gradients of its rows, one `all_reduce` averages them, all step alike.

A rule is called like Lasagne's of the same name, and computes the same. Where Lasagne returns one dictionary of
updates, a rule here returns three things, because the gradients are averaged over the ranks before they are used::

    grad_updates, param_updates, grad_shared = adam(loss, params, learning_rate=0.001)
    grad_fn = synk.function([x, y], loss, updates=grad_updates)    # each rank: the gradients of its own rows
    param_fn = synk.function([], updates=param_updates)            # each rank: the same step

    grad_fn(x_batch, y_batch)
    synk.all_reduce(grad_shared, weights=grad_fn)                  # the mean over all rows, on every rank
    param_fn()

For a loss that is a mean over rows this is the serial program's step, up to rounding, whatever the number of ranks and
rows. The gradients of all parameters are written into one flat vector, because one collective over a large variable is
quicker than many over small ones; the steps read reshaped views of it.

*Scalars* (learning rates, decays, epsilons) are numbers, shared variables or expressions of 0 dimensions. An expression
may depend on shared variables and on inputs; the inputs are then those of ``param_fn``. Scalars are brought to each
parameter's dtype, so they never change it.

All that a rule keeps between steps (velocities, averages, the number of steps) is in shared variables among the keys of
``param_updates``, zero at first, in an order that depends on nothing but the arguments.
"""

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import theano
import theano.tensor as T

from .gradients import flat_gradients, gradients_of
from .parameters import check_params, label, state_like
from .scalars import cast, check_scalars

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


def sgd(loss_or_grads, params, learning_rate):
    """Step against the gradient: ``p := p - a * g``.

    Stochastic gradient descent.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
    learning_rate : scalar
        The size of the steps, ``a`` above.

    Returns
    -------
    grad_updates : OrderedDict
        ``{flat: gradients}``: the function with the data writes the gradients, see the module.
    param_updates : OrderedDict
        ``{p: p - a * g}``, from reshaped views of ``flat``.
    grad_shared : shared variable, or list of them
        ``flat``, of shape ``(number of all elements,)``; one per dtype, as a list, where parameters differ in dtype.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

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


def momentum(loss_or_grads, params, learning_rate, momentum=0.9):
    """Step with momentum: ``v := m * v - a * g``, ``p := p + v``.

    `sgd` with `apply_momentum`: the heavy ball method.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
    learning_rate : scalar
        The size of the steps, ``a`` above.
    momentum : scalar
        ``m`` above: how much of the last step goes into the next.

    Returns
    -------
    grad_updates : OrderedDict
        ``{flat: gradients}``: the function with the data writes the gradients, see the module.
    param_updates : OrderedDict
        The steps of ``v`` and ``p``, from reshaped views of ``flat``.
    grad_shared : shared variable, or list of them
        ``flat``, of shape ``(number of all elements,)``; one per dtype, as a list, where parameters differ in dtype.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

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


def nesterov_momentum(loss_or_grads, params, learning_rate, momentum=0.9):
    """Step with Nesterov's momentum: ``v := m * v - a * g``, ``p := p + m * v - a * g``.

    `sgd` with `apply_nesterov_momentum`: the accelerated gradient in the form that takes the gradient at the
    current parameters.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
    learning_rate : scalar
        The size of the steps, ``a`` above.
    momentum : scalar
        ``m`` above: how much of the last step goes into the next.

    Returns
    -------
    grad_updates : OrderedDict
        ``{flat: gradients}``: the function with the data writes the gradients, see the module.
    param_updates : OrderedDict
        The steps of ``v`` and ``p``, from reshaped views of ``flat``.
    grad_shared : shared variable, or list of them
        ``flat``, of shape ``(number of all elements,)``; one per dtype, as a list, where parameters differ in dtype.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

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


def adagrad(loss_or_grads, params, learning_rate=1.0, epsilon=1e-6):
    """Divide by the root of all squared gradients: ``s := s + g^2``, ``p := p - a * g / sqrt(s + e)``.

    Adagrad.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
    learning_rate : scalar
        The size of the steps, ``a`` above.
    epsilon : scalar
        Keeps the division finite where gradients are zero.

    Returns
    -------
    grad_updates : OrderedDict
        ``{flat: gradients}``: the function with the data writes the gradients, see the module.
    param_updates : OrderedDict
        The steps of ``s`` and ``p``, from reshaped views of ``flat``.
    grad_shared : shared variable, or list of them
        ``flat``, of shape ``(number of all elements,)``; one per dtype, as a list, where parameters differ in dtype.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

    References
    ----------
    * Duchi, J., Hazan, E., & Singer, Y. (2011). Adaptive subgradient methods for online learning and stochastic
      optimization. JMLR, 12.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adagrad
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = adagrad((w ** 2).sum(), [w], learning_rate=0.5)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.5 -1.5]
    [ 0.2764 -1.2   ]
    """
    rate, epsilon = check_scalars(learning_rate=learning_rate, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    param_updates = OrderedDict()
    for param, grad in pairs:
        a, e = cast(param, rate, epsilon)
        s = state_like(param, "squares")
        param_updates[s] = s_new = s + T.sqr(grad)
        param_updates[param] = param - a * grad / T.sqrt(s_new + e)
    return grad_updates, param_updates, grad_shared


def rmsprop(loss_or_grads, params, learning_rate=1.0, rho=0.9, epsilon=1e-6):
    """Divide by a running root mean square: ``s := r * s + (1 - r) * g^2``, ``p := p - a * g / sqrt(s + e)``.

    RMSProp.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
    learning_rate : scalar
        The size of the steps, ``a`` above.
    rho : scalar
        ``r`` above: the decay of the mean, between 0 and 1.
    epsilon : scalar
        Keeps the division finite where gradients are zero.

    Returns
    -------
    grad_updates : OrderedDict
        ``{flat: gradients}``: the function with the data writes the gradients, see the module.
    param_updates : OrderedDict
        The steps of ``s`` and ``p``, from reshaped views of ``flat``.
    grad_shared : shared variable, or list of them
        ``flat``, of shape ``(number of all elements,)``; one per dtype, as a list, where parameters differ in dtype.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

    References
    ----------
    * Tieleman, T., & Hinton, G. (2012). Neural networks for machine learning, lecture 6.5: rmsprop. Coursera.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import rmsprop
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = rmsprop((w ** 2).sum(), [w], learning_rate=0.1)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.6838 -1.6838]
    [ 0.4989 -1.4739]
    """
    rate, rho, epsilon = check_scalars(learning_rate=learning_rate, rho=rho, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    param_updates = OrderedDict()
    for param, grad in pairs:
        a, r, r_rest, e = cast(param, rate, rho, 1 - rho, epsilon)
        s = state_like(param, "mean_square")
        param_updates[s] = s_new = r * s + r_rest * T.sqr(grad)
        param_updates[param] = param - a * grad / T.sqrt(s_new + e)
    return grad_updates, param_updates, grad_shared


def adadelta(loss_or_grads, params, learning_rate=1.0, rho=0.95, epsilon=1e-6):
    """Scale by the ratio of past steps to past gradients, so that steps have the parameters' units.

    ``s := r * s + (1 - r) * g^2``, ``d := g * sqrt(u + e) / sqrt(s + e)``, ``u := r * u + (1 - r) * d^2``,
    ``p := p - a * d``: Adadelta.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
    learning_rate : scalar
        The size of the steps, ``a`` above. The paper has none, that is 1.
    rho : scalar
        ``r`` above: the decay of both means, between 0 and 1.
    epsilon : scalar
        Begins the first step, and keeps the division finite.

    Returns
    -------
    grad_updates : OrderedDict
        ``{flat: gradients}``: the function with the data writes the gradients, see the module.
    param_updates : OrderedDict
        The steps of ``s``, ``u`` and ``p``, from reshaped views of ``flat``.
    grad_shared : shared variable, or list of them
        ``flat``, of shape ``(number of all elements,)``; one per dtype, as a list, where parameters differ in dtype.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

    References
    ----------
    * Zeiler, M. D. (2012). ADADELTA: an adaptive learning rate method. arXiv:1212.5701.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adadelta
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = adadelta((w ** 2).sum(), [w], epsilon=0.01)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.5636 -1.5556]
    [ 0.2568 -1.1639]
    """
    rate, rho, epsilon = check_scalars(learning_rate=learning_rate, rho=rho, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    param_updates = OrderedDict()
    for param, grad in pairs:
        a, r, r_rest, e = cast(param, rate, rho, 1 - rho, epsilon)
        s, u = state_like(param, "mean_square"), state_like(param, "mean_square_step")
        param_updates[s] = s_new = r * s + r_rest * T.sqr(grad)
        d = grad * T.sqrt(u + e) / T.sqrt(s_new + e)
        param_updates[u] = r * u + r_rest * T.sqr(d)
        param_updates[param] = param - a * d
    return grad_updates, param_updates, grad_shared


def adam(loss_or_grads, params, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Divide a running mean of gradients by their running root mean square.

    At step t = 1, 2, ...: ``m := b1 * m + (1 - b1) * g``, ``v := b2 * v + (1 - b2) * g^2``,
    ``p := p - a * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + e)``: Adam.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
    learning_rate : scalar
        The size of the steps, ``a`` above.
    beta1 : scalar
        ``b1`` above: the decay of the mean of gradients, between 0 and 1.
    beta2 : scalar
        ``b2`` above: the decay of the mean of their squares, between 0 and 1.
    epsilon : scalar
        Keeps the division finite where gradients are zero.

    Returns
    -------
    grad_updates : OrderedDict
        ``{flat: gradients}``: the function with the data writes the gradients, see the module.
    param_updates : OrderedDict
        The steps of ``t``, ``m``, ``v`` and ``p``, from reshaped views of ``flat``.
    grad_shared : shared variable, or list of them
        ``flat``, of shape ``(number of all elements,)``; one per dtype, as a list, where parameters differ in dtype.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

    References
    ----------
    * Kingma, D. P., & Ba, J. (2015). Adam: a method for stochastic optimization. ICLR. arXiv:1412.6980.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adam
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = adam((w ** 2).sum(), [w], learning_rate=0.1)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.9 -1.9]
    [ 0.8004 -1.8002]
    """
    return _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, keep_largest=False)


def adamax(loss_or_grads, params, learning_rate=0.002, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Divide a running mean of gradients by their running largest magnitude.

    At step t = 1, 2, ...: ``m := b1 * m + (1 - b1) * g``, ``u := max(b2 * u, |g|)``,
    ``p := p - a / (1 - b1^t) * m / (u + e)``: Adamax, which is Adam with the infinity norm.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
    learning_rate : scalar
        The size of the steps, ``a`` above.
    beta1 : scalar
        ``b1`` above: the decay of the mean of gradients, between 0 and 1.
    beta2 : scalar
        ``b2`` above: the decay of the largest magnitude, between 0 and 1.
    epsilon : scalar
        Keeps the division finite where gradients are zero. The paper has none, that is 0.

    Returns
    -------
    grad_updates : OrderedDict
        ``{flat: gradients}``: the function with the data writes the gradients, see the module.
    param_updates : OrderedDict
        The steps of ``t``, ``m``, ``u`` and ``p``, from reshaped views of ``flat``.
    grad_shared : shared variable, or list of them
        ``flat``, of shape ``(number of all elements,)``; one per dtype, as a list, where parameters differ in dtype.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

    References
    ----------
    * Kingma, D. P., & Ba, J. (2015). Adam: a method for stochastic optimization. ICLR. arXiv:1412.6980,
      section 7.1.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import adamax
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = adamax((w ** 2).sum(), [w], learning_rate=0.1)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.9 -1.9]
    [ 0.8052 -1.8025]
    """
    rate, beta1, beta2, epsilon = check_scalars(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    steps, t = _count_steps(pairs)
    a_t, b1_t = cast(steps, rate, beta1)
    rate = a_t / (1 - b1_t ** t)
    param_updates = OrderedDict([(steps, t)])
    for param, grad in pairs:
        a, b1, b1_rest, b2, e = cast(param, rate, beta1, 1 - beta1, beta2, epsilon)
        m, u = state_like(param, "mean"), state_like(param, "largest")
        param_updates[m] = m_new = b1 * m + b1_rest * grad
        param_updates[u] = u_new = T.maximum(b2 * u, abs(grad))
        param_updates[param] = param - a * m_new / (u_new + e)
    return grad_updates, param_updates, grad_shared


def amsgrad(loss_or_grads, params, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Divide as `adam`, but by the largest root mean square so far, which never lets a step size grow again.

    At step t = 1, 2, ...: ``m := b1 * m + (1 - b1) * g``, ``v := b2 * v + (1 - b2) * g^2``, ``w := max(w, v)``,
    ``p := p - a_t * m / (sqrt(w) + e)``: AMSGrad. The paper leaves the step sizes ``a_t`` open; here they are
    Adam's, ``a_t = a * sqrt(1 - b2^t) / (1 - b1^t)``, which undo that ``m`` and ``v`` begin at zero.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
    learning_rate : scalar
        The size of the steps, ``a`` above.
    beta1 : scalar
        ``b1`` above: the decay of the mean of gradients, between 0 and 1.
    beta2 : scalar
        ``b2`` above: the decay of the mean of their squares, between 0 and 1.
    epsilon : scalar
        Keeps the division finite where gradients are zero. The paper has none, that is 0.

    Returns
    -------
    grad_updates : OrderedDict
        ``{flat: gradients}``: the function with the data writes the gradients, see the module.
    param_updates : OrderedDict
        The steps of ``t``, ``m``, ``v``, ``w`` and ``p``, from reshaped views of ``flat``.
    grad_shared : shared variable, or list of them
        ``flat``, of shape ``(number of all elements,)``; one per dtype, as a list, where parameters differ in dtype.

    Raises
    ------
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

    References
    ----------
    * Reddi, S. J., Kale, S., & Kumar, S. (2018). On the convergence of Adam and beyond. ICLR.

    Examples
    --------
    >>> import synkhronos, theano, numpy as np
    >>> from synkhronos.extensions.updates import amsgrad
    >>> w = theano.shared(np.array([1., -2.]), "w")
    >>> grad_updates, param_updates, grad_shared = amsgrad((w ** 2).sum(), [w], learning_rate=0.1)
    >>> gradient = theano.function([], updates=grad_updates, mode="FAST_COMPILE")
    >>> step = theano.function([], updates=param_updates, mode="FAST_COMPILE")
    >>> for i in range(2):
    ...     _ = gradient(), step()
    ...     print(w.get_value().round(4))
    [ 0.9 -1.9]
    [ 0.8004 -1.8002]
    """
    return _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, keep_largest=True)


def sgd_nonflat(loss_or_grads, params, learning_rate):
    """Step against the gradient as `sgd` does, with one shared gradient for each parameter: ``p := p - a * g``.

    For programs that treat each gradient on its own between the two functions. Many small variables in one `all_reduce`
    are slower than one large.

    Parameters
    ----------
    loss_or_grads : scalar expression, or list of expressions
        The loss, or one gradient per parameter, of the parameter's shape.
    params : list of shared variables
        Of any shape; floating-point, no two the same, all on one device.
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
    TypeError, ValueError
        Where the loss is no scalar or does not depend on a parameter, or an argument is wrong; the parameter is named.

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
        (state_like(param, "gradient"), grad) for param, grad in zip(params, gradients_of(loss_or_grads, params)))
    return grad_updates, _descend(zip(params, grad_updates), rate), list(grad_updates)


def apply_momentum(param_updates, params=None, momentum=0.9):
    """Add momentum to any updates: ``v := m * v + new(p) - p``, ``p := p + v``, where they were ``p := new(p)``.

    Parameters
    ----------
    param_updates : dict, or list of (shared variable, expression)
        Such as the second of what a rule returns. It is not changed.
    params : list of shared variables, optional
        Which of the updated variables get momentum. All by default: give the parameters where ``param_updates`` has
        other variables too, as those of rules that keep averages.
    momentum : scalar
        ``m`` above: how much of the last step goes into the next.

    Returns
    -------
    OrderedDict
        The updates with momentum, and those of ``v``.

    Raises
    ------
    TypeError, ValueError
        Where an argument is wrong, or a parameter is not among the updates; it is named.

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


def apply_nesterov_momentum(param_updates, params=None, momentum=0.9):
    """Add Nesterov's momentum to any updates: ``v := m * v + new(p) - p``, ``p := new(p) + m * v``.

    Before, they were ``p := new(p)``. See `nesterov_momentum` for the sources.

    Parameters
    ----------
    param_updates : dict, or list of (shared variable, expression)
        Such as the second of what a rule returns. It is not changed.
    params : list of shared variables, optional
        Which of the updated variables get momentum. All by default: give the parameters where ``param_updates`` has
        other variables too, as those of rules that keep averages.
    momentum : scalar
        ``m`` above: how much of the last step goes into the next.

    Returns
    -------
    OrderedDict
        The updates with momentum, and those of ``v``.

    Raises
    ------
    TypeError, ValueError
        Where an argument is wrong, or a parameter is not among the updates; it is named.

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


# -- what the rules have in common -------------------------------------------------------------------------------------


def _descend(pairs, rate):
    """Return the updates that step against the gradient, from pairs of parameter and gradient."""
    return OrderedDict((param, param - cast(param, rate)[0] * grad) for param, grad in pairs)


def _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, keep_largest):
    """Return the updates of `adam`, or of `amsgrad`, which divides by the largest root mean square so far."""
    rate, beta1, beta2, epsilon = check_scalars(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    grad_updates, pairs, grad_shared = flat_gradients(loss_or_grads, params)
    steps, t = _count_steps(pairs)
    a_t, b1_t, b2_t = cast(steps, rate, beta1, beta2)
    rate = a_t * T.sqrt(1 - b2_t ** t) / (1 - b1_t ** t)
    param_updates = OrderedDict([(steps, t)])
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


def _count_steps(pairs):
    """Return a shared counter of steps, and its next value.

    It has the widest of the parameters' dtypes and floatX, as powers of decays close to 1 need what precision there is.
    """
    dtype = theano.scalar.upcast(theano.config.floatX, *[param.dtype for param, _ in pairs])
    steps = theano.shared(np.zeros((), dtype), "steps")
    return steps, steps + 1


def _check_apply(param_updates, params, momentum):
    """Return what `apply_momentum` is given, checked: a dict of its own, a list, and a scalar."""
    (momentum,) = check_scalars(momentum=momentum)
    is_pairs = isinstance(param_updates, (list, tuple)) and all(
        isinstance(entry, (list, tuple)) and len(entry) == 2 for entry in param_updates)
    if not is_pairs and not isinstance(param_updates, Mapping):
        raise TypeError("param_updates: expected a dict or a list of (shared variable, expression), such as the second "
                        "of the three things that a rule returns, got %r" % (param_updates,))
    updates = OrderedDict(param_updates)
    params = check_params(updates if params is None else params)
    for i, param in enumerate(params):
        if param not in updates:
            raise ValueError("%s has no update in param_updates; give the params that the rule was given" % (
                label(i, param)))
    return updates, params, momentum
