"""One rank's call to a function, on all its rows or slice by slice, with or without collectives inside."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .. import in_graph
from ..errors import ArgumentValueError, prefixed
from ..kernels.copy import copy_into
from ..partition import split_rows
from ..reductions import Accumulator, ReduceOp
from ..runtime.context import RankContext
from ..runtime.failures import add_note
from ..runtime.registry import Origin, SharedEntry, set_all
from ..selection import moved
from ..trace import point
from .division import Division, check_written
from .plan import CallPlan, RankPlan
from .rows_ahead import RowsAhead


class Change:
    """New values of shared variables, returned by the graph instead of set by it; applying them cannot fail."""

    _before: Sequence[Any] = ()
    _transport: Any = None
    _laid: Sequence[Tuple[SharedEntry, Any, Any]] = ()  # entries, values in common memory, memory for own copies

    def __init__(
        self,
        entries: Sequence[SharedEntry],
        news: Sequence[Any],
        alike: Sequence[bool] = (),
        divided: Sequence[bool] = (),
    ) -> None:
        self._entries, self._news, self._alike, self._divided = entries, news, alike, divided

    def __call__(self) -> None:
        set_all(self._entries, self._news)
        for entry, value, own in self._laid:
            if own is None:
                self._transport.swap_in(entry.key, value)
            else:  # the slot in this rank's memory stays, because it may be a deposit
                self._transport.common.swap_in(entry.key, value)
                copy_into(own, value)
            entry.common = value if own is None else None

    def lay(self, transport: Any) -> bool:
        """Copy this rank's part of the large ``alike`` values, which all ranks have computed, into common memory.

        Of ``divided`` values, ranks have computed only these parts. Return whether there are any; the change must then
        be committed, because all ranks write to the new values.
        """
        entries, news, takes = self._entries, list(self._news), transport.common.takes
        divided = self._divided or [False] * len(news)
        chosen = [i for i, alike in enumerate(self._alike) if alike and (divided[i] or takes(entries[i].key, news[i]))]
        if not chosen:
            return False
        shapes = [(entries[i].cell[0] if divided[i] else news[i]).shape for i in chosen]
        kinds = [(shape, news[i].dtype) for i, shape in zip(chosen, shapes)]
        laid = []
        for i, spare in zip(chosen, transport.common_spares([entries[i].key for i in chosen], kinds)):
            begin, end = transport.part(spare.size)
            part = news[i] if divided[i] else news[i].reshape(-1)[begin:end]
            copy_into(spare.reshape(-1)[begin:end], part)
            own = None if takes(entries[i].key, spare) else np.empty_like(spare)
            laid.append((entries[i], spare, own))
            news[i] = spare if own is None else own
        self._news, self._laid, self._transport = news, laid, transport
        return True

    def remember(self) -> None:
        """Keep the old values for `undo`."""
        self._before = [entry.cell[0] for entry in self._entries]

    def undo(self) -> None:
        for entry, value in zip(self._entries, self._before):
            entry.set(value, Origin.UNDONE)


NOTHING = Change([], [])


def change_of(prepared: RankPlan, chosen: Sequence[int], news: Sequence[Any], divided: Sequence[bool] = ()) -> Change:
    """Return the change that makes the chosen updates, in order of their positions; see `CallPlan.divided`."""
    entries, alike = prepared.entries, prepared.plan.alike
    if len(chosen) < len(entries):
        entries, news = [entries[i] for i in chosen], [news[i] for i in chosen]
        alike, divided = [[flags[i] for i in chosen] if flags else [] for flags in (alike, divided)]
    if prepared.plan.on_device:
        news = [entry.engine.to_device(entry.reference(), value) for entry, value in zip(entries, news)]
    return Change(entries, news, alike, divided)


class RankResult(NamedTuple):
    """A rank's results of a call; the changes of shared variables are still to be made.

    All outputs are None if the rank contributes no results. Gathered outputs have their axis of rows first. If the
    graph itself divides rows (`synkhronos.ops.shard`), the division contains the resulting weights.
    """

    outputs: List[Any]
    change: Any  # a `Change`; if one thread calls all ranks together, a function that makes the changes
    division: Division


class RankCall(NamedTuple):
    """One rank's call: the plan, the arguments' whole values, and the rows to select; None for the plan's rows."""

    prepared: RankPlan
    values: Sequence[Any]
    rows: Any
    shared_rows: Any
    context: RankContext
    ahead: Optional[RowsAhead] = None  # rows that may already have been copied

    def run(self) -> RankResult:
        """Call the function on this rank's rows."""
        prepared, context = self.prepared, self.context
        plan, division, n_outputs = prepared.plan, prepared.plan.division, len(prepared.plan.ops)
        if not prepared.pieces:
            return RankResult([None] * n_outputs, NOTHING, division)
        if plan.after_collective is not None:
            return self._in_halves()
        if division.num_slices > 1:
            return self._in_slices()
        if plan.replicated_updates is None:
            return RankResult(self._slice(0), NOTHING, division)
        collectives = CollectivesOfCall(prepared, 0, context)
        results, counts, chosen = self._slice(0, collectives), prepared.counts, prepared.chosen
        if division.weights is None and collectives.weights is not None:
            division = division._replace(weights=list(map(int, collectives.weights)))
            counts = division.takes_part(context.rank)
            chosen = prepared.applied(counts)
        outputs, news = results[:n_outputs] if counts else [None] * n_outputs, results[n_outputs:]
        if plan.divided and not plan.divides:
            news = [
                new.reshape(entry.cell[0].shape) if is_vector else new
                for new, entry, is_vector in zip(news, prepared.entries, plan.divided)
            ]
        return RankResult(outputs, change_of(prepared, chosen, news, plan.divided if plan.divides else ()), division)

    def _slice(self, i: int, collectives: Optional[CollectivesOfCall] = None) -> List[Any]:
        """Call the function on this rank's i-th slice; return the outputs, then the new values in the graph."""
        prepared, values, rows, shared_rows, context, ahead = self
        entry = context.registry.functions[prepared.plan.number]
        engine, compiled = entry.engine, entry.reference()
        arguments = prepared.slice(i, values, rows, shared_rows, context, ahead)
        try:
            if collectives is None:
                results: List[Any] = engine.call(compiled, arguments, prepared.plan.wanted)
            else:
                with collectives:
                    results = engine.call(compiled, arguments, prepared.plan.wanted)
        except Exception as error:
            explain(error, prepared.plan, engine, context)
            raise
        for k, axis in prepared.moved:
            results[k] = moved(results[k], axis, 0)
        return results

    def _collectives(self, i: int) -> Optional[CollectivesOfCall]:
        is_collective = self.prepared.plan.replicated_updates is not None
        return CollectivesOfCall(self.prepared, i, self.context) if is_collective else None

    def _in_slices(self) -> RankResult:
        """Call the function slice by slice; the change applies the accumulated updates."""
        prepared = self.prepared
        plan, n_outputs, entries, random = prepared.plan, len(prepared.plan.ops), prepared.entries, prepared.random
        weights = [_weights_of_slice(prepared, i) for i in range(len(prepared.pieces))]
        updates = [
            (entry.label(f"updates[{i}]"), LAST if i in random else op)
            for i, (entry, (_, op)) in enumerate(zip(entries, plan.updates))
        ]

        def call_and_advance(i: int) -> Any:
            results = self._slice(i, self._collectives(i))
            for j in random:
                if weights[i][n_outputs + j] is not None:
                    entries[j].set(results[n_outputs + j], Origin.FUNCTION)
            return results

        with _advanced([entries[i] for i in random]):
            outputs, news = in_slices(
                call_and_advance, weights, list(zip(plan.labels, plan.ops)), updates, prepared.engine.accumulator
            )
        for i, (entry, new) in enumerate(zip(entries, news)):
            if new is not None and i not in random:
                variable = entry.reference()
                news[i] = entry.engine.to_device(variable, new)
                if isinstance(news[i], np.ndarray):  # a value on the device already has the graph's type
                    news[i] = entry.engine.coerce(variable, news[i], f"the update of {entry.label(f'updates[{i}]')}")
        change = change_of(prepared, [i for i, new in enumerate(news) if new is not None], news)
        return RankResult(outputs, change, plan.division)

    def _in_halves(self) -> RankResult:
        """Run an exact function's graph slice by slice up to the split point, and the rest of the graph once."""
        prepared, values, rows, shared_rows, context, _ = self
        plan, entries, random = prepared.plan, prepared.entries, prepared.random
        half: Any = plan.after_collective
        n_outputs, n_parts, late = len(plan.ops), len(half.ops), {i for i, _ in half.outputs}
        results: List[Any] = []

        def call_and_advance(i: int) -> Any:
            results[:] = self._slice(i, self._collectives(i))
            if prepared.pieces[i][0]:
                for j, state in zip(random, results[n_outputs + n_parts :]):
                    entries[j].set(state, Origin.FUNCTION)
            return results[: n_outputs + n_parts]

        own = [piece[0] or None for piece in prepared.pieces]
        weights = [[None if k in late else one for k in range(n_outputs)] + [one] * n_parts for one in own]
        function = context.registry.functions[half.number]
        engine, compiled = function.engine, function.reference()
        parts = [(f"part {i}", LAST if op is None else op) for i, op in enumerate(half.ops)]
        with _advanced([entries[i] for i in random]):
            outputs, news = in_slices(
                call_and_advance, weights, list(zip(plan.labels, plan.ops)), parts, engine.accumulator
            )
            after: List[Any] = [entry.cell[0] for entry in entries]  # the states of random variables
        last = len(prepared.pieces) - 1
        # A rank without rows passes values of the right shape, which do not count.
        given = [results[n_outputs + k] if new is None else new for k, new in enumerate(news)]
        arguments = prepared.slice(last, values, rows, shared_rows, context) + given
        others = [i for i in range(len(entries)) if i not in random]
        chosen = [*(k for _, k in half.outputs), *range(half.n_outputs, half.n_outputs + len(others))]
        with CollectivesOfCall.of_all_slices(prepared, context):
            found = engine.call(compiled, arguments, chosen)
        for (i, _), output in zip(half.outputs, found):
            outputs[i] = output if prepared.counts else None
        for i, new in zip(others, found[len(half.outputs) :]):
            after[i] = new
        return RankResult(outputs, change_of(prepared, prepared.chosen, after), plan.division)


