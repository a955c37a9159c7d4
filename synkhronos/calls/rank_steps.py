"""The steps of one command, and one rank's part of them: arguments, calls, and memory for the outputs."""

from __future__ import annotations

import functools
import itertools
from contextlib import nullcontext
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..engines.base import ArrayType
from ..errors import ArgumentValueError
from ..reductions import ReduceOp
from ..runtime.context import RankContext
from ..selection import Indices, Selection
from .batches import selection
from .command import presented, reduced
from .division import Division
from .plan import CallPlan, RankPlan, may_be_refused
from .rank_call import NOTHING, Change, RankCall, RowsOfCall
from .rows_ahead import RowsAhead
from .step_outputs import Store

#: Number of table rows converted to Python numbers at a time, because Python numbers need ten times the memory.
CHUNK_ROWS = 1024

#: A step's division, its rows of the data set, and its rows of this rank's shared variables; None for the plan's rows.
StepRows = Tuple[int, Optional[Selection], Optional[Selection]]


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

    @property
    def is_collective(self) -> bool:
        """Whether the graph contains collectives, so that ranks run its steps together."""
        return self.plans[0].replicated_updates is not None

    def divisions(self, context: RankContext, n_steps: int) -> NDArray[Any]:
        return context.pools.attach(self.table)[self.begin : self.begin + n_steps, 0]

    def rows(self, context: RankContext, chosen: Any = None) -> Iterator[StepRows]:
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


