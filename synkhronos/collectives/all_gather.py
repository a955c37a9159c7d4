"""`synkhronos.all_gather`."""

from __future__ import annotations

from typing import Any, List

from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand


class AllGather(CollectiveCommand):
    """Give every rank the concatenation of all ranks' values."""

    title = "all_gather"

    def __init__(self, numbers: List[int], on_host: bool) -> None:
        super().__init__(numbers)
        self.on_host = on_host

    def run(self, context: RankContext) -> None:
        keys, arrays = context.bind(self.numbers)
        results = context.transport.all_gather(keys, arrays, context.name_of(self.numbers), self.on_host)
        context.commit_values(self.numbers, results, same=True)


def all_gather(shared_vars: Any, nccl: bool = True) -> None:
    """Give every rank the concatenation of all: ``x_r := concatenate([x_0, ..., x_{n-1}])``, along the first axis.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of shape ``(n_r,) + shape`` on rank r: ``shape`` is the same on all ranks and the lengths ``n_r`` may
        differ; afterwards of shape ``(n_0 + ... + n_{n-1},) + shape`` on all of them.
    nccl : bool
        Whether to use the GPU transport for variables that live on GPUs.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        If an argument is wrong, or shapes do not fit; no value has changed then.
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
    >>> x = theano.shared(np.zeros(0), "x")
    >>> total = synk.function([], x.sum())
    >>> synk.scatter(x, [1., 2., 3.])
    >>> synk.get_lengths(x)
    [2, 1]
    >>> synk.all_gather(x)
    >>> x.get_value(), synk.get_lengths(x)
    (array([1., 2., 3.]), [3, 3])
    """
    variables = checked(shared_vars)
    variables.check_rows("use gather to see every rank's value")
    for i in range(len(variables.numbers)):
        variables.check_count(i, variables.session.size, "the rows of all ranks of")  # each has 1 if 1 is required
    variables.session.run(AllGather(variables.numbers, not nccl))
