"""One rank's call to a function, on all its rows or slice by slice, with or without collectives inside."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any, Callable, ContextManager, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np

from .. import in_graph
from ..errors import ArgumentValueError
from ..partition import split_rows
from ..reductions import ReduceOp
from ..runtime.context import RankContext
from ..runtime.registry import Origin, SharedEntry, set_all
from ..selection import moved
from ..trace import point
from .division import Division, check_written
from .plan import CallMemory, CallPlan, RankPlan
from .slicing import LAST, in_slices


class Change:
    """New values of shared variables, returned by the graph instead of set by it; applying them cannot fail."""

    def __init__(self, entries: Sequence[SharedEntry], news: Sequence[Any]) -> None:
        self._entries, self._news = entries, news
        self._before = [entry.cell[0] for entry in entries]

    def __call__(self) -> None:
        set_all(self._entries, self._news)

    def undo(self) -> None:
        for entry, value in zip(self._entries, self._before):
            entry.set(value, Origin.UNDONE)


NOTHING = Change([], [])


class RankResult(NamedTuple):
    """A rank's results of a call; the changes of shared variables are still to be made.

    All outputs are None if the rank contributes no results. Gathered outputs have their axis of rows first. If the
    graph itself divides rows (`synkhronos.ops.shard`), the division contains the resulting weights.
    """

    outputs: List[Any]
    change: Any  # a `Change`; if one thread calls all ranks together, a function that makes the changes
    division: Division


def call(prepared: RankPlan, values: Sequence[Any], rows: Any, shared_rows: Any, context: RankContext) -> RankResult:
    """Call the function on this rank's rows; None for ``rows`` or ``shared_rows`` stands for the plan's rows."""
    plan, n_outputs, division = prepared.plan, len(prepared.plan.ops), prepared.plan.division
    if not prepared.pieces:
        return RankResult([None] * n_outputs, NOTHING, division)
    entry = context.registry.functions[plan.number]
    engine, compiled = entry.engine, entry.reference()

    def call_slice(i: int) -> Any:
        nonlocal division
        arguments = prepared.slice(i, values, rows, shared_rows, context)
        try:
            with inside(prepared, i, context) as collectives:
                results = engine.call(compiled, arguments, plan.wanted)
            if division.weights is None and collectives is not None and collectives.weights is not None:
                division = division._replace(weights=collectives.weights)
        except Exception as error:
            explain(error, plan, engine, context)
            raise
        for k, axis in prepared.moved:
            results[k] = moved(results[k], axis, 0)
        return results

    if plan.after_collective is not None:
        return RankResult(*_in_halves(call_slice, prepared, values, rows, shared_rows, context), division)
    if division.num_slices > 1:
        return RankResult(*_in_slices(call_slice, prepared, context), division)
    results = call_slice(0)
    if plan.replicated_updates is None:
        return RankResult(results, NOTHING, division)
    counts = division.takes_part(context.rank)
    outputs = results[:n_outputs] if counts else [None] * n_outputs
    chosen = [i for i, is_common in enumerate(plan.replicated_updates) if counts or is_common]
    return RankResult(outputs, change_of(plan, chosen, results[n_outputs:], context), division)


def _in_slices(call_slice: Callable[[int], Any], prepared: RankPlan, context: RankContext) -> Tuple[List[Any], Change]:
    """Call the function slice by slice; return the outputs and the `Change` that applies the accumulated updates."""
    plan, n_outputs = prepared.plan, len(prepared.plan.ops)
    entries = [context.registry.shareds[number] for number, _ in plan.updates]
    weights = [_weights_of_slice(prepared, i) for i in range(len(prepared.pieces))]
    random = [i for i, entry in enumerate(entries) if entry.engine.is_random(entry.reference())]
    updates = [
        (entry.label(f"updates[{i}]"), LAST if i in random else op)
        for i, (entry, (_, op)) in enumerate(zip(entries, plan.updates))
    ]

    def call_and_advance(i: int) -> Any:
        results = call_slice(i)
        for j in random:
            if weights[i][n_outputs + j] is not None:
                entries[j].set(results[n_outputs + j], Origin.FUNCTION)
        return results

    with _advanced(entries[i] for i in random):
        outputs, news = in_slices(
            call_and_advance,
            weights,
            list(zip(plan.labels, plan.ops)),
            updates,
            context.registry.functions[plan.number].engine.accumulator,
        )
    for i, (entry, new) in enumerate(zip(entries, news)):
        if new is not None and i not in random:
            variable = entry.reference()
            news[i] = entry.engine.to_device(variable, new)
            if isinstance(news[i], np.ndarray):  # a value on the device already has the graph's type
                news[i] = entry.engine.coerce(variable, news[i], f"the update of {entry.label(f'updates[{i}]')}")
    return outputs, change_of(plan, [i for i, new in enumerate(news) if new is not None], news, context)


@contextmanager
def _advanced(entries: Iterable[SharedEntry]) -> Iterator[None]:
    """Allow random states to advance from slice to slice in the block; on exit, restore the initial states."""
    before = [(entry, entry.cell[0]) for entry in entries]
    try:
        yield
    finally:
        for entry, state in before:
            entry.set(state, Origin.UNDONE)


def _in_halves(
    call_slice: Callable[[int], Any],
    prepared: RankPlan,
    values: Sequence[Any],
    rows: Any,
    shared_rows: Any,
    context: RankContext,
) -> Tuple[List[Any], Change]:
    """Run an exact function's graph slice by slice up to the split point, and the rest of the graph once."""
    plan = prepared.plan
    half: Any = plan.after_collective
    entries = [context.registry.shareds[number] for number, _ in plan.updates]
    random = [i for i, entry in enumerate(entries) if entry.engine.is_random(entry.reference())]
    n_outputs, n_parts, late = len(plan.ops), len(half.ops), {i for i, _ in half.outputs}
    results: List[Any] = []

    def call_and_advance(i: int) -> Any:
        results[:] = call_slice(i)
        if prepared.pieces[i][0]:
            for j, state in zip(random, results[n_outputs + n_parts :]):
                entries[j].set(state, Origin.FUNCTION)
        return results[: n_outputs + n_parts]

    own = [piece[0] or None for piece in prepared.pieces]
    weights = [[None if k in late else one for k in range(n_outputs)] + [one] * n_parts for one in own]
    function = context.registry.functions[half.number]
    engine, compiled = function.engine, function.reference()
    parts = [(f"part {i}", LAST if op is None else op) for i, op in enumerate(half.ops)]
    with _advanced(entries[i] for i in random):
        outputs, news = in_slices(
            call_and_advance, weights, list(zip(plan.labels, plan.ops)), parts, engine.accumulator
        )
        states = [entries[i].cell[0] for i in random]
    last = len(prepared.pieces) - 1
    # A rank without rows passes values of the right shape, which do not count.
    given = [results[n_outputs + k] if new is None else new for k, new in enumerate(news)]
    arguments = prepared.slice(last, values, rows, shared_rows, context) + given
    counts = plan.division.takes_part(context.rank)
    n_news = len(entries) - len(random)
    chosen = [*(k for _, k in half.outputs), *range(half.n_outputs, half.n_outputs + n_news)]
    with CollectivesOfCall(plan, plan.division.weights, prepared.rows[last], context):
        found = engine.call(compiled, arguments, chosen)
    for (i, _), output in zip(half.outputs, found):
        outputs[i] = output if counts else None
    after: List[Any] = [None] * len(entries)
    for i, state in zip(random, states):
        after[i] = state
    others = [i for i in range(len(entries)) if i not in random]
    for i, new in zip(others, found[len(half.outputs) :]):
        after[i] = new
    common: Any = plan.replicated_updates
    return outputs, change_of(plan, [i for i in range(len(entries)) if counts or common[i]], after, context)


