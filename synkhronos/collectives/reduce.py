"""`synkhronos.reduce`."""

from __future__ import annotations

from typing import Any, List, Optional

import numpy as np

from ..reductions import ReduceOp
from ..runtime.command import Command
from ..runtime.context import RankContext
from .variables import Variables, describe, keep, keys_and_arrays


class Reduce(Command):
    """Reduce variables over the ranks, for the master."""

    def __init__(self, numbers: List[int], op: ReduceOp, in_place: bool) -> None:
        self.numbers, self.op, self.in_place = numbers, op, in_place

    def run(self, context: RankContext) -> Optional[List[np.ndarray]]:
        keys, arrays = keys_and_arrays(context, self.numbers)
        results = context.transport.reduce(
            keys, arrays, [self.op] * len(keys), None, describe(context, self.numbers), in_place=self.in_place
        )
        if not self.in_place:
            return None if results is None else [np.asarray(result) for result in results]
        keep(context, self.numbers, [None] * len(keys) if results is None else results)
        return None


def reduce(shared_vars: Any, op: str = "avg", in_place: bool = True, nccl: bool = True) -> Any:
    """Reduce the variables over all ranks, for the master: ``x_root := op(x_0, ..., x_{n-1})``.

    The other ranks keep their values.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of the same shape and dtype on all ranks.
    op : str
        ``avg``, ``sum``, ``prod``, ``min`` or ``max``; with the prefix ``c_`` through the CPU.
    in_place : bool
        Whether the result becomes the master's value; else it is returned, and the master keeps its value, too.
    nccl : bool
        Whether to use the GPU transport for variables that live on GPUs.

    Returns
    -------
    None, array or list of arrays
        The results, where ``in_place`` is False; one alone for a variable alone.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        Where an argument is wrong, or shapes differ between ranks; no value has changed then.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano
    >>> synk.fork(2)
    2
    >>> w = theano.shared(np.zeros(2), "w")
    >>> total = synk.function([], w.sum())
    >>> synk.set_value(1, w, [2., 6.])
    >>> synk.reduce(w, op="sum", in_place=False)
    array([2., 6.])
    >>> synk.reduce(w)                          # the average, into the master's variable
    >>> w.get_value(), synk.get_value(1, w)
    (array([1., 3.]), array([2., 6.]))
    """
    variables = Variables(shared_vars)
    session = variables.session
    results = session.run(Reduce(variables.numbers, variables.check_op(op, nccl), bool(in_place)))[session.root]
    return None if in_place else variables.one_or_list(results)
