"""Training functions: one step of synchronous SGD, or of any other first-order rule, on all ranks.

`make_train_function` builds the pattern that :mod:`synkhronos.extensions.updates` describes (gradients of each rank's
rows, their mean over all rows by one `synkhronos.all_reduce`, the same step on every rank) into something that is
called like one function; `make_train_function_theano` builds its serial twin, which is called in the same way in one
process.
`average_batch_norm` is for networks with batch normalisation.
"""

from __future__ import annotations

import numbers
from typing import Any, Dict, Iterable, List, Optional

import theano
import theano.tensor as T

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .average_batch_norm import average_batch_norm
from .train_theano import TheanoTrainFunction
from .training_graph import TrainingGraph, training_graph

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
    name: str = "train",
    function_options: Optional[Dict[str, Any]] = None,
    **kwargs: Any,
) -> TrainFunction:
    """Build a training step that runs on all ranks: ``g := mean over all rows of dloss/dp``, ``p := rule(p, g)``.

    A call computes the gradients of every rank's rows, averages them over the ranks weighted by their rows, and lets
    every rank take the same step. For a loss that is a mean over rows it is the step that
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
        Inputs that every rank gets whole; calls give them after those of ``x`` and ``y``.
    givens : dict, optional
        Replacements in the graph of the gradients, such as ``{input_var: X_shared}``.
    sliceable_shareds : list of shared variables
        Variables with every rank's own rows, from which ``batch_s`` selects.
    max_norm : scalar, optional
        The largest global norm of the gradient; a longer one is scaled to it. It is the norm of the mean over all rows
        (if ranks communicate every step).
    communicate_every : int
        1: gradients are averaged in every step. k > 1, local SGD: every rank steps along the gradient of its own rows,
        and every k-th call averages the parameters and the rule's floating-point state, weighted by the rows that each
        rank took in between. That saves communication and is no longer the serial step.
    name : str
        In messages and profiles.
    function_options : dict, optional
        Further keywords of `synkhronos.function` for the two functions, such as ``{"mode": mode}``.

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
    if communicate_every < 1:
        raise ArgumentValueError("communicate_every", "at least 1", str(communicate_every))
    return TrainFunction(
        graph, bcast_inputs, givens, list(sliceable_shareds), int(communicate_every), name, function_options or {}
    )


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
    name: str = "train",
    function_options: Optional[Dict[str, Any]] = None,
    **kwargs: Any,
) -> TheanoTrainFunction:
    """Build the serial twin of `make_train_function`: the same steps by `theano.function`, in this process alone.

    It needs no `synkhronos.fork`; parallel programs are compared with it. Parameters and calls are the same
    (``timeout`` and ``communicate_every`` mean nothing to a single process); it takes NumPy arrays. Default updates
    apply after each of ``num_slices`` pieces, as Theano applies them.

    Parameters
    ----------
    loss, params, x, y, update_rule, *args, outputs, bcast_inputs, givens, sliceable_shareds, max_norm, name, **kwargs
        As for `make_train_function`.
    communicate_every : int
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


class TrainFunction:
    """One training step on all ranks, as `make_train_function` returns it.

    Attributes
    ----------
    gradient_fn, step_fn : synkhronos.Function
        The two functions: the first computes from rows, the second steps with what ``grad_shared`` then holds.
    grad_shared : list of shared variables
        The gradients, between the two.
    params, state : list of shared variables
        The parameters, and what the rule keeps between steps: together all that a checkpoint needs.
    communicate_every : int
        How many calls there are between averages.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        bcast_inputs: Iterable[Any],
        givens: Any,
        sliceable_shareds: List[Any],
        communicate_every: int,
        name: str,
        options: Dict[str, Any],
    ) -> None:
        self.params, self.state, self.grad_shared = graph.params, graph.state, graph.grad_shared
        self.communicate_every = communicate_every
        self._calls = 0  # since ranks last communicated
        grad_updates: List[Any]
        grad_updates, param_updates = list(graph.grad_updates.items()), list(graph.param_updates.items())
        if communicate_every > 1:
            self._rows, self._total = (theano.shared(0, f"{name}.{what}") for what in ("rows", "rows in all"))
            rows = rows_of(graph.inputs + sliceable_shareds)
            grad_updates.append((self._rows, rows, "sum"))
            # A rank without rows made no call, and must not step: it still has an earlier gradient.
            param_updates = [(shared, T.switch(self._rows > 0, new, shared)) for shared, new in param_updates]
            param_updates += [(self._total, self._total + self._rows), (self._rows, T.zeros_like(self._rows))]
        outputs = graph.outputs if len(graph.outputs) > 1 else graph.outputs[0]
        self.gradient_fn = synk.function(
            graph.inputs,
            outputs,
            bcast_inputs=list(bcast_inputs),
            updates=grad_updates,
            givens=givens,
            sliceable_shareds=sliceable_shareds,
            name=name + " (gradients)",
            **options,
        )
        self.step_fn = synk.function([], updates=param_updates, name=name + " (step)", **options)

    def __repr__(self) -> str:
        return f"<TrainFunction of {len(self.params)} parameters, {self.gradient_fn!r}>"

    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        timeout: Optional[float] = None,
        **kwargs: Any,
    ) -> Any:
        """Take one training step on all ranks.

        Parameters
        ----------
        *args, **kwargs
            One value per input, by position (``x``, ``y``, ``bcast_inputs``) or by name.
        batch, batch_s, timeout
            As for every `synkhronos.Function`; the timeout is for each of the step's commands.
        num_slices : int
            Number of pieces in which every rank computes its gradients, for batches that do not fit into memory: the
            step is the same.

        Returns
        -------
        array, or list of arrays
            The loss over all rows, before the step; with ``outputs`` a list of it and them.

        Raises
        ------
        Exception
            As calls of a `synkhronos.Function` and `synkhronos.all_reduce`. No parameter has changed then, unless a
            rank has died in the step itself.
        """
        try:
            results = self.gradient_fn(
                *args, batch=batch, batch_s=batch_s, num_slices=num_slices, timeout=timeout, **kwargs
            )
        except Exception:
            if self.communicate_every > 1 and synk.is_forked():
                synk.broadcast(self._rows, 0)  # some ranks may have computed gradients, which no step may use
            raise
        if self.communicate_every == 1:
            synk.all_reduce(self.grad_shared, weights=self.gradient_fn)
        self.step_fn(timeout=timeout)
        self._calls += 1
        if 1 < self.communicate_every <= self._calls:
            self.average()
        return results

    def average(self) -> None:
        """Average parameters and the rule's state over the ranks, weighted by the rows since they were last averaged.

        For local SGD (``communicate_every`` above 1), which does it every k calls; a program calls it before it
        validates or saves in between, and at its end. Without local SGD all ranks hold the same values, and nothing
        happens.
        """
        if self.communicate_every > 1 and self._calls:
            totals = [int(total) for total in synk.gather(self._total)]
            if any(totals):
                floats = [shared for shared in self.params + self.state if shared.dtype in T.float_dtypes]
                synk.all_reduce(floats, weights=totals)
            synk.broadcast(self._total, 0)
        self._calls = 0


def rows_of(variables: List[Any]) -> Any:
    """Return the number of rows that a rank takes in a call, as an expression; 1 if nothing is divided."""
    for variable in variables:
        if getattr(variable, "ndim", 0) and not variable.broadcastable[0]:
            return variable.shape[0]
    return T.constant(1, dtype="int64")
