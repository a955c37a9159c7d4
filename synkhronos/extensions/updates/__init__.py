"""Update rules for all ranks: each computes the gradients of its rows, one `all_reduce` averages them, all step alike.

A rule is called like Lasagne's of the same name, and computes the same. Lasagne's returns one dictionary of updates; a
rule here returns three values, because the gradients are averaged over the ranks before they are used::

    grad_updates, param_updates, grad_shared = adam(loss, params, learning_rate=0.001)
    grad_fn = synk.function([x, y], loss, updates=grad_updates)    # each rank: the gradients of its own rows
    param_fn = synk.function([], updates=param_updates)            # each rank: the same step

    grad_fn(x_batch, y_batch)
    synk.all_reduce(grad_shared, weights=grad_fn)                  # the mean over all rows, on every rank
    param_fn()

In pictures, with two ranks and the parameters ``p``, the gradients ``g`` and their mean ``G``::

    rank 0    rows 0, 1, 2  -- grad_fn -->  g_0 --+                      +--> G -- param_fn -->  p
                                                  +---- all_reduce ------+
    rank 1    rows 3, 4     -- grad_fn -->  g_1 --+    3/5 g_0 + 2/5 g_1 +--> G -- param_fn -->  p

For a loss that is a mean over rows this is the serial program's step, up to rounding, whatever the number of ranks and
rows. All rules have in common:

*The parameters* ``loss_or_grads``, a scalar expression (the loss), or a list with one gradient per parameter, of the
parameter's shape; and ``params``, a list of floating-point shared variables of any shape, no two the same, all on one
device.

*What they return*: ``grad_updates``, an ordered dict ``{flat: gradients}``, where ``flat`` is one shared vector of
shape ``(number of all elements,)`` with the gradients of all parameters, because one collective over a large
variable is quicker than many over small ones; ``param_updates``, the ordered dict of the steps of parameters and state,
which read reshaped views of ``flat``; and ``grad_shared``, which is ``flat``. If the parameters differ in dtype, there
is one vector per dtype, and ``grad_shared`` is a list of them.

*What they raise*: ``TypeError`` and ``ValueError`` (with the fields of `synkhronos.errors.ArgumentError`) if the loss
is not a scalar or does not depend on a parameter, or if another argument is wrong; the error names the parameter.

*Scalars* (learning rates, decays, epsilons) are numbers, shared variables or expressions of 0 dimensions. An expression
may depend on shared variables and on inputs; the inputs are then those of ``param_fn``. Scalars are cast to each
parameter's dtype, so they never change it.

*State*: all that a rule keeps between steps (velocities, averages, the number of steps) is in shared variables among
the keys of ``param_updates``, zero at first, in an order that depends on nothing but the arguments.
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