def _weights_of_slice(prepared: RankPlan, i: int) -> List[Optional[float]]:
    """Return the weight of each result of a slice: the number of rows on this rank or on all ranks; None if it is 0."""
    plan, own = prepared.plan, prepared.pieces[i][0] or None
    if plan.replicated_updates is None:
        return [own] * (len(plan.ops) + len(plan.updates))
    of_ranks = prepared.weights[i]
    of_all = None if of_ranks is None else sum(of_ranks)  # None if no rank has rows in this slice
    return [own] * len(plan.ops) + [of_all if is_common else own for is_common in plan.replicated_updates]


def change_of(plan: CallPlan, chosen: Sequence[int], news: Sequence[Any], context: RankContext) -> Change:
    entries, values = [context.registry.shareds[plan.updates[i][0]] for i in chosen], [news[i] for i in chosen]
    if plan.on_device:
        values = [entry.engine.to_device(entry.reference(), value) for entry, value in zip(entries, values)]
    return Change(entries, values)


class RowsOfCall(in_graph.CurrentCall):
    """The rank's rows in a call that only computes output shapes: collectives return their inputs unchanged."""

    reduces = False

    def __init__(
        self,
        plan: CallPlan,
        weights: Optional[Sequence[float]],
        rows: Optional[Tuple[int, int, int]],
        context: RankContext,
    ) -> None:
        self.plan, self.weights, self.rows, self.context = plan, weights, rows, context

    def share(self, length: int) -> Tuple[int, int]:
        if self.rows is None:  # no input was scattered, so this array determines the rows of the call
            check_written(self.plan.rows, length)
            bounds = split_rows(length, self.context.size, self.context.root)
            self.weights = [end - begin for begin, end in bounds]
            begin, end = bounds[self.context.rank]
            self.rows = (begin, end, length) if begin < end else (0, min(1, length), length)  # a row of weight 0
        begin, end, n_all = self.rows
        if length != n_all:
            raise ArgumentValueError(
                f"synkhronos.ops.shard in function {self.plan.name}",
                f"an array of length {n_all}, like the other arrays that the call divides over the ranks",
                f"length {length}",
            )
        return begin, end

    def all_reduce(self, number: int, op: ReduceOp, arrays: Sequence[Any]) -> List[Any]:
        return list(arrays)


