"""Update rules for training on all ranks: every rank computes gradients, one `all_reduce` averages them, all step alike.

A rule is called like Lasagne's of the same name, and computes the same. Where Lasagne returns one dictionary of updates,
a rule here returns three things, because the gradients must be averaged over the ranks between computing and using them::

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

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from numbers import Real

import numpy as np
import theano
import theano.tensor as T

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

    Stochastic gradient descent [1]_.

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
    .. [1] Robbins, H., & Monro, S. (1951). A stochastic approximation method. Annals of Mathematical Statistics, 22(3).

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
    (rate,) = _scalars(learning_rate=learning_rate)
    grad_updates, pairs, grad_shared = _flat_gradients(loss_or_grads, params)
    return grad_updates, _descend(pairs, rate), grad_shared


def momentum(loss_or_grads, params, learning_rate, momentum=0.9):
    """Step with momentum: ``v := m * v - a * g``, ``p := p + v``.

    `sgd` with `apply_momentum`: the heavy ball method [1]_.

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
    .. [1] Polyak, B. T. (1964). Some methods of speeding up the convergence of iteration methods. USSR Computational
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

    `sgd` with `apply_nesterov_momentum`: the accelerated gradient [1]_ in the form that takes the gradient at the current
    parameters [2]_.

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
    .. [1] Nesterov, Y. (1983). A method of solving a convex programming problem with convergence rate O(1/k^2). Soviet
           Mathematics Doklady, 27(2).
    .. [2] Sutskever, I., Martens, J., Dahl, G., & Hinton, G. (2013). On the importance of initialization and momentum in
           deep learning. ICML. Rewritten as in Bengio, Y., Boulanger-Lewandowski, N., & Pascanu, R. (2013). Advances in
           optimizing recurrent networks. ICASSP.

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

    Adagrad [1]_.

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
    .. [1] Duchi, J., Hazan, E., & Singer, Y. (2011). Adaptive subgradient methods for online learning and stochastic
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
    [ 0.276393 -1.2    ]
    """
    rate, epsilon = _scalars(learning_rate=learning_rate, epsilon=epsilon)
    grad_updates, pairs, grad_shared = _flat_gradients(loss_or_grads, params)
    param_updates = OrderedDict()
    for param, grad in pairs:
        a, e = _cast(param, rate, epsilon)
        s = _state(param, "squares")
        param_updates[s] = s_new = s + T.sqr(grad)
        param_updates[param] = param - a * grad / T.sqrt(s_new + e)
    return grad_updates, param_updates, grad_shared


def rmsprop(loss_or_grads, params, learning_rate=1.0, rho=0.9, epsilon=1e-6):
    """Divide by a running root mean square: ``s := r * s + (1 - r) * g^2``, ``p := p - a * g / sqrt(s + e)``.

    RMSProp [1]_.

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
    .. [1] Tieleman, T., & Hinton, G. (2012). Neural networks for machine learning, lecture 6.5: rmsprop. Coursera.

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
    [ 0.683772 -1.683772]
    [ 0.5 -1.5]
    """
    rate, rho, epsilon = _scalars(learning_rate=learning_rate, rho=rho, epsilon=epsilon)
    grad_updates, pairs, grad_shared = _flat_gradients(loss_or_grads, params)
    param_updates = OrderedDict()
    for param, grad in pairs:
        a, r, r_rest, e = _cast(param, rate, rho, 1 - rho, epsilon)
        s = _state(param, "mean_square")
        param_updates[s] = s_new = r * s + r_rest * T.sqr(grad)
        param_updates[param] = param - a * grad / T.sqrt(s_new + e)
    return grad_updates, param_updates, grad_shared


def adadelta(loss_or_grads, params, learning_rate=1.0, rho=0.95, epsilon=1e-6):
    """Scale by the ratio of past steps to past gradients, so that steps have the parameters' units.

    ``s := r * s + (1 - r) * g^2``, ``d := g * sqrt(u + e) / sqrt(s + e)``, ``u := r * u + (1 - r) * d^2``,
    ``p := p - a * d``: Adadelta [1]_.

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
    .. [1] Zeiler, M. D. (2012). ADADELTA: an adaptive learning rate method. arXiv:1212.5701.

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
    X
    """
    rate, rho, epsilon = _scalars(learning_rate=learning_rate, rho=rho, epsilon=epsilon)
    grad_updates, pairs, grad_shared = _flat_gradients(loss_or_grads, params)
    param_updates = OrderedDict()
    for param, grad in pairs:
        a, r, r_rest, e = _cast(param, rate, rho, 1 - rho, epsilon)
        s, u = _state(param, "mean_square"), _state(param, "mean_square_step")
        param_updates[s] = s_new = r * s + r_rest * T.sqr(grad)
        d = grad * T.sqrt(u + e) / T.sqrt(s_new + e)
        param_updates[u] = r * u + r_rest * T.sqr(d)
        param_updates[param] = param - a * d
    return grad_updates, param_updates, grad_shared


def adam(loss_or_grads, params, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Divide a running mean of gradients by their running root mean square.

    At step t = 1, 2, ...: ``m := b1 * m + (1 - b1) * g``, ``v := b2 * v + (1 - b2) * g^2``,
    ``p := p - a * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + e)``: Adam [1]_.

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
    .. [1] Kingma, D. P., & Ba, J. (2015). Adam: a method for stochastic optimization. ICLR. arXiv:1412.6980.

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
    X
    """
    return _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, keep_largest=False)


