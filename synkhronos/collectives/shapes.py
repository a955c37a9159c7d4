"""`synkhronos.get_shapes` and `synkhronos.get_lengths`."""

from __future__ import annotations

from typing import Any, List, Tuple

from ..runtime.command import Command
from ..runtime.context import RankContext
from .variables import Variables


class GetShapes(Command):
    """Tell the shapes of every rank's values."""

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> List[Tuple[int, ...]]:
        shapes = []
        for number in self.numbers:
            engine, variable = context.shareds[number]
            shapes.append(tuple(engine.get(variable).shape))
        return shapes


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
        Where an argument is wrong.

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
    variables = Variables(shared_vars)
    by_rank = variables.session.run(GetShapes(variables.numbers))
    return variables.one_or_list([list(shapes) for shapes in zip(*by_rank)])


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
        Where an argument is wrong.

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
    variables = Variables(shared_vars)
    variables.check_rows("use get_shapes")
    by_rank = variables.session.run(GetShapes(variables.numbers))
    return variables.one_or_list([[shape[0] for shape in shapes] for shapes in zip(*by_rank)])
