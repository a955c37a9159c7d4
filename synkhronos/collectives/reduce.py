"""`synkhronos.reduce`."""

from __future__ import annotations

from typing import Any, List, Optional

import numpy as np

from ..reductions import ReduceOp
from ..runtime.context import RankContext
from ..transports.base import Mix
from .arguments import checked
from .command import CollectiveCommand


class Reduce(CollectiveCommand):
    """Reduce variables over the ranks, for the master."""

    title = "reduce"

    def __init__(self, numbers: List[int], op: ReduceOp, in_place: bool) -> None:
        super().__init__(numbers)
        self.op, self.in_place = op, in_place

    def run(self, context: RankContext) -> Optional[List[np.ndarray[Any, Any]]]:
        keys, arrays = context.bind(self.numbers)
        transport, name_of = context.transport, context.name_of(self.numbers)
        if self.in_place:
            pending = transport.all_reduce(keys, arrays, self.op, [Mix(takers=(context.root,))], name_of)
            context.commit_values(self.numbers, pending)
            return None
        results = transport.reduce(keys, arrays, [self.op] * len(keys), None, name_of)
        return None if results is None else [np.asarray(result) for result in results]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]

    def details(self, context: RankContext) -> str:
        return f"{super().details(context)} {self.op}"


def reduce(shared_vars: Any, op: str = "avg", in_place: bool = True, nccl: bool = True) -> Any:
    """Reduce the variables over all ranks, for the master: ``x_root := op(x_0, ..., x_{n-1})``.

    The other ranks keep their values.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of the same shape ``shape`` and dtype on all ranks.
    op : str
        ``avg``, ``sum``, ``prod``, ``min`` or ``max``; with the prefix ``c_`` through the CPU.
    in_place : bool
        Whether the result becomes the master's value; otherwise it is returned, and the master also keeps its value.
    nccl : bool
        Whether to use the GPU transport for variables that live on GPUs.

    Returns
    -------
    None, array of shape ``shape``, or list of these
        The results, if ``in_place`` is False: a list if a list of variables was given. None otherwise.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        If an argument is wrong, or shapes differ between ranks; no value has changed then.
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
    >>> synk.set_value(1, w, [2., 6.])
    >>> synk.reduce(w, op="sum", in_place=False)
    array([2., 6.])
    >>> synk.reduce(w)                          # the average, into the master's variable
    >>> w.get_value(), synk.get_value(1, w)
    (array([1., 3.]), array([2., 6.]))
    """
    variables = checked(shared_vars)
    session = variables.session
    results = session.run(Reduce(variables.numbers, variables.check_op(op, nccl), bool(in_place)))
    return None if in_place else variables.one_or_list(results)