@contextmanager
def _advanced(entries: Sequence[SharedEntry]) -> Iterator[None]:
    """Allow random states to advance from slice to slice in the block; on exit, restore the initial states."""
    before = [entry.cell[0] for entry in entries]
    try:
        yield
    finally:
        for entry, state in zip(entries, before):
            entry.set(state, Origin.UNDONE)


def _weights_of_slice(prepared: RankPlan, i: int) -> List[Optional[float]]:
    """Return the weight of each result of a slice: the number of rows on this rank or on all ranks; None if it is 0."""
    plan, own = prepared.plan, prepared.pieces[i][0] or None
    if plan.replicated_updates is None:
        return [own] * (len(plan.ops) + len(plan.updates))
    of_ranks = prepared.weights[i]
    of_all = None if of_ranks is None else sum(of_ranks)  # None if no rank has rows in this slice
    return [own] * len(plan.ops) + [of_all if is_common else own for is_common in plan.replicated_updates]


class RowsOfCall(in_graph.CurrentCall):
    """The rank's rows in a call that only computes output shapes: collectives return their inputs unchanged."""

    reduces = False

    def __init__(self, prepared: RankPlan, i: int, context: RankContext) -> None:
        self.prepared, self.plan, self.context = prepared, prepared.plan, context
        self.weights, self.rows = prepared.weights[i], prepared.rows[i]

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
    """The collectives inside one call, or slice ``i`` of a call, executed by the rank's transport."""

    reduces = True

    @classmethod
    def of_all_slices(cls, prepared: RankPlan, context: RankContext) -> CollectivesOfCall:
        """Return the collectives after all slices, which combine values of all rows."""
        call = cls(prepared, -1, context)
        call.weights = prepared.plan.division.weights
        return call

    def part(self, size: int) -> Tuple[int, int]:
        return self.context.transport.part(size) if self.plan.divides else (0, size)

    def reduce_parts(self, number: int, op: ReduceOp, arrays: Sequence[Any]) -> List[Any]:
        if not self.plan.divides:
            return super().reduce_parts(number, op, arrays)
        return self.all_reduce(number, op, arrays, self.context.transport.reduce_parts)

    def combine_parts(self, number: int, op: ReduceOp, arrays: Sequence[Any]) -> List[Any]:
        if self.plan.divides:
            return self.all_reduce(number, op, arrays, of_parts=True)
        self.prepared.bytes_inside[self.plan.number, number] = 0
        return super().combine_parts(number, op, arrays)

    @point("collective")
    def all_reduce(
        self, number: int, op: ReduceOp, arrays: Sequence[Any], reduce: Any = None, of_parts: bool = False
    ) -> List[Any]:
        function, context, nbytes = self.plan.number, self.context, 0
        traffic = context.transport.traffic
        begun = traffic.begin()
        results: List[Any] = (reduce or context.transport.all_reduce_values)(
            ("function", function, number, op.name),
            arrays,
            op,
            context.transport.weights_of_parts if of_parts else self.weights,
            lambda: f"all_reduce {number} ({op}) inside function {self.plan.name}",
        )
        traffic.end("ops.all_reduce", begun)
        context.transaction.drop_undo_log()
        for array in arrays:  # the results may be parts
            nbytes += array.size * array.dtype.itemsize  # (arrays on a device have no nbytes)
        self.prepared.bytes_inside[function, number] = nbytes
        return results

    def note_reduced(self, number: int, nbytes: int) -> None:
        context = self.context
        traffic, moved = context.transport.traffic, nbytes * (context.size - 1) / context.size
        begun = traffic.begin()
        traffic.add(moved, moved)
        traffic.end("ops.all_reduce", begun)
        context.transaction.drop_undo_log()
        self.prepared.bytes_inside[self.plan.number, number] = nbytes


