"""`synkhronos.gather`."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np

from ..kernels.copy import join_into
from ..memory.recycled import Recycler
from ..runtime.command import Command
from ..runtime.context import RankContext
from .variables import Variables, keys_and_arrays


class Gather(Command):
    """Copy every rank's values to the master."""

    def __init__(self, numbers: List[int], nd_up: int) -> None:
        self.numbers, self.nd_up = numbers, nd_up

    def run(self, context: RankContext) -> Optional[List[Any]]:
        keys, arrays = keys_and_arrays(context, self.numbers)
        gathered = context.transport.gather(keys, arrays)
        return None if gathered is None else [join(parts, self.nd_up, context.results) for parts in gathered]


def join(parts: Sequence[np.ndarray], nd_up: int, memory: Recycler) -> Any:
    """Stack (``nd_up=1``) or concatenate (0) the ranks' arrays in new memory; list copies where they do not fit."""
    if nd_up == 0:
        parts = [np.atleast_1d(part) for part in parts] if len({part.ndim for part in parts}) == 1 else parts
    rows = [part[np.newaxis] if nd_up == 1 else part for part in parts]
    if len({part.shape[1:] for part in rows}) > 1 or len({part.ndim for part in rows}) > 1:
        return [part.copy() for part in parts]
    joined = memory.empty((sum(map(len, rows)),) + rows[0].shape[1:], rows[0].dtype)
    join_into(joined, rows)
    return joined


def gather(shared_vars: Any, nd_up: int = 1, nccl: bool = True) -> Any:
    """Return every rank's values of the variables; nothing changes.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Shapes may differ between ranks.
    nd_up : {1, 0}
        1: stacked along a new first axis, of shape ``(n_ranks,) + shape``. 0: concatenated along the first axis, in
        rank order (values of 0 dimensions become one entry each).
    nccl : bool
        Whether to use the GPU transport for variables that live on GPUs.

    Returns
    -------
    array or list of arrays, or list of these
        For a variable alone its result alone. A list of one array per rank where the shapes do not fit.

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
    >>> synk.gather(w)
    array([[0., 0.],
           [2., 6.]])
    >>> synk.gather(w, nd_up=0)
    array([0., 0., 2., 6.])
    """
    if isinstance(nd_up, bool) or nd_up not in (0, 1):
        raise ValueError(f"nd_up must be 1 (stack) or 0 (concatenate), got {nd_up!r}")
    variables = Variables(shared_vars)
    session = variables.session
    return variables.one_or_list(session.run(Gather(variables.numbers, nd_up))[session.root])
