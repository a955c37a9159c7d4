"""`synkhronos.get_shapes` and `synkhronos.get_lengths`."""

from __future__ import annotations

from typing import Any, List, Tuple

from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand


class GetShapes(CollectiveCommand):
    """Return the shapes of every rank's values: for each variable a list by rank."""

    title = "get_shapes"

    def run(self, context: RankContext) -> List[Tuple[int, ...]]:
        return [tuple(context.shareds[number].cell[0].shape) for number in self.numbers]

    def finish(self, results: List[Any], context: RankContext) -> List[List[Tuple[int, ...]]]:
        return [list(shapes) for shapes in zip(*results)]


def get_shapes(shared_vars: Any) -> Any:
    """Return the shape that the variables have on every rank.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Which.

    Returns
    -------
    list of tuple, or list of these
        For every variable a list by rank; that of a variable alone, alone.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        If an argument is wrong.
    SharedMemoryError
        If there is no memory for the results; no value has changed then.
    WorkerError
        If something went wrong on another rank; no value has changed then.
    WorkerDied, WorkerTimeout
        If a rank ended, or did not answer in time; the session is closed then.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano
    >>> synk.fork(2)
    2
    >>> x = theano.shared(np.zeros((0, 4)), "x")
    >>> total = synk.function([], x.sum())
    >>> synk.scatter(x, np.ones((5, 4)))
    >>> synk.get_shapes(x)
    [(3, 4), (2, 4)]
    """
    variables = checked(shared_vars)
    return variables.one_or_list(variables.session.run(GetShapes(variables.numbers)))


def get_lengths(shared_vars: Any) -> Any:
    """Return the number of rows that the variables have on every rank.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of at least 1 dimension.

    Returns
    -------
    list of int, or list of these
        For every variable a list by rank; that of a variable alone, alone.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        If an argument is wrong.
    SharedMemoryError
        If there is no memory for the results; no value has changed then.
    WorkerError
        If something went wrong on another rank; no value has changed then.
    WorkerDied, WorkerTimeout
        If a rank ended, or did not answer in time; the session is closed then.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano
    >>> synk.fork(2)
    2
    >>> x = theano.shared(np.zeros((0, 4)), "x")
    >>> total = synk.function([], x.sum())
    >>> synk.scatter(x, np.ones((5, 4)))
    >>> synk.get_lengths(x)
    [3, 2]
    """
    variables = checked(shared_vars)
    variables.check_rows("use get_shapes")
    by_variable = variables.session.run(GetShapes(variables.numbers))
    return variables.one_or_list([[shape[0] for shape in shapes] for shapes in by_variable])
