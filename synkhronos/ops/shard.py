"""A rank's share of a value that all ranks have, inside a function's graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import engines
from ..errors import ArgumentTypeError


def shard(v: Any, axis: int = 0) -> Any:
    """Return an expression for this rank's rows of ``v``: ``v[begin_r:end_r]`` on rank r.

    For functions whose rows are not those of an input, but are computed inside: of data that is on every rank, at an
    index. All that follows from these rows is divided over the ranks then, as it is for inputs: averages are weighted
    by rows, and what has a row for each of them is gathered.

    Only in functions made by `synkhronos.function`, once `fork` has been called, are there other ranks. Elsewhere
    ``shard(v)`` is ``v``: the serial program has the same graph.

    Parameters
    ----------
    v : variable
        A dense array with the same value on every rank: of broadcast inputs and shared variables.
    axis : int
        Along which it has rows.

    Returns
    -------
    variable
        Of the type of ``v``, with the rows that the rank has in the call: as `scatter` divides them, and the same as of
        the scattered inputs if there are some. Its gradient is what every rank adds to that of ``v``.

    Raises
    ------
    TypeError, ValueError
        If ``v`` is not a variable, or not a dense array; if it has no such axis, or is of length 1 along it. In the
        call, if ``v`` has not as many rows as the scattered inputs, or as what another ``shard`` of the same function
        is given.

    Examples
    --------
    A program of the kind that tutorials have: the data is in a shared variable, and a call is given an index.

    >>> import synkhronos as synk
    >>> import numpy as np, theano, theano.tensor as T
    >>> synk.fork(2)
    2
    >>> data, w = theano.shared(np.arange(6.), "data"), theano.shared(0., "w")
    >>> x, index = T.dvector("x"), T.lscalar("index")
    >>> loss = T.sqr(x - w).mean()
    >>> minibatch = data[index * 3 : (index + 1) * 3]
    >>> train = synk.function(
    ...     [index], loss, updates=[(w, w - 0.5 * T.grad(loss, w))], givens={x: synk.ops.shard(minibatch)}, exact=True
    ... )
    >>> [float(train(i)) for i in (0, 1)]       # rank 0 takes rows 0, 1 and 3, 4; rank 1 takes rows 2 and 5
    [1.6666666666666667, 9.666666666666666]
    >>> train.last_rows, w.get_value()
    ([2, 1], array(4.))
    """
    engine = engines.find([v])
    if engine is None:
        hint = "only what is computed in a function's graph can be divided there; see synkhronos.scatter for values"
        raise ArgumentTypeError("v", "a variable", f"{type(v).__name__}", hint)
    if isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer)):
        raise ArgumentTypeError("axis", "an int", f"{axis!r} of type {type(axis).__name__}")
    return engine.shard(v, int(axis))
