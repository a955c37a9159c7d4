"""`synkhronos.scatter`."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

from ..partition import split_rows
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..selection import Selection
from .variables import Variables, keep

#: For one variable: the handle of the values, the rows that are selected, and every rank's part of those.
Division = Tuple[Any, Selection, Sequence[Tuple[int, int]]]


class Scatter(Command):
    """Give every rank its rows of the values."""

    def __init__(self, numbers: List[int], divisions: List[Division]) -> None:
        self.numbers, self.divisions = numbers, divisions

    def run(self, context: RankContext) -> None:
        results = []
        for number, (handle, selection, bounds) in zip(self.numbers, self.divisions):
            values, rows = context.pools.attach(handle), selection.part(*bounds[context.rank])
            result = context.transport.allocate(("shared", number), (len(rows),) + values.shape[1:], values.dtype)
            results.append(rows.take(values, out=result))
        keep(context, self.numbers, results)


def scatter(shared_vars: Any, values: Any, batch: Any = None) -> None:
    """Divide values by rows into the variable of every rank: ``x_r := values[begin_r:end_r]``.

    Rows are divided as those of the inputs of functions are: as evenly as possible, in rank order.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        What is to be overwritten.
    values : Data or array, or list of them
        One per variable (alone for a variable alone), of at least 1 dimension.
    batch : int, slice, list, tuple or 1-D integer array, optional
        The rows of the values to take, before they are divided; all by default.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        Where an argument is wrong, or a rank's part does not suit the variable; no value has changed then.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano
    >>> synk.fork(2)
    2
    >>> x = theano.shared(np.zeros(0), "x")
    >>> total = synk.function([], (x.sum(), "gather"))
    >>> synk.scatter(x, [1., 2., 3., 4., 5.])
    >>> synk.gather(x)
    [array([1., 2., 3.]), array([4., 5.])]
    >>> total()
    array([6., 9.])
    """
    variables = Variables(shared_vars)
    session = variables.session
    with session.lock:
        variables.check_rows("use broadcast or set_value")
        staged = variables.stage(values, batch)
        divisions: List[Division] = []
        for i, value in enumerate(staged):
            bounds = split_rows(len(value.rows), session.size, session.root)
            for rank, (begin, end) in enumerate(bounds):
                variables.check_count(i, end - begin, f"the part of rank {rank} of the values for")
            divisions.append((value.handle, value.rows, bounds))
        session.run(Scatter(variables.numbers, divisions))
