"""`synkhronos.all_reduce`."""

from __future__ import annotations

from typing import Any, List, Literal, Optional, Sequence, overload

from ..reductions import ReduceOp
from ..runtime.context import RankContext
from ..transports.base import Mix
from .arguments import checked
from .command import CollectiveCommand
from .exchange import Exchange, parse_exchange
from .mixing import parse_mixes
from .started import Started, check_not_started, start, start_key


class AllReduce(CollectiveCommand):
    """Reduce variables over the ranks and overwrite them, or others, on every rank.

    Parameters
    ----------
    numbers : list of int
        What is reduced.
    op : ReduceOp
    mixes : sequence of Mix
    into : list of int, optional
        What takes the results; the variables themselves by default.
    started : bool
        Whether to reduce the values that `Start` has found, instead of those that there are.
    exchange : Exchange, optional
        How they travel, if not as they are.
    """

    title = "all_reduce"

    def __init__(
        self,
        numbers: List[int],
        op: ReduceOp,
        mixes: Sequence[Mix],
        into: Optional[List[int]] = None,
        started: bool = False,
        exchange: Optional[Exchange] = None,
    ) -> None:
        super().__init__(numbers)
        self.op, self.mixes, self.into, self.started, self.exchange = op, mixes, into, started, exchange
        self.repeats = not started  # what was found then is a rank's own

    def run(self, context: RankContext) -> None:
        into = self.into or self.numbers
        same = len(self.mixes) == 1 and self.mixes[0].takers is None
        begun = context.begun.pop(self.numbers[0], None) if self.started else None
        if begun is not None and self.exchange is not None:
            self.exchange.finish(context, self.numbers, into, begun, same)
            return
        if begun is not None:
            results = context.transport.finish(begun, [context.shareds[number].key for number in into])
            context.commit_values(into, results, same=same)
            return
        if self.started:
            keys = [start_key(context, number) for number in self.numbers]
            arrays = [context.started.pop(number) for number in self.numbers]
        else:
            keys, arrays = context.bind(self.numbers)
        if self.exchange is not None:
            self.exchange.all_reduce(context, self.numbers, into, keys, arrays, self.op, self.mixes, same)
            return
        targets = None
        if self.into is not None or self.started:
            targets = [context.shareds[number].key for number in into]
        if context.is_over_hosts and context.transport.meets_once(arrays):
            context.promise_early(None)
        name_of = context.name_of(self.numbers)
        results = context.transport.all_reduce(keys, arrays, self.op, self.mixes, name_of, targets)
        context.commit_values(into, results, same=same)

    def begin(self, context: RankContext) -> bool:
        """Have what the variables are now reduced while ranks do other things; return whether that is possible."""
        keys, arrays = context.bind(self.numbers)
        if self.exchange is not None:
            begun = self.exchange.begin(context, self.numbers, keys, arrays, self.op, self.mixes)
        else:
            name_of = context.name_of(self.numbers)
            begun = context.transport.begin(keys, arrays, self.op, self.mixes, name_of)
        if begun is not None:
            context.begun[self.numbers[0]] = begun
        return begun is not None

    def finish(self, results: List[Any], context: RankContext) -> None:
        """Return nothing: the results are where they belong."""

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

    Afterwards all ranks hold identical bits, but for groups and a matrix of weights. If something goes wrong, no value
    has changed; if a rank dies, the survivors hold either all the old values or all the new ones: results are computed
    beside the values, which takes as much memory again. float16 accumulates in float32; ``avg`` of integers is refused.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        Of the same shape ``shape`` and dtype on all ranks, and afterwards still of that shape.
    op : str
        ``avg``, ``sum``, ``prod``, ``min`` or ``max``; with the prefix ``c_`` through the CPU.
    nccl : bool
        Whether to use the GPU transport for variables that live on GPUs.
    weights : array or nested list of numbers, or Function, optional
        For ``avg``. Of shape ``(n_ranks,)``: one per rank, 0 or more, or the function whose last call says how many
        rows each rank took. A rank of weight 0 does not count. All weights are equal by default. Of shape
        ``(n_ranks, n_ranks)``: row r has the weights of rank r's result. Ranks with equal rows hold identical bits; one
        whose row has its own weight alone has its own value, to the bit.
    groups : list of lists of ranks, optional
        For ``avg``: every rank is in one group, and is given the average of its group. (If all weights of a group are
        0, they count the same.) With ``[host.ranks for host in synk.hosts()]`` nothing travels between hosts.
    into : shared variable, or list or tuple of them, optional
        Variables of the same types, one for each, that take the results; ``shared_vars`` by default.
    wait : bool
        If False, the values as they are now are taken, and the results arrive with ``wait()`` of what is returned,
        whatever the variables have become by then. One of a variable can be under way at a time. Between hosts, what is
        large travels meanwhile; else copies are made, and reduced at ``wait()``.
    exchange : str, optional
        ``"bfloat16"`` or ``"float16"``: values travel in 16 bits, for ``avg`` and ``sum``. They are added up in their
        own type, and the result is rounded once. Between ranks of one host nothing is gained by that. So if MPI reduces
        large values over several, those of each host are combined in their own type, and the host's value is rounded.
    feedback : bool, shared variable, or list or tuple of them, optional
        Whether what this rank's rounding has left out of a value is added to the value of its next exchange. (Of a
        host's value, each rank is given all of that for ``avg``, and an equal part of it for ``sum``.) With True every
        rank keeps it itself, by variable, until `close`, or until the value has another shape; a checkpoint does
        not have it, and a training that goes on from one loses what a single exchange leaves out. In variables of the
        same types instead, one for each, it can be saved; they should be 0 at first.

    Returns
    -------
    Started
        If ``wait`` is False; otherwise None.

    Raises
    ------
    StateError
        Before `fork`, or after `close`; or if one of a variable is under way, without ``wait`` or with feedback.
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

    Each rank takes the other's value (a permutation); then a step towards it:

    >>> synk.set_value(0, w, [0., 0.])
    >>> synk.all_reduce(w, weights=[[0, 1], [1, 0]])
    >>> synk.gather(w)
    array([[4., 6.],
           [0., 0.]])
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
        command = AllReduce(variables.numbers, parsed, mixes, targets, not wait, coded)
        if not wait:
            lists = [each if isinstance(each, (list, tuple)) else [each] for each in (into, feedback)]
            return start(variables, command, [each for some in lists for each in some])
        if coded is not None and coded.feedback is not None:
            check_not_started(variables)
        if key is not None:
            variables.keep(key, command)
    variables.session.run(command)
    return None
