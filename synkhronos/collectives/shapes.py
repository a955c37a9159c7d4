"""`synkhronos.get_shapes` and `synkhronos.get_lengths`: the shapes of the variables on every rank."""

from __future__ import annotations

from typing import Any, List, Tuple

from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand


class GetShapes(CollectiveCommand):
    """Return the shapes of every rank's values: for each variable, a list by rank."""

    title = "get_shapes"

    def run(self, context: RankContext) -> List[Tuple[int, ...]]:
        return [tuple(context.registry.shareds[number].cell[0].shape) for number in self.numbers]

    def finish(self, results: List[Any], context: RankContext) -> List[List[Tuple[int, ...]]]:
        return [list(shapes) for shapes in zip(*results)]


def get_shapes(shared_vars: Any) -> Any:
    """Return the shapes of the variables on every rank.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of any shape.

    Returns
    -------
    list of n_ranks tuples of int, or list of these
        For one variable, its shape on each rank; for a list of variables, a list of these lists.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> x = theano.shared(np.zeros((0, 4)), "x")
    >>> synk.scatter(x, np.ones((5, 4)))
    >>> synk.get_shapes(x)
    [(3, 4), (2, 4)]
    """
    variables = checked(shared_vars)
    return variables.one_or_list(variables.session.run(GetShapes(variables.numbers)))


def get_lengths(shared_vars: Any) -> Any:
    """Return the number of rows of the variables on every rank.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of at least 1 dimension.

    Returns
    -------
    list of n_ranks ints, or list of these
        For one variable, its number of rows on each rank; for a list of variables, a list of these lists.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> x = theano.shared(np.zeros((0, 4)), "x")
    >>> synk.scatter(x, np.ones((5, 4)))
    >>> synk.get_lengths(x)
    [3, 2]
    """
    variables = checked(shared_vars)
    variables.check_rows("use get_shapes")
    by_variable = variables.session.run(GetShapes(variables.numbers))
    return variables.one_or_list([[shape[0] for shape in shapes] for shapes in by_variable])