def explain(error: Exception, plan: CallPlan, engine: Any, context: RankContext) -> None:
    """Raise a `MemoryError` with a remedy if the error means that the device is out of memory."""
    if engine.is_out_of_memory(error):
        first = str(error).split("\n")[0]
        found = MemoryError(
            f"rank {context.rank} ran out of device memory in function {plan.name} ({first}): call it with "
            f"num_slices={2 * plan.division.num_slices}, or with fewer rows"
        )
        for note in getattr(error, "__notes__", ()):
            add_note(found, note)
        raise found from error


class Agreement:
    """Checks that all slices have the same value, for example of an integer update, which has no average."""

    def __init__(self) -> None:
        self._value: Any = None

    def add(self, value: Any, weight: Any = 1) -> None:
        """Compare the value of the next slice with the first."""
        if self._value is None:
            self._value = np.array(value)
        elif not np.array_equal(self._value, value):
            hint = "integers are not averaged: set an op for the update, for example (shared, expression, 'sum')"
            raise ArgumentValueError("integers", "equal values in all slices", "different values", hint)

    def finish(self) -> Tuple[Any, Any]:
        return self._value, None


class Last:
    """Keeps the value of the last slice: an advanced random state, or an output equal in all slices."""

    def __init__(self) -> None:
        self._value: Any = None

    def add(self, value: Any, weight: Any = 1) -> None:
        self._value = value

    def finish(self) -> Tuple[Any, Any]:
        return self._value, None


