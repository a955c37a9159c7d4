"""Many calls to a function in one command: each rank computes its part of every call, step by step.

::

    f.steps(x, batches=[...])                                                                    where
    ------------------------------------------------------------------------------------------  -----------------------
    read     all batches, from sequences or generators                                           batches.read_all
    table    the rows of every step, in two arrays                                               Arguments.prepare_steps
    plans    one plan per division, shared by steps with equal numbers of rows                   PlanBuilder.steps
    run      every rank:  allocate memory for the outputs of all steps                           RunSteps.run
                          for each step:  select rows, call the engine, store the outputs
    finish   the master:  combine the outputs in the memory of all ranks                         Combiner

Between steps, ranks wait for each other only in collectives of the graph and, in functions that have any or are exact,
for ``on_step``.
Before each step, a rank checks the control block for an abort. After the step, it writes its step count to the block.
"""

from __future__ import annotations

import functools
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..engines.base import ArrayType
from ..errors import ArgumentValueError
from ..reductions import ReduceOp
from ..runtime.command import Command, CommandStats
from ..runtime.context import RankContext
from ..selection import Selection, moved
from ..sync.control_block import STOP_REQUESTED
from .batches import selection
from .command import presented, reduced, rounded
from .division import Division
from .on_step import OnStep
from .plan import CallPlan, RankPlan, may_be_refused
from .rank_call import Change, RowsOfCall, call, inside
from .step_outputs import Combiner, Store, Stored
from .together import AllRanks, apply, call_together, combined, is_possible, on_host

#: Number of table rows converted to Python numbers at a time, because Python numbers need ten times the memory.
CHUNK_ROWS = 1024


class StepSequence(NamedTuple):
    """The steps of one command, as sent to all ranks.

    ``table``, of shape ``(n_steps, 4)``, contains each step's division and its row of a `BatchTable`. ``shared_table``,
    for sliceable variables, has shape ``(n_steps, n_ranks, 3)``. Both refer to ``indices``; all three are handles.
    """

    plans: Sequence[CallPlan]  # one per division, all with the same arguments
    counts: Sequence[int]  # number of steps of each division
    first: Sequence[int]  # first step of each division
    table: Any
    shared_table: Any
    indices: Any
    has_batches: bool  # whether the table selects rows; if not, every step uses all rows
    ops: Sequence[ReduceOp]  # of the requested outputs
    types: Sequence[Optional[ArrayType]]  # of the requested outputs; None if not an array
    shapes: Optional[int] = None  # number of the graph that computes the outputs' shapes, unless all are known
    lengths: Sequence[Tuple[int, int, Sequence[int]]] = ()  # of updated variables: number, axis, lengths by rank
    total: bool = False  # whether outputs are accumulated over all steps
    asks: bool = False  # whether there is an `on_step`, which may end the steps
    is_exact: bool = False  # whether the function is exact, so that all ranks must end after the same step
    begin: int = 0  # the command's first step in the table

    @property
    def dtypes(self) -> List[Any]:
        """The dtype of each output; None for an output that is not an array."""
        return [None if type_ is None else type_.dtype for type_ in self.types]

    def divisions(self, context: RankContext, n_steps: int) -> NDArray[Any]:
        return context.pools.attach(self.table)[self.begin : self.begin + n_steps, 0]

    def rows(
        self, context: RankContext, chosen: Any = None
    ) -> Iterator[Tuple[int, Optional[Selection], Optional[Selection]]]:
        """Yield each step's division, rows of the data set, and rows of this rank's shared variables."""
        if chosen is None:
            chosen = slice(self.begin, self.begin + sum(self.counts))
        table, indices = context.pools.attach(self.table)[chosen], context.pools.attach(self.indices)
        shared: Any = None
        if self.shared_table is not None:
            shared = context.pools.attach(self.shared_table)[chosen, context.rank]
        for begin in range(0, len(table), CHUNK_ROWS):
            chunk = slice(begin, begin + CHUNK_ROWS)
            of_chunk = table[chunk].tolist()
            of_shared = [None] * len(of_chunk) if shared is None else shared[chunk].tolist()
            for (division, *row), shared_row in zip(of_chunk, of_shared):
                yield (
                    division,
                    selection(row, indices) if self.has_batches else None,
                    None if shared_row is None else selection(shared_row, indices),
                )


