"""`synkhronos.in_sync`: compare all ranks' values with the master's."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np

from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand, Joint


class SyncReport:
    """The result of `in_sync`: true if all variables have equal values on all ranks.

    Attributes
    ----------
    differences : dict of str to dict of int to str
        By variable, then by rank: the first difference between that rank's value and the master's.
    """

    def __init__(self, differences: Dict[str, Dict[int, str]]) -> None:
        self.differences = differences

    def __bool__(self) -> bool:
        return not self.differences

    def __repr__(self) -> str:
        if not self.differences:
            return "in sync"
        return "not in sync: " + "; ".join(
            f"{name} differs on rank {rank} {where}"
            for name, ranks in self.differences.items()
            for rank, where in ranks.items()
        )


class Compare(CollectiveCommand):
    """Compare every rank's values with the master's."""

    title = "in_sync"

    def run(self, context: RankContext) -> Optional[List[Dict[int, str]]]:
        keys, arrays = context.bind(self.numbers, context.rank != context.root)
        gathered = context.transport.gather(keys, arrays)
        return None if gathered is None else self.answer(gathered, context)

    def joint(self, context: RankContext) -> Optional[Joint]:
        return Joint("gather")

    def answer(self, results: Any, context: RankContext) -> List[Dict[int, str]]:
        return [
            {
                rank: where
                for rank, part in enumerate(parts)
                for where in [first_difference(parts[context.root], part)]
                if where
            }
            for parts in results
        ]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]


def first_difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Optional[str]:
    """Return a description of the first difference between two arrays (shape, dtype, bits); None if there is none."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"in {'shape' if a.shape != b.shape else 'dtype'}: {b.dtype} {b.shape} instead of {a.dtype} {a.shape}"
    different_bytes = _bytes(a) != _bytes(b)
    if not different_bytes.any():  # (several times as fast as comparing elements)
        return None
    different = different_bytes.any(axis=1)
    index = np.unravel_index(int(different.argmax()), a.shape) if a.ndim else ()
    return (
        f"in {different.sum()} of {a.size} element{'' if a.size == 1 else 's'}, "
        f"first at index {tuple(map(int, index))}: {b[index]!r} instead of {a[index]!r}"
    )


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(np.atleast_1d(array)).view(np.uint8).reshape(array.size, array.itemsize)


def in_sync(shared_vars: Any) -> SyncReport:
    """Compare the variables on all ranks, bit for bit; the result is true if their values are equal.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of any shape; different shapes on different ranks count as differences.

    Returns
    -------
    SyncReport
        True if all values are equal. Otherwise, its ``differences`` and ``repr`` list the ranks that differ from the
        master, and the first difference on each of them.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> w = theano.shared(np.zeros(2), "w")
    >>> synk.set_value(w, [0., 6.], rank=1)
    >>> synk.in_sync(w)
    not in sync: w differs on rank 1 in 1 of 2 elements, first at index (1,): 6.0 instead of 0.0
    >>> if not synk.in_sync(w):
    ...     synk.broadcast(w)
    """
    variables = checked(shared_vars)
    found = variables.run(Compare)
    return SyncReport({name: ranks for name, ranks in zip(variables.names, found) if ranks})
