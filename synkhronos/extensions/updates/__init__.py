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
