"""`synkhronos.all_reduce`."""

from __future__ import annotations

import sys
from typing import Any, List, Optional

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import ReduceOp
from ..runtime.context import RankContext
from ..runtime.session import Session
from .arguments import checked
from .command import CollectiveCommand


class AllReduce(CollectiveCommand):
    """Reduce variables over the ranks and overwrite them on every rank."""

    title = "all_reduce"

    def __init__(self, numbers: List[int], op: ReduceOp, weights: Optional[List[float]]) -> None:
        super().__init__(numbers)
        self.op, self.weights = op, weights

    def run(self, context: RankContext) -> None:
        keys, arrays = context.bind(self.numbers)
        results = context.transport.all_reduce(keys, arrays, self.op, self.weights, context.name_of(self.numbers))
        context.commit_values(self.numbers, results, same=True)

    def finish(self, results: List[Any], context: RankContext) -> None:
        """Return nothing: the results are where they belong."""

    def details(self, context: RankContext) -> str:
        return f"{super().details(context)} {self.op}"


def all_reduce(shared_vars: Any, op: str = "avg", nccl: bool = True, *, weights: Any = None) -> None:
    """Reduce the variables over all ranks and overwrite them on every rank: ``x_r := op(x_0, ..., x_{n-1})``.

    Afterwards all ranks hold identical bits. If something goes wrong, no value has changed; if a rank dies, the
    survivors hold either all the old values or all the new ones: results are computed beside the values, which takes as
    much memory again. float16 accumulates in float32; ``avg`` of integers is refused.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of the same shape ``shape`` and dtype on all ranks, and afterwards still of that shape.
    op : str
        ``avg``, ``sum``, ``prod``, ``min`` or ``max``; with the prefix ``c_`` through the CPU.
    nccl : bool
        Whether to use the GPU transport for variables that live on GPUs.
    weights : sequence of numbers of shape ``(n_ranks,)``, or Function, optional
        For ``avg``: one per rank, 0 or more, or the function whose last call says how many rows each rank took.
        A rank of weight 0 does not count. All weights are equal by default.

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
    variables = checked(shared_vars)
    key = ("all_reduce", op, bool(nccl)) if weights is None and type(op) is str else None
    command = None if key is None else variables.commands.get(key)
    if command is None:
        parsed = variables.check_op(op, nccl)
        command = AllReduce(variables.numbers, parsed, parse_weights(weights, parsed, variables.session))
        if key is not None:
            variables.keep(key, command)
    variables.session.run(command)


def parse_weights(weights: Any, op: ReduceOp, session: Session) -> Optional[List[float]]:
    """Return one weight per rank, or None if all are equal.

    Raises
    ------
    TypeError, ValueError
        If they are not one finite number per rank, or the op is not ``avg``, or the function has not been called.
    """
    if weights is None:
        return None
    if op.name != "avg":
        raise ArgumentValueError("weights", "op 'avg', the only one that has weights", f"op {str(op)!r}")
    if hasattr(weights, "rows_taken"):  # a synkhronos Function
        rows_taken = weights.rows_taken(session)
        if rows_taken is None:
            raise ArgumentValueError(
                "weights",
                "a function that has been called in this session, so that its ranks have taken rows",
                "one that has not been called",
                "call it first, or give numbers",
            )
        return [float(rows) for rows in rows_taken]
    if not isinstance(weights, (list, tuple, np.ndarray)) or isinstance(weights, np.ndarray) and weights.ndim != 1:
        raise ArgumentTypeError("weights", "one number per rank or a synkhronos Function", repr(weights))
    if len(weights) != session.size:
        raise ArgumentValueError("weights", f"{session.size}, one per rank", str(len(weights)))
    for rank, weight in enumerate(weights):
        if isinstance(weight, (bool, np.bool_)) or not isinstance(weight, (int, float, np.integer, np.floating)):
            raise ArgumentTypeError(f"weights[{rank}]", "a number", f"{weight!r} of type {type(weight).__name__}")
        number = weight.item() if isinstance(weight, np.generic) else weight  # (NumPy 2 compares in weight's own type)
        if not 0 <= number <= sys.float_info.max:
            raise ArgumentValueError(f"weights[{rank}]", "a finite number, not negative", repr(weight))
    if not any(weights):
        raise ArgumentValueError("weights", "at least one positive number", repr(weights))
    return [float(weight) for weight in weights]