def adamax(loss_or_grads, params, learning_rate=0.002, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Divide a running mean of gradients by their running largest magnitude.

    At step t = 1, 2, ...: ``m := b1 * m + (1 - b1) * g``, ``u := max(b2 * u, |g|)``,
    ``p := p - a / (1 - b1^t) * m / (u + e)``: Adamax, which is Adam with the infinity norm [1]_.

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
    .. [1] Kingma, D. P., & Ba, J. (2015). Adam: a method for stochastic optimization. ICLR. arXiv:1412.6980, section 7.1.

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
    X
    """
    rate, beta1, beta2, epsilon = _scalars(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    grad_updates, pairs, grad_shared = _flat_gradients(loss_or_grads, params)
    steps, t = _count_steps(pairs)
    a_t, b1_t = _cast(steps, rate, beta1)
    rate = a_t / (1 - b1_t ** t)
    param_updates = OrderedDict([(steps, t)])
    for param, grad in pairs:
        a, b1, b1_rest, b2, e = _cast(param, rate, beta1, 1 - beta1, beta2, epsilon)
        m, u = _state(param, "mean"), _state(param, "largest")
        param_updates[m] = m_new = b1 * m + b1_rest * grad
        param_updates[u] = u_new = T.maximum(b2 * u, abs(grad))
        param_updates[param] = param - a * m_new / (u_new + e)
    return grad_updates, param_updates, grad_shared


def amsgrad(loss_or_grads, params, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """Divide as `adam`, but by the largest root mean square so far, which never lets a step size grow again.

    At step t = 1, 2, ...: ``m := b1 * m + (1 - b1) * g``, ``v := b2 * v + (1 - b2) * g^2``, ``w := max(w, v)``,
    ``p := p - a_t * m / (sqrt(w) + e)``: AMSGrad [1]_. The paper leaves the step sizes ``a_t`` open; here they are
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
    .. [1] Reddi, S. J., Kale, S., & Kumar, S. (2018). On the convergence of Adam and beyond. ICLR.

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
    X
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
    (rate,) = _scalars(learning_rate=learning_rate)
    params = _check_params(params)
    grad_updates = OrderedDict(
        (_state(param, "gradient"), grad) for param, grad in zip(params, _gradients(loss_or_grads, params)))
    return grad_updates, _descend(zip(params, grad_updates), rate), list(grad_updates)


def apply_momentum(param_updates, params=None, momentum=0.9):
    """Add momentum to any updates: ``v := m * v + new(p) - p``, ``p := p + v``, where they were ``p := new(p)``.

    Parameters
    ----------
    param_updates : dict, or list of (shared variable, expression)
        Such as the second of what a rule returns. It is not changed.
    params : list of shared variables, optional
        Which of the updated variables get momentum. All by default: give the parameters where ``param_updates`` has other
        variables too, as those of rules that keep averages.
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
    X
    """
    updates, params, m = _check_apply(param_updates, params, momentum)
    for param in params:
        velocity = _state(param, "velocity")
        new = _cast(param, m)[0] * velocity + updates[param]
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
        Which of the updated variables get momentum. All by default: give the parameters where ``param_updates`` has other
        variables too, as those of rules that keep averages.
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
    X
    """
    updates, params, m = _check_apply(param_updates, params, momentum)
    for param in params:
        velocity = _state(param, "velocity")
        (m_param,) = _cast(param, m)
        updates[velocity] = velocity_new = m_param * velocity + updates[param] - param
        updates[param] = m_param * velocity_new + updates[param]
    return updates


# -- what the rules have in common -------------------------------------------------------------------------------------


def _descend(pairs, rate):
    """Return the updates that step against the gradient, from pairs of parameter and gradient."""
    return OrderedDict((param, param - _cast(param, rate)[0] * grad) for param, grad in pairs)


def _adam(loss_or_grads, params, learning_rate, beta1, beta2, epsilon, keep_largest):
    """Return the updates of `adam`, or of `amsgrad`, which divides by the largest root mean square so far."""
    rate, beta1, beta2, epsilon = _scalars(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    grad_updates, pairs, grad_shared = _flat_gradients(loss_or_grads, params)
    steps, t = _count_steps(pairs)
    a_t, b1_t, b2_t = _cast(steps, rate, beta1, beta2)
    rate = a_t * T.sqrt(1 - b2_t ** t) / (1 - b1_t ** t)
    param_updates = OrderedDict([(steps, t)])
    for param, grad in pairs:
        a, b1, b1_rest, b2, b2_rest, e = _cast(param, rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon)
        m, v = _state(param, "mean"), _state(param, "mean_square")
        param_updates[m] = m_new = b1 * m + b1_rest * grad
        param_updates[v] = divisor = b2 * v + b2_rest * T.sqr(grad)
        if keep_largest:
            largest = _state(param, "largest_mean_square")
            param_updates[largest] = divisor = T.maximum(largest, divisor)
        param_updates[param] = param - a * m_new / (T.sqrt(divisor) + e)
    return grad_updates, param_updates, grad_shared


def _flat_gradients(loss_or_grads, params):
    """Return the updates of one flat vector per dtype, pairs of parameter and view of its gradient, and the vectors."""
    params = _check_params(params)
    grads = _gradients(loss_or_grads, params)
    dtypes = list(OrderedDict.fromkeys(param.dtype for param in params))
    grad_updates, views = OrderedDict(), {}
    for dtype in dtypes:
        group = [(param, grad, _shape(param)) for param, grad in zip(params, grads) if param.dtype == dtype]
        sizes = [int(np.prod(shape)) for _, _, shape in group]
        flat = theano.shared(np.zeros(sum(sizes), dtype), "gradients" if len(dtypes) == 1 else "gradients." + dtype,
                             target=_device(params[0]))
        # To a length that is known, not to -1: a gradient of the user's that has not its parameter's shape must not move
        # all those behind it.
        pieces = [T.reshape(grad, (size,)) for (_, grad, _), size in zip(group, sizes)]
        grad_updates[flat] = T.patternbroadcast(T.concatenate(pieces), (False,))
        begin = 0
        for (param, _, shape), size in zip(group, sizes):
            view = T.reshape(flat[begin : begin + size], shape)
            views[param] = T.patternbroadcast(view, param.broadcastable)
            begin += size
    shared = list(grad_updates)
    return grad_updates, [(param, views[param]) for param in params], shared if len(shared) > 1 else shared[0]


def _count_steps(pairs):
    """Return a shared counter of steps, and its next value.

    It has the widest of the parameters' dtypes and floatX, as powers of decays close to 1 need what precision there is.
    """
    dtype = theano.scalar.upcast(theano.config.floatX, *[param.dtype for param, _ in pairs])
    steps = theano.shared(np.zeros((), dtype), "steps")
    return steps, steps + 1


def _cast(variable, *scalars):
    """Return the scalars as constants or expressions of the variable's dtype."""
    return [T.cast(scalar, variable.dtype) if isinstance(scalar, theano.Variable)
            else T.constant(scalar, dtype=variable.dtype) for scalar in scalars]


def _state(param, what):
    """Return a shared variable of zeros that is like a parameter, for what a rule keeps about it."""
    return theano.shared(np.zeros(_shape(param), param.dtype), "%s.%s" % (param.name, what) if param.name else what,
                         broadcastable=param.broadcastable, target=_device(param))


def _shape(param):
    """Return the shape of a parameter's value, without moving it off its device."""
    return param.get_value(borrow=True, return_internal_type=True).shape


def _device(param):
    """Return where a shared variable lives, as Theano's ``target``: "cpu", or the GPU's context (None: the default)."""
    return getattr(param.type, "context_name", "cpu")


# -- what users may give -----------------------------------------------------------------------------------------------


def _label(i, param):
    """Return how messages call a parameter."""
    return "params[%d] (%s)" % (i, repr(param.name) if getattr(param, "name", None) else "without a name")


def _scalars(**given):
    """Return scalars as floats or expressions of 0 dimensions, in the order given."""
    checked = []
    for name, value in given.items():
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if isinstance(value, Real) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise ValueError("%s: expected a finite number, got %r" % (name, value))
            checked.append(float(value))
        elif isinstance(value, theano.Variable) and getattr(value, "ndim", None) == 0 and (
                value.dtype in T.float_dtypes or value.dtype in T.discrete_dtypes):
            checked.append(T.cast(value, theano.config.floatX) if value.dtype in T.discrete_dtypes else value)
        else:
            raise TypeError("%s: expected a number, or a real shared variable or expression of 0 dimensions, got %s" % (
                name, _describe(value)))
    return checked


def _describe(thing):
    """Return what something is, in a few words."""
    return "%s of %s" % (thing, thing.type) if isinstance(thing, theano.Variable) else "%r of type %s" % (
        thing, type(thing).__name__)


def _check_params(params):
    """Return the parameters as a list, where they are floating-point shared variables, each one once."""
    if isinstance(params, theano.Variable) or not isinstance(params, Iterable):
        raise TypeError("params: expected a list of shared variables, got %s" % _describe(params))
    params = list(params)
    if not params:
        raise ValueError("params: expected at least one shared variable, got none")
    seen = {}
    for i, param in enumerate(params):
        if not isinstance(param, theano.compile.SharedVariable):
            raise TypeError("%s: expected a shared variable, got %s; updates can change nothing else" % (
                _label(i, param), _describe(param)))
        if getattr(param, "dtype", None) not in T.float_dtypes or not hasattr(param, "broadcastable"):
            raise TypeError("%s: expected a dense array of floating-point numbers, got %s; leave it out" % (
                _label(i, param), param.type))
        # A clone is another variable with the same value.
        first = seen.setdefault(id(param.container), i)
        if first != i:
            raise ValueError("%s stands twice, its value is that of params[%d]; give it once" % (
                _label(i, param), first))
    return params


def _gradients(loss_or_grads, params):
    """Return one gradient per parameter, of its dtype and pattern."""
    for i, param in enumerate(params):
        if _device(param) != _device(params[0]):
            raise ValueError("%s is on device %s, but %s on device %s; expected all parameters on one: make them with the "
                             "same target" % (_label(i, param), _device(param), _label(0, params[0]), _device(params[0])))
    if isinstance(loss_or_grads, (list, tuple)):
        grads = list(loss_or_grads)
        if len(grads) != len(params):
            raise ValueError("loss_or_grads: expected one gradient for each of %d params, got %d" % (
                len(params), len(grads)))
        advice = "theano.grad with disconnected_inputs='ignore' leaves such ones"
    else:
        loss = loss_or_grads
        if not isinstance(loss, theano.Variable) or getattr(loss, "dtype", None) not in T.float_dtypes or loss.ndim:
            raise TypeError("loss_or_grads: expected a floating-point expression of 0 dimensions or a list of gradients, "
                            "got %s; average the losses of the rows" % _describe(loss))
        grads = theano.grad(loss, params, disconnected_inputs="ignore", return_disconnected="None")
        advice = "remove it from params, or make the loss depend on it"
    return [_like(grad, i, param, advice) for i, (grad, param) in enumerate(zip(grads, params))]


def _like(grad, i, param, advice):
    """Return a gradient as an expression of its parameter's dtype and pattern, where it can be that."""
    if grad is None or isinstance(getattr(grad, "type", None), theano.gradient.DisconnectedType):
        raise ValueError("%s: the loss does not depend on it; %s" % (_label(i, param), advice))
    if not isinstance(grad, theano.Variable) or getattr(grad, "ndim", None) != param.ndim or (
            grad.dtype in T.complex_dtypes):
        raise TypeError("%s: expected a real gradient expression of %d dimensions, as the parameter, got %s" % (
            _label(i, param), param.ndim, _describe(grad)))
    grad = T.cast(grad, param.dtype)
    if any(theirs and not ours for theirs, ours in zip(grad.broadcastable, param.broadcastable)):
        grad = T.alloc(grad, *_shape(param))
    return T.patternbroadcast(grad, param.broadcastable)


def _check_apply(param_updates, params, momentum):
    """Return what `apply_momentum` is given, checked: a dict of its own, a list, and a scalar."""
    (momentum,) = _scalars(momentum=momentum)
    is_pairs = isinstance(param_updates, (list, tuple)) and all(
        isinstance(entry, (list, tuple)) and len(entry) == 2 for entry in param_updates)
    if not is_pairs and not isinstance(param_updates, Mapping):
        raise TypeError("param_updates: expected a dict or a list of (shared variable, expression), such as the second of "
                        "the three things that a rule returns, got %r" % (param_updates,))
    updates = OrderedDict(param_updates)
    params = _check_params(updates if params is None else params)
    for i, param in enumerate(params):
        if param not in updates:
            raise ValueError("%s has no update in param_updates; give the params that the rule was given" % (
                _label(i, param)))
    return updates, params, momentum
