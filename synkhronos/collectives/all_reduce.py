"""`synkhronos.all_reduce`."""

from __future__ import annotations

import sys
from typing import Any, List, Optional

import numpy as np

from ..functions.function import Function
from ..reductions import ReduceOp
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.session import Session
from .variables import Variables, describe, keep, keys_and_arrays


class AllReduce(Command):
    """Reduce variables over the ranks and overwrite them on every rank."""

    def __init__(self, numbers: List[int], op: ReduceOp, weights: Optional[List[float]]) -> None:
        self.numbers, self.op, self.weights = numbers, op, weights

    def run(self, context: RankContext) -> None:
        keys, arrays = keys_and_arrays(context, self.numbers)
        results = context.transport.all_reduce(keys, arrays, self.op, self.weights, describe(context, self.numbers))
        keep(context, self.numbers, results)


def all_reduce(shared_vars: Any, op: str = "avg", nccl: bool = True, *, weights: Any = None) -> None:
    """Reduce the variables over all ranks and overwrite them on every rank: ``x_r := op(x_0, ..., x_{n-1})``.

    Afterwards all ranks hold identical bits. Where anything goes wrong, every rank keeps its value.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of the same shape and dtype on all ranks.
    op : str
        ``avg``, ``sum``, ``prod``, ``min`` or ``max``; with the prefix ``c_`` through the CPU.
    nccl : bool
        Whether to use the GPU transport for variables that live on GPUs.
    weights : list of numbers, or Function, optional
        For ``avg``: one per rank, 0 or more, or the function whose last call tells how many rows each rank took.
        A rank of weight 0 does not count. All weights are equal by default.

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
    >>> synk.all_reduce(w, op="avg")
    >>> w.get_value()
    array([1., 3.])

    Ranks that took more rows of an uneven batch count for more:

    >>> x = theano.tensor.dvector("x")
    >>> learn = synk.function([x], x.mean(), updates=[(w, w + x.mean())])
    >>> learn([1., 2., 6.])                     # two rows for rank 0, one for rank 1
    array(3.)
    >>> synk.all_reduce(w, weights=learn)
    >>> w.get_value()                           # 1 and 3, plus the mean of all three rows
    array([4., 6.])
    """
    variables = Variables(shared_vars)
    parsed = variables.check_op(op, nccl)
    variables.session.run(AllReduce(variables.numbers, parsed, parse_weights(weights, parsed, variables.session)))


def parse_weights(weights: Any, op: ReduceOp, session: Session) -> Optional[List[float]]:
    """Return one weight per rank, or None where all are equal."""
    if weights is None:
        return None
    if op.name != "avg":
        raise ValueError(f"weights: only op 'avg' has weights, got op {str(op)!r}")
    if isinstance(weights, Function):
        rows_taken = weights.rows_taken(session)
        if rows_taken is None:
            raise ValueError(
                "weights: the function has not been called in this session, so no rank has taken rows: "
                "call it first, or give numbers"
            )
        return [float(rows) for rows in rows_taken]
    if not isinstance(weights, (list, tuple, np.ndarray)) or isinstance(weights, np.ndarray) and weights.ndim != 1:
        raise TypeError(f"weights: expected one number per rank or a synkhronos Function, got {weights!r}")
    if len(weights) != session.size:
        raise ValueError(f"weights: expected {session.size}, one per rank, got {len(weights)}")
    for rank, weight in enumerate(weights):
        if isinstance(weight, (bool, np.bool_)) or not isinstance(weight, (int, float, np.integer, np.floating)):
            raise TypeError(f"weights[{rank}] must be a number, got {weight!r} of type {type(weight).__name__}")
        if not 0 <= weight <= sys.float_info.max:
            raise ValueError(f"weights[{rank}] must be finite and not negative, got {weight!r}")
    if not any(weights):
        raise ValueError(f"weights: at least one must be positive, got {weights!r}")
    return [float(weight) for weight in weights]
