"""Reduce expressions over all ranks, inside a function's graph."""

from __future__ import annotations

from typing import Any

from .. import engines
from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import IN_GRAPH, ReduceOp


def all_reduce(x: Any, op: Any = "avg") -> Any:
    """Return an expression that is reduced over all ranks: ``y_r = op(x_0, ..., x_{n-1})`` on every rank r.

    The average is weighted by rows: ``y_r = (n_0 x_0 + ... + n_{n-1} x_{n-1}) / (n_0 + ... + n_{n-1})``, where ``n_r``
    is the number of rows of rank r in the call (1 in a function without rows). A mean ``x`` over the rank's rows
    thus becomes the mean over the rows of all ranks, even if ranks have different numbers of rows.

    Ranks communicate only in functions built with `synkhronos.function`, after `fork`. Elsewhere (in
    ``theano.function`` and `Function.as_theano`), ``y = x``, as in the serial program.

    Parameters
    ----------
    x : variable, or list or tuple of variables
        Dense arrays, each of the same shape on all ranks. A list is reduced in a single collective, which is faster
        than a collective per variable.
    op : str
        ``avg``, ``sum``, ``min`` or ``max``; the prefix ``c_`` selects the CPU transport. ``avg`` does not support
        integers or bools.

    Returns
    -------
    variable, or list of variables
        The reduced variables, with the types of ``x``. The gradient of ``avg`` is the ``avg`` of the ranks' incoming
        gradients, which suits a loss that is a mean over rows. The gradient of ``sum`` is the ``sum`` of these
        gradients, which suits a sum over rows. ``min`` and ``max`` have no gradient.

    Raises
    ------
    TypeError, ValueError
        If ``x`` is an empty list or contains anything but dense array variables; if the op is unknown or does not
        support the dtype.

    Examples
    --------
    An update rule is data-parallel if its gradients are averaged over the rows of all ranks:

    >>> import synkhronos as synk
    >>> import theano, theano.tensor as T
    >>> x, w = T.dvector("x"), theano.shared(0., "w")
    >>> loss = T.sqr(x - w).mean()
    >>> gradient = synk.ops.all_reduce(theano.grad(loss, w))
    >>> step = theano.function([x], loss, updates=[(w, w - 0.5 * gradient)])
    >>> step([1., 2., 6.]), w.get_value()
    (array(13.66666667), array(3.))
    """
    parsed = ReduceOp.parse(op, "op", IN_GRAPH)
    variables = list(x) if isinstance(x, (list, tuple)) else [x]
    if not variables:
        raise ArgumentValueError("x", "at least one variable", "none")
    engine = engines.find(variables)
    if engine is None:
        hint = "to reduce the values of shared variables between calls, use synkhronos.all_reduce"
        raise ArgumentTypeError("x", "a variable, or a list of variables", f"{type(variables[0]).__name__}", hint)
    results = engine.all_reduce(variables, parsed)
    return results if isinstance(x, (list, tuple)) else results[0]