class CollectivesOfCall(RowsOfCall):
    """The collectives inside one call, executed by the rank's transport."""

    reduces = True

    @point("collective")
    def all_reduce(self, number: int, op: ReduceOp, arrays: Sequence[Any]) -> List[Any]:
        function, context, nbytes = self.plan.number, self.context, 0
        traffic = context.transport.traffic
        begun = traffic.begin()
        results = context.transport.all_reduce_values(
            ("function", function, number, op.name),
            arrays,
            op,
            self.weights,
            lambda: f"all_reduce {number} ({op}) inside function {self.plan.name}",
        )
        traffic.end("ops.all_reduce", begun)
        context.transaction.drop_undo_log()
        for array in results:
            nbytes += array.size * array.dtype.itemsize  # (arrays on a device have no nbytes)
        context.kept(CallMemory).bytes_inside[function, number] = nbytes
        return results

    def note_reduced(self, number: int, nbytes: int) -> None:
        context = self.context
        traffic, moved = context.transport.traffic, nbytes * (context.size - 1) / context.size
        begun = traffic.begin()
        traffic.add(moved, moved)
        traffic.end("ops.all_reduce", begun)
        context.transaction.drop_undo_log()
        context.kept(CallMemory).bytes_inside[self.plan.number, number] = nbytes


def inside(
    prepared: RankPlan, i: int, context: RankContext, kind: Type[RowsOfCall] = CollectivesOfCall
) -> ContextManager[Any]:
    """Return a context manager that gives the graph's operations access to slice i's rows and to the other ranks."""
    if prepared.plan.replicated_updates is None:
        return nullcontext()
    return kind(prepared.plan, prepared.weights[i], prepared.rows[i], context)


def explain(error: Exception, plan: CallPlan, engine: Any, context: RankContext) -> None:
    """Raise a `MemoryError` with a remedy if the error means that the device is out of memory."""
    if engine.is_out_of_memory(error):
        first = str(error).split("\n")[0]
        raise MemoryError(
            f"rank {context.rank} ran out of device memory in function {plan.name} ({first}): call it with "
            f"num_slices={2 * plan.division.num_slices}, or with fewer rows"
        ) from error
