"""`synkhronos.scatter`: divide the rows of values among the ranks."""

from __future__ import annotations

from typing import Any, Iterable, List, Sequence, Tuple

from ..partition import split_rows
from ..runtime.context import RankContext
from ..selection import Selection
from .arguments import StagedValue, checked
from .command import CollectiveCommand, taken

#: For one variable: the handle of the values, the selected rows, and every rank's part of the rows.
Parts = Tuple[Any, Selection, Sequence[Tuple[int, int]]]


class Scatter(CollectiveCommand):
    """Divide the rows of values among the ranks."""

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
        context.transaction.commit_values(
            context.entries(self.numbers), taken(context, self.numbers, values, rows, self.axes)
        )


def scatter(shared_vars: Any, values: Any, batch: Any = None, axis: int = 0) -> None:
    """Divide the rows of values among the variables of all ranks: ``x_r := values[begin_r:end_r]``.

    Rows are divided like the inputs of functions: as evenly as possible, in rank order.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        The variables to overwrite; afterwards of shape ``(end_r - begin_r,) + shape`` on rank r. If no function uses
        a variable yet, the ranks store its value for later functions.
    values : Data or array of shape ``(n,) + shape``, or list of them
        One value per variable (no list for a single variable).
    batch : int, slice, list, tuple or 1-D integer array, optional
        The rows of the values to divide; all by default.
    axis : int
        The axis of rows in values and variables; the first by default. In general, an array of shape ``shape_0 + (n,) +
        shape_1`` is divided into arrays of shape ``shape_0 + (end_r - begin_r,) + shape_1``.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`. If a rank died, all survivors may have the new values; otherwise, no value has changed.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
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

    def scatter_of(staged: List[StagedValue]) -> Scatter:
        axes = variables.axes(axis) if axis else [0] * len(variables.names)
        divisions: List[Parts] = []
        for i, value in enumerate(staged):
            rows: Any = value.rows  # not None, because the variable has rows
            bounds = split_rows(len(rows), session.size, session.root)
            for rank, (begin, end) in enumerate([] if axes[i] else bounds):
                variables.check_count(i, end - begin, f"rank {rank}'s part of the values for")
            divisions.append((value.handle, rows, bounds))
        return Scatter(variables.numbers, divisions, axes)

    with session.lock:
        variables.check_rows("use broadcast or set_value")
        variables.run_with(values, scatter_of, "scatter", batch=batch, axis=axis)
