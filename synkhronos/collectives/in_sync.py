"""`synkhronos.in_sync`."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np

from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand


class SyncReport:
    """Whether variables hold the same value on all ranks: true if they do.

    Attributes
    ----------
    differences : dict of str to dict of int to str
        By variable, then by rank: where that rank's value first differs from the master's.
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
        keys, arrays = context.bind(self.numbers)
        gathered = context.transport.gather(keys, arrays)
        if gathered is None:
            return None
        return [
            {
                rank: where
                for rank, part in enumerate(parts)
                for where in [first_difference(parts[context.root], part)]
                if where
            }
            for parts in gathered
        ]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]


def first_difference(a: np.ndarray, b: np.ndarray) -> Optional[str]:
    """Tell where two arrays first differ in their bits; None where they do not. (NaN is the same as itself.)"""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"in shape: {b.dtype} {b.shape} instead of {a.dtype} {a.shape}"
    different_bytes = _bytes(a) != _bytes(b)
    if not different_bytes.any():  # several times as fast as asking element by element
        return None
    different = different_bytes.any(axis=1)
    index = np.unravel_index(int(different.argmax()), a.shape) if a.ndim else ()
    return (
        f"from index {tuple(map(int, index))} on ({different.sum()} of {a.size} elements): {b[index]!r} instead "
        f"of {a[index]!r}"
    )


def _bytes(array: np.ndarray) -> np.ndarray:
    """Return the bytes of an array, one row per element."""
    return np.ascontiguousarray(np.atleast_1d(array)).view(np.uint8).reshape(array.size, array.itemsize)


def in_sync(shared_vars: Any) -> SyncReport:
    """Tell whether all ranks hold the same values of the variables, bit by bit; nothing changes.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Which.

    Returns
    -------
    SyncReport
        True where all are the same; else its ``differences`` and its text tell which ranks differ from the master,
        and where.

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
    >>> synk.set_value(1, w, [0., 6.])
    >>> synk.in_sync(w)
    not in sync: w differs on rank 1 from index (1,) on (1 of 2 elements): 6.0 instead of 0.0
    >>> if not synk.in_sync(w):
    ...     synk.broadcast(w)
    >>> synk.in_sync(w)
    in sync
    """
    variables = checked(shared_vars)
    session = variables.session
    found = session.run(Compare(variables.numbers))
    return SyncReport({name: ranks for name, ranks in zip(variables.names, found) if ranks})
