"""Selection of this rank's share of a replicated value, inside a function's graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import engines
from ..errors import ArgumentTypeError


def shard(v: Any, axis: int = 0) -> Any:
    """Return an expression for this rank's rows of ``v``: ``v[begin_r:end_r]`` on rank r.

    Use it for rows that are computed inside a function, such as rows selected by an index from data on every rank.
    Values computed from these rows are treated like values computed from scattered inputs. Averages are weighted by
    rows, and values with an entry per row are gathered.

    Rows are divided only in functions built with `synkhronos.function`, after `fork`. Elsewhere, ``shard(v)`` is ``v``,
    as in the serial program.

    Parameters
    ----------
    v : variable
        A dense array with the same value on every rank, computed from broadcast inputs and shared variables.
    axis : int
        The axis of the rows.

    Returns
    -------
    variable
        This rank's rows of ``v``, with the dtype of ``v``. Rows are divided as by `scatter`, so they match the rows of
        scattered inputs. The gradient is the rank's contribution to the gradient of ``v``.

    Raises
    ------
    TypeError, ValueError
        If ``v`` is not a dense array variable, lacks the axis, or always has length 1 along it. Calls raise ValueError
        if ``v`` has a different number of rows than the scattered inputs or another ``shard`` in the function.

    Examples
    --------
    The data is in a shared variable, and a call passes an index:

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
    >>> [float(train(i)) for i in (0, 1)]       # rank 0 computes rows 0, 1 and 3, 4; rank 1 rows 2 and 5
    [1.6666666666666667, 9.666666666666666]
    >>> train.last_rows, w.get_value()
    ([2, 1], array(4.))
    """
    engine = engines.find([v])
    if engine is None:
        hint = "to divide the rows of an array over the ranks between calls, use synkhronos.scatter"
        raise ArgumentTypeError("v", "a variable", f"{type(v).__name__}", hint)
    if isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer)):
        raise ArgumentTypeError("axis", "an int", f"{axis!r} of type {type(axis).__name__}")
    return engine.shard(v, int(axis))
