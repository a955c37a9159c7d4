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

from .acceleration import apply_momentum, apply_nesterov_momentum, momentum, nesterov_momentum
from .adaptive import adadelta, adagrad, rmsprop
from .descent import sgd, sgd_nonflat
from .moments import adam, adamax, amsgrad

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