class StepsAnswer(NamedTuple):
    """One rank's answer to `RunSteps`."""

    n_steps: int  # number of completed steps, equal on all ranks
    stored: Stored
    totals: Optional[List[Any]]  # on the master, with `total`: accumulated outputs, None for gathered ones
    plans: Optional[Sequence[CallPlan]]  # on the master: the plans, with the divisions that the graph itself made


class RunSteps(Command):
    """Run the steps on every rank, and combine the outputs on the master; only the master has ``on_step``."""

    has_steps = True
    _on_step: Optional[OnStep] = None
    _told = 0  # number of steps reported to `on_step`, which are not reported again if the command is repeated
    ends_early = False  # whether `on_step` has returned False or changed a value that all ranks need

    def __init__(self, name: str, steps: StepSequence, on_step: Optional[OnStep] = None) -> None:
        self.name, self.steps = name, steps
        self._on_step = on_step

    def __getstate__(self) -> Any:
        return {"name": self.name, "steps": self.steps}

    @property
    def title(self) -> str:
        return f"steps of function {self.name}"

    def unsaved(self, failed: bool) -> Sequence[int]:
        return self.steps.plans[0].writes if failed else ()  # completed steps before the failure keep their updates

    def refusal(self) -> str:
        alone = "" if self._on_step is None else ", ".join(self._on_step.alone)
        return alone and f"on_step has changed {alone}, so the steps cannot be repeated"

    def details(self, context: RankContext) -> str:
        return f"steps: {sum(self.steps.counts)}"

    def amounts(self, context: RankContext) -> CommandStats:
        weights = [plan.division.weights for plan in self.steps.plans]
        n_steps, rows = max(0, context.barrier.block.steps[context.rank] - self.steps.begin), -1
        if n_steps == sum(self.steps.counts) and None not in weights:  # otherwise, counting the rows requires the table
            rows = int(sum(n * some[context.rank] for n, some in zip(self.steps.counts, weights) if some))
        return CommandStats("steps", self.name, rows, arrays=n_steps)

    def reads(self, context: RankContext) -> Iterable[Any]:
        return self.steps.table, self.steps.shared_table, self.steps.indices

    def run(self, context: RankContext) -> StepsAnswer:
        steps = self.steps
        if self._on_step is not None:
            self._on_step.begin(steps.plans[0].writes)
        context.pools.hold(self.reads(context))
        block, rank = context.barrier.block, context.rank
        block.steps[rank], block.undone[rank] = steps.begin, 0
        block.steps_command[rank] = context.barrier.command
        prepared = [RankPlan(plan, context) for plan in steps.plans]
        # Files and named memory are attached once; all plans have the same arguments.
        values = next((each.values(context) for each in prepared if each.pieces), [])
        if may_be_refused(steps.plans[0], context):
            far = (prepared[division].far(rows) for division, rows, _ in steps.rows(context))
            context.pools.check_room(ranges for of_step in far for ranges in of_step)
        shapes = _shapes(steps, prepared, values, context)
        is_root = context.rank == context.root
        store = Store(context.pool, shapes, steps.dtypes, steps.counts, keeps_objects=is_root)
        context.transaction.results = store
        context.barrier.wait()  # no rank begins before all ranks and hosts have enough memory
        if steps.plans[0].writes:
            context.transaction.protect(context.entries(steps.plans[0].writes), keeps=True)
        plans = list(steps.plans)
        totals = _Totals(steps, plans, context) if steps.total else None
        n_steps = self._make(prepared, plans, values, store, totals, context)
        found = None if totals is None else totals.finish(n_steps)
        made = StepsAnswer(n_steps, store.stored(), found, plans if is_root else None)
        if steps.plans[0].writes:
            context.transaction.commit(result=made)
        return made

    def _make(
        self,
        prepared: Sequence[RankPlan],
        plans: List[CallPlan],
        values: Sequence[Any],
        store: Store,
        totals: Optional[_Totals],
        context: RankContext,
    ) -> int:
        """Run the steps in sequence and return their number; update ``plans`` with divisions that the graph made."""
        steps, barrier, rank = self.steps, context.barrier, context.rank
        made, words = barrier.block.steps, barrier.block.words
        collective, on_device = steps.plans[0].replicated_updates is not None, steps.plans[0].on_device
        counts = [plan.division.takes_part(rank) for plan in steps.plans]
        engine, n_steps = context.registry.functions[steps.plans[0].number].engine, sum(steps.counts)
        meets = steps.asks and (collective or steps.is_exact)
        may_end = steps.asks and not meets  # ranks may be at different steps and must agree on the last step
        goes_on, end_of_step = True, f"the end of a step of function {self.name}"
        for i, (division, rows, shared_rows) in enumerate(steps.rows(context)):
            barrier.check()
            if may_end and words[STOP_REQUESTED] >= barrier.command:
                n_steps, may_end = _furthest(i, context), False
            if i == n_steps:
                break
            if steps.lengths:
                _check_lengths(steps.lengths, context)
            each = prepared[division]
            outputs, change, divided = call(each, values, rows, shared_rows, context)
            if divided is not plans[division].division:
                plans[division] = _with_division(plans[division], divided)
                counts[division] = divided.takes_part(rank)
            if collective:
                undo = functools.partial(_undo, steps.begin + i, change, context)
                context.transaction.try_out(undo, change, label=end_of_step)
            else:
                change()
            made[rank] = steps.begin + i + 1
            if counts[division]:
                if totals is not None:
                    totals.add(division, outputs)
                store.put(i, division, [engine.to_host(output) for output in outputs] if on_device else outputs)
            if self._on_step is not None and goes_on:
                if i == self._told:
                    self.failed_step = steps.begin + i  # in case `_on_step` raises
                    self.ends_early = not self._on_step(steps.begin + i, presented(each.plan, context, outputs))
                    self.failed_step = None
                    self._told += 1
                elif i + 1 == self._told:
                    self._on_step.put_again()
                goes_on = not (self.ends_early and i + 1 == self._told)
                if not goes_on:
                    words[STOP_REQUESTED] = barrier.command
            if meets:  # all ranks reach this point after each step
                if b"end" in barrier.exchange(b"" if goes_on else b"end", context.pool, context.pools):
                    n_steps = i + 1
                    break
        if may_end:
            _furthest(n_steps, context)  # other ranks may be waiting to agree on the last step
        if collective:
            context.transaction.commit(label=f"the end of the steps of function {self.name}")
        return n_steps

    def run_together(self, contexts: Sequence[RankContext], root: int) -> Optional[List[Any]]:
        steps, own, ranks = self.steps, contexts[root], range(len(contexts))
        if not all(is_possible(plan, contexts) for plan in steps.plans):
            return None
        if self._on_step is not None:
            self._on_step.begin(())
        block, plans, n_steps = own.barrier.block, list(steps.plans), sum(steps.counts)
        for rank in ranks:
            block.steps[rank], block.undone[rank] = steps.begin, 0
            block.steps_command[rank] = own.barrier.command
        prepared = [[RankPlan(plan, context) for context in contexts] for plan in plans]
        values = [
            next((each[rank].values(contexts[rank]) for each in prepared if each[rank].pieces), []) for rank in ranks
        ]
        stores = []
        for rank, context in enumerate(contexts):
            shapes = _shapes(steps, [each[rank] for each in prepared], values[rank], context)
            stores.append(Store(context.pool, shapes, steps.dtypes, steps.counts, keeps_objects=rank == root))
        own.transaction.results = stores
        totals = [_Totals(steps, plans, context) for context in contexts] if steps.total else []
        for i, of_ranks in enumerate(zip(*[steps.rows(context) for context in contexts])):
            division, rows, _ = of_ranks[0]
            for context in contexts if steps.lengths else ():
                _check_lengths(steps.lengths, context)
            shared_rows = [of_rank[2] for of_rank in of_ranks]
            found = call_together(prepared[division], values, rows, shared_rows, contexts, root)
            if found.division is not plans[division].division:
                plans[division] = _with_division(plans[division], found.division)
            apply(found.changes)
            for rank in ranks:
                found.outputs[rank] = on_host(plans[division], found.outputs[rank], own)
                block.steps[rank] = steps.begin + i + 1
                if plans[division].division.takes_part(rank):
                    if totals:
                        totals[rank].add(division, found.outputs[rank])
                    stores[rank].put(i, division, found.outputs[rank])
            if self._on_step is not None:
                self.failed_step = steps.begin + i  # in case `_on_step` raises
                self.ends_early = not self._on_step(
                    steps.begin + i, presented(plans[division], own, found.outputs[root])
                )
                self.failed_step = None
                if self.ends_early:
                    n_steps = i + 1
                    break
        of_all: Any = None
        if totals:
            plan, whole = totals[root].plan(n_steps)
            values_of_all = AllRanks([each.values() for each in totals], [], whole)
            of_all = presented(plan, own, combined(plan, values_of_all, root))
        return [
            StepsAnswer(n_steps, store.stored(), of_all, plans if rank == root else None)
            for rank, store in enumerate(stores)
        ]

    def finish(self, results: List[StepsAnswer], context: RankContext) -> Tuple[List[Any], Optional[List[int]], int]:
        """Return the outputs, the number of rows that each rank computed in all steps, and the number of steps."""
        steps, (n_steps, _, totals, plans) = self.steps, results[context.root]
        assert plans is not None
        divisions = steps.divisions(context, n_steps)
        stored = [made.stored for made in results]
        combiner = Combiner(
            plans, steps.ops, steps.dtypes, divisions, steps.counts, stored, context.root, context.pools
        )
        outputs: List[Any] = []
        try:
            for i, op in enumerate(steps.ops):
                if totals is not None and op.name != "gather":
                    outputs.append(totals[i])
                    continue
                found = combiner.combined(i)
                if totals is not None:
                    found = np.concatenate([np.atleast_1d(each) for each in found])
                if op.dtypes:
                    found = [rounded(each, op) for each in found] if type(found) is list else rounded(found, op)
                if op.axis:
                    found = [moved(each, 0, op.axis) for each in found] if totals is None else moved(found, 0, op.axis)
                outputs.append(found)
        except ValueError:
            self.failed_step = None if combiner.failed_step is None else steps.begin + combiner.failed_step
            raise
        finally:
            context.transaction.results = None
        return outputs, rows_taken(plans, divisions), n_steps


