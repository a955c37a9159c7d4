"""Reduce expressions over all ranks, inside a function's graph."""

from __future__ import annotations

from typing import Any

from .. import engines
from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import IN_GRAPH, ReduceOp


def all_reduce(x: Any, op: Any = "avg") -> Any:
    """Return an expression for what all ranks have in common: ``y_r = op(x_0, ..., x_{n-1})`` on every rank r.

    The average is over rows: ``y_r = (n_0 x_0 + ... + n_{n-1} x_{n-1}) / (n_0 + ... + n_{n-1})``, where ``n_r`` is how
    many rows rank r has in the call (1 each if the function scatters nothing). So an ``x`` that is a mean over rows
    becomes the mean over the rows of all ranks, however many each of them has.

    Only in functions made by `synkhronos.function`, once `fork` has been called, are there other ranks. Elsewhere (in
    ``theano.function``, in `Function.as_theano`) ``y = x``: the serial program has the same graph.

    Parameters
    ----------
    x : variable, or list or tuple of variables
        Dense arrays, of any shapes that are the same on all ranks. Several are reduced in one collective, which is
        faster than one each.
    op : str
        ``avg``, ``sum``, ``min`` or ``max``; with the prefix ``c_`` the CPU transport is used. Integers and bools have
        no ``avg``.

    Returns
    -------
    variable, or list of variables
        Of the types of ``x``. The gradient of ``avg`` is the ``avg`` over ranks of the incoming gradients, as is right
        in a loss that is a mean over rows; that of ``sum`` is their ``sum``, as is right in a loss that is a sum over
        rows. ``min`` and ``max`` have none.

    Raises
    ------
    TypeError, ValueError
        If ``x`` is not a variable, or an empty list, or not a dense array; if there is no such op, or not for its
        dtype.

    Examples
    --------
    Gradients over the rows of all ranks make every update rule data-parallel:

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
        hint = "only what is computed in a function's graph can be reduced there; see synkhronos.all_reduce for values"
        raise ArgumentTypeError("x", "a variable, or a list of them", f"{type(variables[0]).__name__}", hint)
    results = engine.all_reduce(variables, parsed)
    return results if isinstance(x, (list, tuple)) else results[0]
