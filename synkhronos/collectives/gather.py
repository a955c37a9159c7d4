"""`synkhronos.gather`: return every rank's values on the master."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from ..errors import ArgumentValueError
from ..kernels.copy import join_into
from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand, Joint
from .results import ResultMemory


class Gather(CollectiveCommand):
    """Copy every rank's values to the master."""

    title = "gather"

    def __init__(self, numbers: List[int], nd_up: int, axes: Sequence[int]) -> None:
        super().__init__(numbers)
        self.nd_up, self.axes = nd_up, axes

    def run(self, context: RankContext) -> Optional[List[Any]]:
        keys, arrays = context.bind(self.numbers, context.rank != context.root)
        gathered = context.transport.gather(keys, arrays)
        return None if gathered is None else self.answer(gathered, context)

    def joint(self, context: RankContext) -> Optional[Joint]:
        return Joint("gather")

    def answer(self, results: Any, context: RankContext) -> List[Any]:
        empty = context.kept(ResultMemory).empty
        return [join(parts, self.nd_up, axis, empty) for parts, axis in zip(results, self.axes)]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]


def join(parts: Sequence[np.ndarray[Any, Any]], nd_up: int, axis: int, empty: Callable[..., Any]) -> Any:
    """Stack (``nd_up=1``) or concatenate (0) the ranks' arrays; if shapes are incompatible, return a list of copies."""
    if axis:
        fit = len({(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}) == 1
        return np.concatenate(parts, axis=axis) if fit else [part.copy() for part in parts]
    if nd_up == 0:
        parts = [np.atleast_1d(part) for part in parts] if len({part.ndim for part in parts}) == 1 else parts
    rows = [part[np.newaxis] if nd_up == 1 else part for part in parts]
    if len({part.shape[1:] for part in rows}) > 1 or len({part.ndim for part in rows}) > 1:
        return [part.copy() for part in parts]
    joined = empty((sum(map(len, rows)),) + rows[0].shape[1:], rows[0].dtype)
    join_into(joined, rows)
    return joined


def gather(shared_vars: Any, nd_up: int = 1, nccl: bool = True, axis: Optional[int] = None) -> Any:
    """Return every rank's values of the variables, without changing them.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of any shape; shapes may differ between ranks.
    nd_up : {1, 0}
        1: stack along a new first axis. 0: concatenate along the first axis, in rank order (each 0-dimensional value
        becomes one entry).
    nccl : bool
        Ignored, because values are always gathered through host memory.
    axis : int, optional
        Concatenate along this axis instead; the inverse of `scatter` with the same axis. Overrides ``nd_up``.

    Returns
    -------
    array, or list of n_ranks arrays, or list of these
        For each variable, an array of shape ``(n_ranks,) + shape`` (``nd_up=1``), or of shape
        ``(n_0 + ... + n_{n-1},) + shape`` (``nd_up=0``, for values of shape ``(n_r,) + shape``). If shapes are
        incompatible, a list of the ranks' arrays. For a list of variables, a list of these.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> w = theano.shared(np.zeros(2), "w")
    >>> synk.set_value(w, [2., 6.], rank=1)
    >>> synk.gather(w)
    array([[0., 0.],
           [2., 6.]])
    >>> synk.gather(w, nd_up=0)
    array([0., 0., 2., 6.])
    """
    if isinstance(nd_up, bool) or nd_up not in (0, 1):
        raise ArgumentValueError("nd_up", "1 (stack) or 0 (concatenate)", repr(nd_up))
    variables = checked(shared_vars)
    axes = [0] * len(variables.numbers)
    if axis is not None:
        nd_up, axes = 0, variables.axes(axis) if axis else axes
    return variables.one_or_list(variables.run(Gather, nd_up, tuple(axes)))
