"""`synkhronos.broadcast`."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional

from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand, taken


class Broadcast(CollectiveCommand):
    """Give variables the same values on every rank.

    Parameters
    ----------
    numbers : list of int
        The variables.
    handles : list of handles, optional
        The values; the master's own if they are None.
    on_host : bool
        Whether to keep away from NCCL.
    """

    title = "broadcast"

    def __init__(self, numbers: List[int], handles: Optional[List[Any]], on_host: bool) -> None:
        super().__init__(numbers)
        self.handles, self.on_host = handles, on_host

    def reads(self, context: RankContext) -> Iterable[Any]:
        return self.handles or ()

    def run(self, context: RankContext) -> None:
        if self.handles is None:
            keys, arrays = context.bind(self.numbers)
            results = context.transport.broadcast(keys, arrays, context.root, self.on_host)
        else:
            values = [context.pools.attach(handle) for handle in self.handles]
            results = taken(context, self.numbers, values, [None] * len(values))
        context.commit_values(self.numbers, results, same=True)


def broadcast(shared_vars: Any, values: Any = None, nccl: bool = True) -> None:
    """Give the variables the same values on every rank: ``x_r := values``, by default ``x_r := x_root``.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        What is to be overwritten.
        If no function uses a variable yet, the ranks keep its value for one that does.
    values : Data or array of any shape ``shape``, or list of them, optional
        One per variable (not in a list if the variable is not); whatever the variable's own ``set_value`` takes. The
        master's own values by default. Afterwards the variable has the shape ``shape`` on every rank.
    nccl : bool
        Whether to use the GPU transport for variables that live on GPUs.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        If an argument is wrong; no value has changed then.
    SharedMemoryError
        If there is no memory for the results; no value has changed then.
    WorkerError
        If something went wrong on another rank; no value has changed then.
    WorkerDied, WorkerTimeout
        If a rank ended, or did not answer in time; the session is closed then, and the survivors hold either all the
        old values or all the new ones.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano
    >>> synk.fork(2)
    2
    >>> w = theano.shared(np.zeros(2), "w")
    >>> total = synk.function([], w.sum())
    >>> synk.broadcast(w, [3., 4.])
    >>> synk.get_value(1, w)
    array([3., 4.])
    """
    variables = checked(shared_vars, unused=True)
    with variables.session.lock:
        staged = None if values is None else variables.stage(values)
        variables.session.run(Broadcast(variables.numbers, staged and [value.handle for value in staged], not nccl))
