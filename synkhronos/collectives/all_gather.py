"""`synkhronos.all_gather`: concatenate all ranks' values on every rank."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Optional

from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand, Joint


class AllGather(CollectiveCommand):
    """Concatenate all ranks' values on every rank."""

    title = "all_gather"

    def __init__(self, numbers: List[int], on_host: bool) -> None:
        super().__init__(numbers)
        self.on_host = on_host

    def joint(self, context: RankContext) -> Optional[Joint]:
        return None if self.on_host else Joint("all_gather", None, self.numbers, True)

    def run(self, context: RankContext) -> None:
        keys, arrays = context.bind(self.numbers, context.transport.reads_whole)
        results = context.transport.all_gather(keys, arrays, partial(context.name_of, self.numbers), self.on_host)
        context.transaction.commit_values(context.entries(self.numbers), results, same=True)


def all_gather(shared_vars: Any, nccl: bool = True) -> None:
    """Concatenate all ranks' values on every rank, along the first axis: ``x_r := concatenate([x_0, ..., x_{n-1}])``.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of shape ``(n_r,) + shape`` on rank r, where only the lengths ``n_r`` may differ between ranks. Afterwards,
        of shape ``(n_0 + ... + n_{n-1},) + shape`` on all ranks.
    nccl : bool
        Whether to use the GPU transport for variables on GPUs.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`. If a rank died, all survivors may have the new values; otherwise, no value has changed.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> x = theano.shared(np.zeros(0), "x")
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
        variables.check_count(i, variables.session.size, "all ranks' rows of")  # a broadcastable axis has 1 row
    variables.run(AllGather, not nccl)