#: Used in place of an op: keep the value of the last slice.
LAST: Any = "last"


def in_slices(
    call: Callable[[int], Sequence[Any]],
    weights: Sequence[Sequence[Optional[float]]],
    outputs: Sequence[Tuple[str, ReduceOp]],
    updates: Sequence[Tuple[str, Any]],
    accumulator: Callable[..., Any] = Accumulator,
) -> Tuple[List[Any], List[Any]]:
    """Call a function on every slice of a rank's rows, and accumulate its outputs and updates.

    Every slice computes updates from the original values; the caller applies them once, at the end. ``call(i)`` returns
    the outputs of the i-th slice, then the new values. ``weights[i][k]``: the number of rows of slice i for the k-th of
    these values, or None if the value does not count. A result is None if its value counts in no slice.
    Each item of ``updates`` is a name and an op; the op is `LAST` for the last value, or None if slices must agree.
    """
    names = [name for name, _ in outputs] + ["the update of " + name for name, _ in updates]
    accumulators: List[Any] = [Last() if op.name is None else accumulator(op) for _, op in outputs]
    accumulators += [
        Agreement() if op is None else Last() if op is LAST else accumulator(op, keep_dtype=True) for _, op in updates
    ]
    for i, of_slice in enumerate(weights):
        _add(names, accumulators, call(i), of_slice)
    results = []
    for name, each in zip(names, accumulators):
        with prefixed(f"{name} differs between slices"):
            results.append(each.finish()[0])
    return results[: len(outputs)], results[len(outputs) :]


def _add(
    names: Sequence[str], accumulators: Sequence[Any], values: Sequence[Any], weights: Sequence[Optional[float]]
) -> None:
    """Accumulate a slice's values without keeping references, because the next slice needs the memory."""
    for name, accumulator, value, weight in zip(names, accumulators, values, weights):
        if weight is None:
            continue
        with prefixed(f"{name} differs between slices"):
            accumulator.add(value, weight)