class RankSteps:
    """One rank's part of the steps: a `RankPlan` for each division, the whole arguments, and the steps' outputs."""

    store: Store
    totals: Optional[Totals] = None

    def __init__(self, steps: StepSequence, context: RankContext) -> None:
        self.steps, self.context = steps, context
        self._counted, block = context.barrier.block.steps, context.barrier.block
        block.steps[context.rank], block.undone[context.rank] = steps.begin, 0
        block.steps_command[context.rank] = context.barrier.command
        self.plans = list(steps.plans)  # with the divisions that the graph itself makes
        self.prepared = [RankPlan(plan, context) for plan in steps.plans]
        # Files and named memory are attached once; all plans have the same arguments.
        self.values: List[Any] = next((each.values(context) for each in self.prepared if each.pieces), [])
        self._end_of_step = f"the end of a step of function {steps.plans[0].name}"
        self._takes_part = [each.counts for each in self.prepared]
        #: By division: positions of the arguments whose rows are copied ahead. (`on_step` may change them.)
        self._copied_ahead: List[List[int]] = [[] for _ in self.prepared]
        if steps.is_collective and steps.has_batches and not steps.asks and context.size > 1:
            self._copied_ahead = [each.to_copy_ahead(self.values) for each in self.prepared]
        self._next: Optional[StepRows] = None
        self._ahead: Optional[RowsAhead] = None

    def prepare_outputs(self) -> None:
        """Allocate memory for the outputs; raise if this host has too little for them or for the arguments."""
        steps, context = self.steps, self.context
        if may_be_refused(steps.plans[0], context):
            far = (self.prepared[division].far(rows) for division, rows, _ in steps.rows(context))
            context.pools.check_room(ranges for of_step in far for ranges in of_step)
        shapes = _shapes(steps, self.prepared, self.values, context)
        self.store = Store(context.pool, shapes, steps.dtypes, steps.counts, context.rank == context.root)
        self.totals = Totals(steps, self.plans, context) if steps.total else None

    def run(self, begun: Iterable[StepRows]) -> Iterator[Tuple[CallPlan, List[Any]]]:
        """Complete each step on this rank, and yield its plan and outputs."""
        try:
            yield from map(self.step, itertools.count(), begun)
        finally:
            self.context.barrier.meanwhile = None

    def rows(self) -> Iterator[StepRows]:
        """Yield each step's rows, as `StepSequence.rows` does; `step` copies those of the next step ahead."""
        rows = self.steps.rows(self.context)
        of_step: Optional[StepRows] = next(rows, None)
        while of_step is not None:
            self._next = next(rows, None)
            yield of_step
            of_step = self._next

    def _copy_ahead(self, i: int) -> None:
        """Let this rank copy the next step's rows while it waits in the i-th step, if possible."""
        self._ahead = self.context.barrier.meanwhile = None
        if self._next is not None and any(self._copied_ahead):
            division, rows, _ = self._next
            chosen, turn = self._copied_ahead[division], (i + 1) % 2
            if chosen and isinstance(rows, Indices):
                self._ahead = self.prepared[division].rows_ahead(chosen, self.values, rows, turn)
                self.context.barrier.meanwhile = self._ahead.copy_piece
            else:
                self._ahead = RowsAhead({}, turn)

    def step(self, i: int, of_step: StepRows) -> Tuple[CallPlan, List[Any]]:
        """Complete the i-th step on this rank; return its plan and outputs. Undo it unless all ranks complete it."""
        division, rows, shared_rows = of_step
        if self.steps.lengths:
            self.check_lengths()
        ahead = self._ahead
        self._copy_ahead(i)
        call = RankCall(self.prepared[division], self.values, rows, shared_rows, self.context, ahead)
        outputs, change, made = call.run()
        plan = self.plans[division]
        if made is not plan.division:
            plan = self.note_division(division, made)
        if plan.alike and change.lay(self.context.transport):
            self.context.transaction.commit(change, label=self._end_of_step)
        elif plan.replicated_updates is not None:
            change.remember()
            undo = functools.partial(self._undo, self.steps.begin + i, change)
            self.context.transaction.apply_tentatively(undo, change, self._end_of_step)
        elif change is not NOTHING:
            change()
        self.count(i + 1)
        self.keep(i, division, outputs)
        return plan, outputs

    def _undo(self, step: int, change: Change) -> None:
        """Undo this rank's part of a step that not all ranks have completed, whether or not the rank has counted it."""
        change.undo()
        block, rank = self.context.barrier.block, self.context.rank
        block.undone[rank] = block.steps[rank] - step

    def check_lengths(self) -> None:
        """Raise if the function has changed the length of a variable, because later steps select its rows."""
        for number, axis, of_ranks in self.steps.lengths:
            entry = self.context.registry.shareds[number]
            length = entry.cell[0].shape[axis]
            if length != of_ranks[self.context.rank]:
                kept = of_ranks[self.context.rank]
                expected = f"{entry.label()} to keep its length, {kept}, because later steps use it"
                raise ArgumentValueError("sliceable_shareds", expected, f"a length of {length} after a step")

    def note_division(self, division: int, made: Division) -> CallPlan:
        """Record the division that a graph has made; raise if its weights differ from those of earlier steps."""
        plan = self.plans[division]
        before = plan.division.weights
        if before is not None and before != made.weights:
            raise ArgumentValueError(
                f"synkhronos.ops.shard in function {plan.name}",
                f"an array with the same number of rows in every step: {sum(before)}",
                str(sum(made.weights or ())),
                "make a separate call for each number of rows",
            )
        self.plans[division] = plan._replace(division=made)
        self._takes_part[division] = made.takes_part(self.context.rank)
        return self.plans[division]

    def count(self, n_steps: int) -> None:
        self._counted[self.context.rank] = self.steps.begin + n_steps

    def keep(self, i: int, division: int, outputs: Sequence[Any]) -> None:
        steps, context = self.steps, self.context
        if self._takes_part[division]:
            if self.totals is not None:
                self.totals.add(division, outputs)
            if steps.plans[0].on_device:
                engine = context.registry.functions[steps.plans[0].number].engine
                outputs = [engine.to_host(output) for output in outputs]
            self.store.put(i, division, outputs)


def rows_taken(plans: Sequence[CallPlan], divisions: NDArray[Any]) -> Optional[List[int]]:
    """Return the number of rows that each rank computes in these steps; None if the steps divide no rows."""
    if plans[0].division.weights is None:
        return None
    counts = np.bincount(divisions, minlength=len(plans))
    return list(map(int, counts @ np.array([plan.division.weights for plan in plans])))


class Totals:
    """Accumulates the outputs of this rank's steps, and reduces them over the ranks at the end."""

    def __init__(self, steps: StepSequence, plans: Sequence[CallPlan], context: RankContext) -> None:
        self._steps, self._plans, self._context = steps, plans, context
        engine = context.registry.functions[steps.plans[0].number].engine
        self._accumulators = [None if op.name == "gather" else engine.accumulator(op) for op in steps.ops]

    def add(self, division: int, outputs: Sequence[Any]) -> None:
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
    is_collective = steps.is_collective
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
                with RowsOfCall(each, i, context) if is_collective else nullcontext():
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