def _with_division(plan: CallPlan, division: Division) -> CallPlan:
    """Return the plan with the division made by its graph; raise if its weights differ from those of earlier steps."""
    before = plan.division.weights
    if before is not None and before != division.weights:
        raise ArgumentValueError(
            f"synkhronos.ops.shard in function {plan.name}",
            f"an array with the same number of rows in every step: {sum(before)}",
            str(sum(division.weights or ())),
            "make a separate call for each number of rows",
        )
    return plan._replace(division=division)


def _undo(step: int, change: Change, context: RankContext) -> None:
    """Undo this rank's part of a step that not all ranks have completed, whether or not the rank has counted it."""
    change.undo()
    block, rank = context.barrier.block, context.rank
    block.undone[rank] = block.steps[rank] - step


def rows_taken(plans: Sequence[CallPlan], divisions: NDArray[Any]) -> Optional[List[int]]:
    """Return the number of rows that each rank computes in these steps; None if the steps divide no rows."""
    if plans[0].division.weights is None:
        return None
    counts = np.bincount(divisions, minlength=len(plans))
    rows: List[int] = (counts @ np.array([plan.division.weights for plan in plans])).tolist()
    return rows


class _Totals:
    """Accumulates the outputs of this rank's steps, and reduces them over the ranks at the end."""

    def __init__(self, steps: StepSequence, plans: Sequence[CallPlan], context: RankContext) -> None:
        self._steps, self._plans, self._context = steps, plans, context
        engine = context.registry.functions[steps.plans[0].number].engine
        self._accumulators = [None if op.name == "gather" else engine.accumulator(op) for op in steps.ops]

    def add(self, division: int, outputs: Sequence[Any]) -> None:
        """Add the outputs of one of this rank's steps."""
        of_step, rank = self._plans[division].division, self._context.rank
        if of_step.is_empty and rank != self._context.root:
            return  # every rank makes an empty call, but only the master's result counts
        for accumulator, output in zip(self._accumulators, outputs):
            if accumulator is not None:
                accumulator.add(output, 1 if of_step.weights is None else of_step.weights[rank])

    def values(self) -> List[Any]:
        """Return this rank's accumulated values; None for gathered outputs, and if there are none."""
        return [None if each is None else each.finish()[0] for each in self._accumulators]

    def plan(self, n_steps: int) -> Tuple[CallPlan, Division]:
        """Return the plan and the division for the reduction of all ranks' values."""
        weights = rows_taken(self._plans, self._steps.divisions(self._context, n_steps))
        ops = [ReduceOp(None) if op.name == "gather" else op for op in self._steps.ops]
        plan = self._plans[0]._replace(ops=ops)
        return plan, plan.division._replace(weights=weights)

    def finish(self, n_steps: int) -> Optional[List[Any]]:
        """Reduce over the ranks; return the results (None for gathered outputs) on the master, None on other ranks."""
        plan, division = self.plan(n_steps)
        results = reduced(plan, self._context, self.values(), division)
        return None if results is None else presented(plan, self._context, results)


