"""`synkhronos.reduce`: reduce variables over the ranks, with the result on the master."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Optional

import numpy as np

from ..reductions import ReduceOp
from ..runtime.context import RankContext
from ..transports.strategy import Reduction, Weighting
from .arguments import checked
from .command import CollectiveCommand, Joint


class Reduce(CollectiveCommand):
    """Reduce variables over the ranks, with the result on the master."""

    title = "reduce"

    def __init__(self, numbers: List[int], op: ReduceOp, in_place: bool) -> None:
        super().__init__(numbers)
        self.op, self.in_place = op, in_place

    def run(self, context: RankContext) -> Optional[List[np.ndarray[Any, Any]]]:
        keys, arrays = context.bind(self.numbers)
        transport, name_of = context.transport, partial(context.name_of, self.numbers)
        if self.in_place:
            pending = transport.all_reduce(keys, arrays, self._to_root(context), name_of)
            context.transaction.commit_values(context.entries(self.numbers), pending)
            return None
        results = transport.reduce(keys, arrays, [self.op] * len(keys), None, name_of)
        return None if results is None else [np.asarray(result) for result in results]

    def _to_root(self, context: RankContext) -> Reduction:
        return Reduction(self.op, (Weighting(destinations=(context.root,)),))

    def joint(self, context: RankContext) -> Optional[Joint]:
        reduction = self._to_root(context)
        if self.op.on_host:
            return None
        return Joint(
            "all_reduce", reduction, self.numbers if self.in_place else None, False, reduction.others(context.size)
        )

    def answer(self, results: Any, context: RankContext) -> Any:
        return [np.asarray(of_ranks[context.root]) for of_ranks in results]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]

    def details(self, context: RankContext) -> str:
        return f"{super().details(context)} {self.op}"


def reduce(shared_vars: Any, op: str = "avg", in_place: bool = True, nccl: bool = True) -> Any:
    """Reduce the variables over all ranks, with the result on the master: ``x_root := op(x_0, ..., x_{n-1})``.

    The other ranks' values do not change.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of the same shape ``shape`` and dtype on all ranks.
    op : str
        ``avg``, ``sum``, ``prod``, ``min`` or ``max``; the prefix ``c_`` selects the CPU transport.
    in_place : bool
        True: overwrite the master's value. False: return the result instead.
    nccl : bool
        Whether to use the GPU transport for variables on GPUs.

    Returns
    -------
    None, array of shape ``shape``, or list of these
        If ``in_place`` is False, the result, or a list of results for a list of variables. Otherwise None.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`. If a rank died, the master may have the new values; otherwise, no value has changed.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> w = theano.shared(np.zeros(2), "w")
    >>> synk.set_value(w, [2., 6.], rank=1)
    >>> synk.reduce(w, op="sum", in_place=False)
    array([2., 6.])
    >>> synk.reduce(w)                          # the average, into the master's variable
    >>> w.get_value(), synk.get_value(w, rank=1)
    (array([1., 3.]), array([2., 6.]))
    """
    variables = checked(shared_vars)
    results = variables.run(Reduce, variables.check_op(op, nccl), bool(in_place))
    return None if in_place else variables.one_or_list(results)
