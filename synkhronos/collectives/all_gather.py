"""`synkhronos.all_gather`."""

from __future__ import annotations

from typing import Any, List

from ..runtime.command import Command
from ..runtime.context import RankContext
from .variables import Variables, describe, keep, keys_and_arrays


class AllGather(Command):
    """Give every rank the concatenation of all ranks' values."""

    def __init__(self, numbers: List[int], on_host: bool) -> None:
        self.numbers, self.on_host = numbers, on_host

    def run(self, context: RankContext) -> None:
        keys, arrays = keys_and_arrays(context, self.numbers)
        keep(
            context,
            self.numbers,
            context.transport.all_gather(keys, arrays, describe(context, self.numbers), self.on_host),
        )


def all_gather(shared_vars: Any, nccl: bool = True) -> None:
    """Give every rank the concatenation of all: ``x_r := concatenate([x_0, ..., x_{n-1}])``, along the first axis.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of at least 1 dimension; lengths may differ between ranks, other dimensions may not.
    nccl : bool
        Whether to use the GPU transport for variables that live on GPUs.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        Where an argument is wrong, or shapes do not fit; no value has changed then.

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
    variables = Variables(shared_vars)
    variables.check_rows("use gather to see every rank's value")
    for i in range(len(variables.numbers)):
        variables.check_count(i, variables.session.size, "the rows of all ranks of")  # each has 1 where 1 is required
    variables.session.run(AllGather(variables.numbers, not nccl))