def _shapes(
    steps: StepSequence, prepared: Sequence[RankPlan], values: Sequence[Any], context: RankContext
) -> List[List[Optional[Tuple[int, ...]]]]:
    """Return the shape of each output in each division; None for outputs that this rank does not store."""
    found: List[List[Optional[Tuple[int, ...]]]] = []
    for each, (_, rows, shared_rows) in zip(prepared, steps.rows(context, steps.first)):
        stores = [
            (each.plan.division.takes_part(context.rank) and type_ is not None)
            and (op_here.name is not None or context.rank == context.root)
            and (op.name == "gather" or not steps.total)
            for op_here, op, type_ in zip(each.plan.ops, steps.ops, steps.types)
        ]
        of_pieces: List[List[Tuple[int, ...]]] = [[()] * len(stores)]
        if steps.shapes is not None and any(stores):
            engine, compiled = context.registry.functions[steps.shapes]
            of_pieces = []
            for i in range(len(each.pieces)):
                arguments = each.slice(i, values, rows, shared_rows, context)
                with inside(each, i, context, RowsOfCall):
                    found_here = engine.call(compiled, arguments, each.plan.subset)
                of_pieces.append([tuple(shape.tolist()) for shape in found_here])
        shapes: List[Optional[Tuple[int, ...]]] = []
        for i, (stored, op) in enumerate(zip(stores, steps.ops)):
            if op.axis:
                of_pieces = [[*piece[:i], _with_first(piece[i], op.axis), *piece[i + 1 :]] for piece in of_pieces]
            shape = of_pieces[0][i]
            if op.name == "gather" and each.plan.division.num_slices > 1:  # pieces are concatenated
                shape = (sum([(of_piece[i] or (1,))[0] for of_piece in of_pieces]), *shape[1:])
            shapes.append(shape if stored else None)
        found.append(shapes)
    return found


def _with_first(shape: Tuple[int, ...], axis: int) -> Tuple[int, ...]:
    return (*shape[axis : axis + 1], *shape[:axis], *shape[axis + 1 :])


def _check_lengths(lengths: Sequence[Tuple[int, int, Sequence[int]]], context: RankContext) -> None:
    """Raise if the function has changed the length of a variable, because later steps select its rows."""
    for number, axis, of_ranks in lengths:
        entry = context.registry.shareds[number]
        length = entry.cell[0].shape[axis]
        if length != of_ranks[context.rank]:
            expected = f"{entry.label()} to keep its length, {of_ranks[context.rank]}, because later steps use it"
            raise ArgumentValueError("sliceable_shareds", expected, f"a length of {length} after a step")


def _furthest(begun: int, context: RankContext) -> int:
    """Send all ranks the number of steps that this rank has begun; return the largest number of any rank."""
    notices = context.barrier.exchange(str(begun).encode(), context.pool, context.pools)
    return max(map(int, notices))
