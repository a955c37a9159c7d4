"""`synkhronos.all_reduce`: reduce variables over the ranks, with the result on every rank."""

from __future__ import annotations

from functools import partial
from typing import Any, List, Literal, Optional, overload

from ..runtime.context import RankContext
from ..transports.strategy import Reduction
from .arguments import checked
from .command import CollectiveCommand, Joint
from .exchange import ErrorFeedback, parse_exchange
from .mixing import parse_weights
from .started import PendingReductions, Started, check_not_started, start


class AllReduceCommand(CollectiveCommand):
    """Reduce variables over the ranks, by default in place. ``started``: reduce values that `StartReduction` saved."""

    title = "all_reduce"

    def __init__(
        self,
        numbers: List[int],
        reduction: Reduction,
        into: Optional[List[int]] = None,
        started: bool = False,
        feedback: Optional[ErrorFeedback] = None,
    ) -> None:
        super().__init__(numbers)
        self.reduction, self.into, self.started, self.feedback = reduction, into, started, feedback
        self.same = reduction.is_for_all  # whether all ranks receive the same results
        self.repeats = not started  # running the command consumes the saved values

    def run(self, context: RankContext) -> None:
        transport, reduction, feedback = context.transport, self.reduction, self.feedback
        into = context.entries(self.into or self.numbers)
        errors: List[Any] = []
        targets: Any = None
        if self.into or self.started or feedback:
            targets = [entry.key for entry in into]
        if self.started:
            state, kinds = context.kept(PendingReductions).started.pop(self.numbers[0])
            errors = [] if feedback is None else feedback.places(context, self.numbers, kinds)
            results = transport.finish(state, targets, errors)
        else:
            is_moved = bool(self.into or feedback) or transport.reads_whole
            keys, arrays = context.bind(self.numbers, is_moved)
            if feedback is not None:
                errors = feedback.places(context, self.numbers, [(array.shape, array.dtype) for array in arrays])
                keys, arrays = feedback.add(context, self.numbers, keys, arrays)
            name_of, promise = partial(context.name_of, self.numbers), partial(context.transaction.promise, ahead=2)
            results = transport.all_reduce(keys, arrays, reduction, name_of, targets, errors, promise)
        if feedback is None:
            context.transaction.commit_values(into, results, same=self.same)
        else:
            feedback.commit(context, self.numbers, into, results, errors, self.same)

    def joint(self, context: RankContext) -> Optional[Joint]:
        reduction, into = self.reduction, self.into or self.numbers
        if self.started or self.feedback or reduction.op.on_host:
            return None
        return Joint("all_reduce", reduction, into, self.same, reduction.others(context.size))

    def finish(self, results: List[Any], context: RankContext) -> None:
        """Return None, because the results are in the variables."""

    def details(self, context: RankContext) -> str:
        return f"{super().details(context)} {self.reduction.op}"


@overload
def all_reduce(
    shared_vars: Any,
    op: str = ...,
    nccl: bool = ...,
    *,
    weights: Any = ...,
    groups: Any = ...,
    into: Any = ...,
    wait: Literal[False],
    exchange: Optional[str] = ...,
    feedback: Any = ...,
) -> Started: ...


@overload
def all_reduce(
    shared_vars: Any,
    op: str = ...,
    nccl: bool = ...,
    *,
    weights: Any = ...,
    groups: Any = ...,
    into: Any = ...,
    wait: bool = ...,
    exchange: Optional[str] = ...,
    feedback: Any = ...,
) -> Optional[Started]: ...


