"""`synkhronos.all_reduce`: reduce variables over the ranks, with the result on every rank."""

from __future__ import annotations

from typing import Any, List, Literal, Optional, Sequence, overload

from ..reductions import ReduceOp
from ..runtime.context import RankContext
from ..transports.base import Reduction
from .arguments import checked
from .command import CollectiveCommand
from .exchange import ExchangeCommand, parse_exchange
from .mixing import parse_mixes
from .started import PendingReductions, Started, check_not_started, start, start_key


class AllReduceCommand(CollectiveCommand):
    """Reduce variables over the ranks, by default in place. ``started``: reduce values that `StartReduction` saved."""

    title = "all_reduce"

    def __init__(
        self,
        numbers: List[int],
        op: ReduceOp,
        mixes: Sequence[Reduction],
        into: Optional[List[int]] = None,
        started: bool = False,
        exchange: Optional[ExchangeCommand] = None,
    ) -> None:
        super().__init__(numbers)
        self.op, self.mixes, self.into, self.started, self.exchange = op, mixes, into, started, exchange
        self.repeats = not started  # running the command consumes the saved values

    def run(self, context: RankContext) -> None:
        into = self.into or self.numbers
        same = len(self.mixes) == 1 and self.mixes[0].destinations is None
        pending = context.kept(PendingReductions) if self.started else None
        begun = None if pending is None else pending.begun.pop(self.numbers[0], None)
        if begun is not None and self.exchange is not None:
            self.exchange.finish(context, self.numbers, into, begun, same)
            return
        if begun is not None:
            results = context.transport.finish(begun, [context.registry.shareds[number].key for number in into])
            context.transaction.commit_values(context.entries(into), results, same=same)
            return
        if pending is not None:
            keys = [start_key(context, number) for number in self.numbers]
            arrays = [pending.copies.pop(number) for number in self.numbers]
        else:
            keys, arrays = context.bind(self.numbers)
        if self.exchange is not None:
            self.exchange.all_reduce(context, self.numbers, into, keys, arrays, self.op, self.mixes, same)
            return
        targets = None
        if self.into is not None or self.started:
            targets = [context.registry.shareds[number].key for number in into]
        if context.transport.completes_in_one_round(arrays, self.mixes):
            context.transaction.promise(ahead=2)
        name_of = context.name_of(self.numbers)
        results = context.transport.all_reduce(keys, arrays, self.op, self.mixes, name_of, targets)
        context.transaction.commit_values(context.entries(into), results, same=same)

    def begin(self, context: RankContext) -> bool:
        """Start reducing the current values in the background; return whether the transport supports this."""
        keys, arrays = context.bind(self.numbers)
        if self.exchange is not None:
            begun = self.exchange.begin(context, self.numbers, keys, arrays, self.op, self.mixes)
        else:
            name_of = context.name_of(self.numbers)
            begun = context.transport.begin(keys, arrays, self.op, self.mixes, name_of)
        if begun is not None:
            context.kept(PendingReductions).begun[self.numbers[0]] = begun
        return begun is not None

    def finish(self, results: List[Any], context: RankContext) -> None:
        """Return None, because the results are in the variables."""

    def details(self, context: RankContext) -> str:
        return f"{super().details(context)} {self.op}"


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
        mixes = parse_mixes(weights, groups, parsed, variables.session, into is None and wait)
        targets = None if into is None else variables.check_targets(into, "into")
        coded = parse_exchange(exchange, feedback, variables, parsed, targets or ())
        command = AllReduceCommand(variables.numbers, parsed, mixes, targets, not wait, coded)
        if not wait:
            lists = [each if isinstance(each, (list, tuple)) else [each] for each in (into, feedback)]
            return start(variables, command, [each for some in lists for each in some])
        if coded is not None and coded.feedback is not None:
            check_not_started(variables)
        if key is not None:
            variables.cache(key, command)
    variables.session.run(command)
    return None
