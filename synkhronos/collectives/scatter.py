"""`synkhronos.scatter`."""

from __future__ import annotations

from typing import Any, Iterable, List, Sequence, Tuple

from ..partition import split_rows
from ..runtime.context import RankContext
from ..selection import Selection
from .arguments import checked
from .command import CollectiveCommand, taken

#: For one variable: the handle of the values, the rows that are selected, and every rank's part of those.
Parts = Tuple[Any, Selection, Sequence[Tuple[int, int]]]


class Scatter(CollectiveCommand):
    """Give every rank its rows of the values."""

    title = "scatter"

    def __init__(self, numbers: List[int], divisions: List[Parts], axes: List[int]) -> None:
        super().__init__(numbers)
        self.divisions, self.axes = divisions, axes

    def reads(self, context: RankContext) -> Iterable[Any]:
        return [handle for handle, _, _ in self.divisions]

    def run(self, context: RankContext) -> None:
        rows = [selection.part(*bounds[context.rank]) for _, selection, bounds in self.divisions]
        handles = [handle for handle, _, _ in self.divisions]
        values = [context.pools.rows(handle, part) for handle, part in zip(handles, rows)]
        context.commit_values(self.numbers, taken(context, self.numbers, values, rows, self.axes))


def scatter(shared_vars: Any, values: Any, batch: Any = None, axis: int = 0) -> None:
    """Divide values by rows into the variable of every rank: ``x_r := values[begin_r:end_r]``.

    Rows are divided as those of the inputs of functions are: as evenly as possible, in rank order.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        What is to be overwritten; afterwards of shape ``(end_r - begin_r,) + shape`` on rank r.
        If no function uses a variable yet, the ranks keep its value for one that does.
    values : Data or array of shape ``(n,) + shape``, or list of them
        One per variable (not in a list if the variable is not).
    batch : int, slice, list, tuple or 1-D integer array, optional
        The rows of the values to take, before they are divided; all by default.
    axis : int
        Along which values and variables have their rows, to be divided; the first by default. With another one an
        array of shape ``shape_0 + (n,) + shape_1`` is divided into those of ``shape_0 + (end_r - begin_r,) + shape_1``.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        If an argument is wrong, or a rank's part does not suit the variable; no value has changed then.
    SharedMemoryError
        If there is no memory for the results; no value has changed then.
    WorkerError
        If something went wrong on another rank; no value has changed then.
    WorkerDied, WorkerTimeout
        If a rank ended, or did not answer in time; the session is closed then, and the survivors hold either all the
        old values or all the new ones.

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
    variables = checked(shared_vars, unused=True)
    session = variables.session
    with session.lock:
        variables.check_rows("use broadcast or set_value")
        axes = variables.axes(axis) if axis else [0] * len(variables.names)
        staged = variables.stage(values, batch, axes)
        divisions: List[Parts] = []
        for i, value in enumerate(staged):
            rows: Any = value.rows  # not None, because the variable has rows
            bounds = split_rows(len(rows), session.size, session.root)
            for rank, (begin, end) in enumerate([] if axes[i] else bounds):
                variables.check_count(i, end - begin, f"the part of rank {rank} of the values for")
            divisions.append((value.handle, rows, bounds))
        session.run(Scatter(variables.numbers, divisions, axes))