def all_reduce(
    shared_vars: Any,
    op: str = "avg",
    nccl: bool = True,
    *,
    weights: Any = None,
    groups: Any = None,
    into: Any = None,
    wait: bool = True,
    exchange: Optional[str] = None,
    feedback: Any = None,
) -> Optional[Started]:
    """Reduce the variables over all ranks and overwrite them on every rank: ``x_r := op(x_0, ..., x_{n-1})``.

    Afterwards, all ranks have bit-identical values, except with groups or a matrix of weights. The results are computed
    in separate memory of the same size, so a failed call changes no value. float16 is accumulated in float32.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of the same shape and dtype on all ranks; the result keeps both.
    op : str
        ``avg`` (not for integers), ``sum``, ``prod``, ``min`` or ``max``; the prefix ``c_`` selects the CPU transport.
    nccl : bool
        Whether to use the GPU transport for variables on GPUs.
    weights : array or nested list of numbers, or Function, optional
        For ``avg``; equal by default. Shape ``(n_ranks,)``: one weight per rank, 0 or more. Ranks with weight 0 are
        ignored. A function stands for the number of rows of each rank in the function's last call. Shape ``(n_ranks,
        n_ranks)``: row ``weights[r]`` determines rank r's result. Ranks with equal rows get bit-identical results. If
        the only nonzero weight in a rank's row is its own, the rank keeps its value, bit for bit.
    groups : list of lists of ranks, optional
        For ``avg``: average within each group. Every rank belongs to exactly one group. If all weights of a group are
        0, its ranks are weighted equally. With ``[host.ranks for host in synk.hosts()]``, hosts exchange no data.
    into : shared variable, or list or tuple of them, optional
        Variables of the same types that receive the results; ``shared_vars`` by default.
    wait : bool
        False: non-blocking. Reduce the current values, and return an object whose ``wait()`` stores the results, even
        if the variables have changed meanwhile. Each variable can have one pending reduction. Between hosts, large
        values are sent in the background. All other values are copied now and reduced in ``wait()``.
    exchange : str, optional
        ``"bfloat16"`` or ``"float16"``: send values in 16 bits, for ``avg`` and ``sum``. They are accumulated in their
        own dtype, and the result is rounded once. There is no speedup on a single host. If MPI reduces large values
        over hosts, each host first combines its values in their own dtype and rounds the result.
    feedback : bool, shared variable, or list or tuple of them, optional
        Error feedback: add this rank's rounding error to its next exchange. A host's error is added only once: each of
        its ranks keeps the whole error for ``avg``, or an equal part for ``sum``. True: every rank stores the error
        until `close`, or until the shape changes; checkpoints do not include it. Variables of the same types, initially
        0: these variables store the errors, and can be saved.

    Returns
    -------
    Started
        If ``wait`` is False; otherwise None.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`. If a rank died, all survivors may have the new values; otherwise, no value has changed.
        ValueError: shapes differ between ranks. StateError: with ``wait=False`` or feedback, a variable has a pending
        reduction.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> w = theano.shared(np.zeros(2), "w")
    >>> synk.set_value(w, [2., 6.], rank=1)
    >>> synk.all_reduce(w, op="avg")
    >>> w.get_value()
    array([1., 3.])

    Ranks that processed more rows of an uneven batch have a greater weight:

    >>> x = theano.tensor.dvector("x")
    >>> learn = synk.function([x], x.mean(), updates=[(w, w + x.mean())])
    >>> learn([1., 2., 6.])                     # two rows for rank 0, one for rank 1
    array(3.)
    >>> synk.all_reduce(w, weights=learn)
    >>> w.get_value()                           # 1 and 3, plus the mean of all three rows
    array([4., 6.])

    A matrix of weights moves each rank a quarter of the way to the other:

    >>> synk.set_value(w, [0., 0.], rank=1)
    >>> synk.all_reduce(w, weights=[[3, 1], [1, 3]])
    >>> synk.gather(w)
    array([[3. , 4.5],
           [1. , 1.5]])
    """
    variables = checked(shared_vars)
    is_plain = weights is groups is into is exchange is feedback is None and wait and type(op) is str
    key = ("all_reduce", op, bool(nccl)) if is_plain else None
    command = None if key is None else variables.commands.get(key)
    if command is None:
        parsed = variables.check_op(op, nccl)
        results = parse_weights(weights, groups, parsed, variables.session, into is None and wait)
        targets = None if into is None else variables.check_targets(into, "into")
        errors = parse_exchange(exchange, feedback, variables, parsed, targets or ())
        reduction = Reduction(parsed, results, exchange, errors is not None)
        command = AllReduceCommand(variables.numbers, reduction, targets, not wait, errors)
        if not wait:
            lists = [each if isinstance(each, (list, tuple)) else [each] for each in (into, feedback)]
            return start(variables, command, [each for some in lists for each in some])
        if errors is not None:
            check_not_started(variables)
        if key is not None:
            variables.cache(key, command)
    variables.session.run(command)
    return None
