"""`synkhronos.gather`."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np

from ..kernels.copy import join_into
from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand


class Gather(CollectiveCommand):
    """Copy every rank's values to the master."""

    title = "gather"

    def __init__(self, numbers: List[int], nd_up: int) -> None:
        super().__init__(numbers)
        self.nd_up = nd_up

    def run(self, context: RankContext) -> Optional[List[Any]]:
        keys, arrays = context.bind(self.numbers)
        gathered = context.transport.gather(keys, arrays)
        return None if gathered is None else [join(parts, self.nd_up) for parts in gathered]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]


def join(parts: Sequence[np.ndarray], nd_up: int) -> Any:
    """Stack (``nd_up=1``) or concatenate (0) the ranks' arrays in new memory; list copies where they do not fit."""
    if nd_up == 0:
        parts = [np.atleast_1d(part) for part in parts] if len({part.ndim for part in parts}) == 1 else parts
    rows = [part[np.newaxis] if nd_up == 1 else part for part in parts]
    if len({part.shape[1:] for part in rows}) > 1 or len({part.ndim for part in rows}) > 1:
        return [part.copy() for part in parts]
    joined = np.empty((sum(map(len, rows)),) + rows[0].shape[1:], rows[0].dtype)
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
    variables = checked(shared_vars)
    session = variables.session
    return variables.one_or_list(session.run(Gather(variables.numbers, nd_up)))
