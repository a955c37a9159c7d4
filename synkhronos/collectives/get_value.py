"""`synkhronos.get_value`."""

from __future__ import annotations

from typing import Any, List, Optional

import numpy as np

from ..command import Command
from ..context import RankContext
from .variables import Variables, keys_and_arrays


class GetValue(Command):
    """Copy one rank's values to the master."""

    def __init__(self, rank: int, numbers: List[int]) -> None:
        self.rank, self.numbers = rank, numbers

    def run(self, context: RankContext) -> Optional[List[np.ndarray]]:
        keys, arrays = keys_and_arrays(context, self.numbers)
        gathered = context.transport.gather(keys, arrays)
        return None if gathered is None else [parts[self.rank].copy() for parts in gathered]


def get_value(rank: int, shared_vars: Any) -> Any:
    """Return a copy of one rank's values of the variables; nothing changes.

    Parameters
    ----------
    rank : int
        Whose.
    shared_vars : shared variable, or list or tuple of them
        Which.

    Returns
    -------
    array or list of arrays
        For a variable alone its value alone.

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
    >>> w = theano.shared(np.zeros(2), "w")
    >>> total = synk.function([], w.sum())
    >>> synk.set_value(1, w, [2., 6.])
    >>> synk.get_value(0, w), synk.get_value(1, w)
    (array([0., 0.]), array([2., 6.]))
    """
    variables = Variables(shared_vars)
    rank = variables.check_rank(rank)
    session = variables.session
    return variables.one_or_list(session.run(GetValue(rank, variables.numbers))[session.root])
