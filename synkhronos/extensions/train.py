"""Training functions: one step of synchronous SGD, or of any other first-order rule, on all ranks.

`make_train_function` builds the pattern that :mod:`synkhronos.extensions.updates` describes (gradients of each rank's
rows, their mean over all rows, the same step on every rank) into one function, with the mean inside its graph
(`synkhronos.ops.all_reduce`); `make_train_function_theano` builds its serial twin, which is called in the same way in
one process.
`average_batch_norm` is for networks with batch normalisation.
"""

from __future__ import annotations

import numbers
from typing import Any, Dict, Iterable, Optional

import synkhronos as synk
from synkhronos.collectives.mixing import parse_groups
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .average_batch_norm import average_batch_norm
from .train_function import TrainFunction
from .train_theano import TheanoTrainFunction
from .training_graph import training_graph

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

    A call computes the gradients of every rank's rows, averages them over the ranks weighted by their rows, and lets
    every rank take the same step, all in one command. For a loss that is a mean over rows it is the step that
    `make_train_function_theano` takes alone, up to rounding, however the rows divide.

    Parameters
    ----------
    loss : scalar expression
        A mean over rows.
    params : list of shared variables
        The parameters to train: of any shape; floating-point, no two the same, all on one device.
    x, y : variable, list of variables, or None
        The inputs whose rows are divided over the ranks, in the order in which calls give them.
    update_rule : function
        Of `synkhronos.extensions.updates`, or one that takes and returns the same.
    *args, **kwargs
        The rule's options, such as ``learning_rate``.
    outputs : expression, or list of (expression or (expression, op))
        Further results of the rows, computed with the parameters before the step; ops as in `synkhronos.function`.
    bcast_inputs : list of variables
        Inputs that every rank gets whole; calls give them after those of ``x`` and ``y``. What they keep between calls,
        ``In(s, value=..., update=...)``, is not part of ``state``.
    givens : dict, optional
        Replacements in the graph of the gradients, such as ``{input_var: X_shared}``. If one replaces something that
        the rule's step reads as well, such as a parameter, a step takes three commands.
    sliceable_shareds : list of shared variables
        Variables with every rank's own rows, from which ``batch_s`` selects.
    max_norm : scalar, optional
        The largest global norm of the gradient; a longer one is scaled to it. It is the norm of the mean over all rows
        (if ranks communicate every step).
    communicate_every : int
        1: gradients are averaged in every step. 0: every rank steps along the gradient of its own rows, and a rule of
        `synkhronos.extensions.rules`, which is given the function, communicates. k > 1, local SGD: so it does, and
        every k-th call averages the parameters and the rule's floating-point state, weighted by the rows that each
        rank took in between. That saves communication and is no longer the serial step.
    groups : list of lists of ranks, optional
        Every rank is in one group, and gradients are averaged inside each, by rows: a rule brings the groups together,
        `synkhronos.extensions.rules.DASO` for example. A group that has no rows in a call does not step.
    name : str
        In messages and profiles.
    function_options : dict, optional
        Further keywords of `synkhronos.function`, such as ``{"mode": mode}``.

    Returns
    -------
    TrainFunction

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong: the loss is not a scalar or does not depend on a parameter, a parameter is not a shared
        variable or is listed twice, parameters are on different devices, the rule has no such option, and so on.

    References
    ----------
    * Dean, J., et al. (2012). Large scale distributed deep networks. NIPS. (The mean of the ranks' gradients.)
    * McMahan, B., et al. (2017). Communication-efficient learning of deep networks from decentralized data. AISTATS;
      Stich, S. U. (2019). Local SGD converges fast and communicates little. ICLR. (``communicate_every``)

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano, theano.tensor as T
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
    graph = training_graph(loss, params, x, y, update_rule, args, kwargs, outputs, max_norm)
    if isinstance(communicate_every, bool) or not isinstance(communicate_every, numbers.Integral):
        got = f"{communicate_every!r} of type {type(communicate_every).__name__}"
        raise ArgumentTypeError("communicate_every", "an int", got)
    if communicate_every < 0:
        raise ArgumentValueError("communicate_every", "at least 0", str(communicate_every))
    if groups is not None:
        groups = parse_groups(groups, synk.size())
        if communicate_every != 1:
            expected = "1 with groups, whose gradients are averaged in every step"
            raise ArgumentValueError("communicate_every", expected, str(communicate_every))
    sliceable = list(sliceable_shareds)
    options = function_options or {}
    return TrainFunction(graph, bcast_inputs, givens, sliceable, int(communicate_every), groups, name, options)


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
    """Build the serial twin of `make_train_function`: the same steps by `theano.function`, in this process alone.

    It needs no `synkhronos.fork`; parallel programs are compared with it. Parameters and calls are the same
    (``timeout``, ``communicate_every`` and ``groups`` mean nothing to a single process); it takes NumPy arrays.
    Default updates apply after each of ``num_slices`` pieces, as Theano applies them.

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
        ``step(*arrays, batch=None, batch_s=None, num_slices=1)`` returns the loss, or a list of it and the outputs.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is wrong.

    Examples
    --------
    >>> import synkhronos, numpy as np, theano, theano.tensor as T
    >>> from synkhronos.extensions import train, updates
    >>> x, y = T.dmatrix("x"), T.dvector("y")
    >>> w = theano.shared(np.zeros(2), "w")
    >>> loss = T.sqr(T.dot(x, w) - y).mean()
    >>> step = train.make_train_function_theano(loss, [w], x, y, updates.sgd, learning_rate=0.5)
    >>> step(np.eye(4, 2), [1., 2., 0., 0.], batch=[0, 1, 2])
    array(1.66666667)
    >>> w.get_value()
    array([0.33333333, 0.66666667])
    """
    graph = training_graph(loss, params, x, y, update_rule, args, kwargs, outputs, max_norm)
    return TheanoTrainFunction(graph, bcast_inputs, givens, list(sliceable_shareds), name, function_options or {})
