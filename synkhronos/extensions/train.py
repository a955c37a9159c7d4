"""Training functions: one step of SGD or another first-order rule, computed by all ranks.

`make_train_function` merges the two functions of :mod:`synkhronos.extensions.updates` into one if possible, with the
mean of the gradients inside its graph (`synkhronos.ops.all_reduce`).
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional

import synkhronos as synk
from synkhronos.errors import ArgumentValueError
from synkhronos.extending import parse_groups

from .arguments import whole
from .average_batch_norm import average_batch_norm
from .train_function import TrainFunction
from .train_theano import TheanoTrainFunction
from .training_graph import TrainingGraph

__all__ = ["TrainFunction", "average_batch_norm", "make_train_function", "make_train_function_theano"]


def make_train_function(
    loss: Any,
    params: Any,
    x: Any,
    y: Any,
    update_rule: Any,
    *args: Any,
    outputs: Any = (),
    bcast_inputs: Iterable[Any] = (),
    givens: Any = None,
    sliceable_shareds: Iterable[Any] = (),
    max_norm: Any = None,
    communicate_every: int = 1,
    groups: Any = None,
    name: str = "train",
    function_options: Optional[Dict[str, Any]] = None,
    **kwargs: Any,
) -> TrainFunction:
    """Build a training step that runs on all ranks: ``g := mean over all rows of dloss/dp``, ``p := rule(p, g)``.

    By default, a call is one command: ranks compute the gradients of their rows, average them over all rows, and take
    the same step. If the loss is a mean over rows, this is the step of `make_train_function_theano` up to rounding,
    however the rows are divided. Source: Dean, J., et al. (2012). Large scale distributed deep networks. NIPS.

    Parameters
    ----------
    loss : scalar expression
        The loss, a mean over rows.
    params : list of shared variables
        The parameters to train: floating-point, of any shape, each listed once, all on one device.
    x, y : variable, list of variables, or None
        The inputs whose rows are divided over the ranks, in the order of a call's arguments.
    update_rule : function
        A rule of `synkhronos.extensions.updates`, or a function with the same interface.
    *args, **kwargs
        Options of the rule, such as ``learning_rate``.
    outputs : expression, or list of (expression or (expression, op))
        Additional results, computed before the step; `synkhronos.function` describes the ops.
    bcast_inputs : list of variables
        Inputs that every rank receives as a whole; a call passes them after ``x`` and ``y``. The values of
        ``In(s, value=..., update=...)`` are not part of ``state``.
    givens : dict, optional
        Replacements in the graphs of the loss, outputs and gradients, such as ``{input_var: X_shared}``.
    sliceable_shareds : list of shared variables
        Variables that contain each rank's own rows; ``batch_shared`` selects some of these rows.
    max_norm : scalar, optional
        Bound for gradient clipping: a gradient with a larger global norm is scaled down to this norm. Unless ``groups``
        or ``communicate_every`` is set, the mean gradient over all rows is clipped.
    communicate_every : int
        1: average gradients in every step. 0: every rank takes steps with its own rows' gradient, and a rule of
        `synkhronos.extensions.rules`, built with the function, communicates. k > 1: every rank takes such steps, and
        `synkhronos.extensions.rules.LocalSGD` averages parameters and floating-point state every k calls. Values other
        than 1 save communication, but change the steps.
    groups : list of lists of ranks, optional
        Average gradients inside each group only, weighted by rows; to synchronize the groups, also use a rule such as
        `synkhronos.extensions.rules.DASO`. A group without rows in a call takes no step.
    name : str
        Name of the function in messages and profiles.
    function_options : dict, optional
        Further keywords of `synkhronos.function`, such as ``{"mode": mode}``.

    Returns
    -------
    TrainFunction

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is invalid, for example, if the loss is not a scalar or parameters are on different devices.

    Examples
    --------
    >>> import synkhronos as synk, numpy as np, theano, theano.tensor as T
    >>> from synkhronos.extensions import train, updates
    >>> synk.fork(2)
    2
    >>> x, y = T.dmatrix("x"), T.dvector("y")
    >>> w = theano.shared(np.zeros(2), "w")
    >>> loss = T.sqr(T.dot(x, w) - y).mean()
    >>> step = train.make_train_function(loss, [w], x, y, updates.sgd, learning_rate=0.5)
    >>> X, Y = synk.data(np.eye(4, 2)), synk.data([1., 2., 0., 0.])
    >>> step(X, Y, batch=[0, 1, 2])                          # two rows for rank 0, one for rank 1
    array(1.66666667)
    >>> w.get_value()
    array([0.33333333, 0.66666667])
    """
    graph = TrainingGraph(loss, params, x, y, update_rule, args, kwargs, outputs, max_norm)
    communicate_every = whole("communicate_every", communicate_every, 0)
    if groups is not None:
        groups = parse_groups(groups, synk.size())
        if communicate_every != 1:
            expected = "1 with groups, because groups average their gradients in every step"
            raise ArgumentValueError("communicate_every", expected, str(communicate_every))
    of_rows = rows_options(bcast_inputs, givens, sliceable_shareds)
    return TrainFunction(graph, of_rows, communicate_every, groups, name, function_options or {})


def make_train_function_theano(
    loss: Any,
    params: Any,
    x: Any,
    y: Any,
    update_rule: Any,
    *args: Any,
    outputs: Any = (),
    bcast_inputs: Iterable[Any] = (),
    givens: Any = None,
    sliceable_shareds: Iterable[Any] = (),
    max_norm: Any = None,
    communicate_every: int = 1,
    groups: Any = None,
    name: str = "train",
    function_options: Optional[Dict[str, Any]] = None,
    **kwargs: Any,
) -> TheanoTrainFunction:
    """Build the serial equivalent of `make_train_function`: the same steps in one process, with `theano.function`.

    The function needs no `synkhronos.fork`; use it to validate parallel programs. Calls accept NumPy arrays and ignore
    ``timeout``. With ``num_slices``, default updates are applied after each slice.

    Parameters
    ----------
    loss, params, x, y, update_rule, *args, outputs, bcast_inputs, givens, sliceable_shareds, max_norm, name, **kwargs
        As for `make_train_function`.
    communicate_every, groups
        Ignored: a single process does not communicate.
    function_options : dict, optional
        Further keywords of `theano.function`.

    Returns
    -------
    callable
        ``step(*arrays, batch=None, batch_shared=None, num_slices=1)`` returns the loss, or a list of loss and outputs.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is invalid.

    Examples
    --------
    >>> import synkhronos, numpy as np, theano, theano.tensor as T
    >>> from synkhronos.extensions import train, updates
    >>> x, y, w = T.dmatrix("x"), T.dvector("y"), theano.shared(np.zeros(2), "w")
    >>> loss = T.sqr(T.dot(x, w) - y).mean()
    >>> step = train.make_train_function_theano(loss, [w], x, y, updates.sgd, learning_rate=0.5)
    >>> step(np.eye(4, 2), [1., 2., 0., 0.], batch=[0, 1, 2])
    array(1.66666667)
    """
    graph = TrainingGraph(loss, params, x, y, update_rule, args, kwargs, outputs, max_norm)
    of_rows = rows_options(bcast_inputs, givens, sliceable_shareds)
    return TheanoTrainFunction(graph, name=name, options=function_options or {}, **of_rows)


def rows_options(bcast_inputs: Iterable[Any], givens: Any, sliceable_shareds: Iterable[Any]) -> Dict[str, Any]:
    """Return the keywords of `synkhronos.function` for the function of the rows, as lists that can be read again."""
    pairs = list(givens.items() if isinstance(givens, dict) else givens or ())
    return dict(bcast_inputs=list(bcast_inputs), givens=pairs, sliceable_shareds=list(sliceable_shareds))
