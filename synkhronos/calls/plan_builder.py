"""Build call plans on the master, for calls that match no cached plan."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ..engines.base import CollectiveDependence, SplitPoint
from ..errors import ArgumentError, ArgumentValueError
from ..program.program import Program
from ..reductions import MISSING, ReduceOp
from ..replication.replicator import Replicator, replicator_of
from ..runtime.session import Session
from .arguments import Arguments
from .batches import table_per_rank
from .command import SharedLengths
from .default_ops import op_of, warn_of_slices
from .division import Division, divide
from .plan import AfterCollective, CallPlan
from .rank_steps import StepSequence
from .state_rows import rows_of_states
from .variants import CompiledGraph, Variants

logger = logging.getLogger("synkhronos")


class PlanBuilder:
    """Builder of the plans of one function; ``updates`` are the user's updates, as (shared variable, op)."""

    def __init__(
        self,
        engine: Any,
        compiled: Any,
        output_ops: List[ReduceOp],
        updates: List[Tuple[Any, Any]],
        arguments: Arguments,
        variants: Variants,
    ) -> None:
        self.engine, self.output_ops, self.updates = engine, output_ops, updates
        self.arguments, self.variants, self.outputs = arguments, variants, engine.outputs(compiled)
        self._warned_of_slices = False

    def division(self, session: Session, n_rows: Optional[int], batch_s: Any, num_slices: Any) -> Division:
        """Return the division of a call with slices or sliceable variables; lists of indices become handles."""
        all_ranks_call = self.variants.collectives is not None
        lengths = self._lengths(session)
        written = self.variants.written_rows
        division = divide(session.size, session.root, n_rows, lengths, batch_s, num_slices, all_ranks_call, written)
        if division.shared_rows is None:
            return division
        packed = [self.arguments.pack(session.pool, rank, rows) for rank, rows in enumerate(division.shared_rows)]
        return division._replace(shared_rows=packed)

    def _lengths(self, session: Session) -> Optional[List[List[int]]]:
        """Return the lengths of the sliceable shared variables by rank; None if there are none."""
        if not self.variants.sliceable:
            return None
        lengths: List[List[int]] = session.run(SharedLengths(self._sliceable(replicator_of(session))))
        return lengths

    def _sliceable(self, replicator: Replicator) -> List[Tuple[int, int]]:
        variables = self.variants.sliceable
        return [(replicator.find(self.engine, shared), axis) for shared, axis in variables.items()]  # type: ignore[misc]

    def steps(
        self,
        function: Any,
        session: Session,
        values: Sequence[Any],
        batches: Optional[Sequence[Any]],
        batches_s: Optional[Sequence[Any]],
        n_steps: Optional[int],
        num_slices: Any,
        subset: Any,
        total: bool,
        whole: bool = False,
    ) -> StepSequence:
        """Check every step, and return the `StepSequence`; with ``whole``, one rank computes all rows of each step."""
        pool, replicator, stage = session.pool, replicator_of(session), self.arguments.stage
        if batches_s is not None and not self.variants.sliceable:
            expected = "None, because the function has no sliceable_shareds to select from"
            raise ArgumentValueError("batches_shared", expected, f"a sequence of length {len(batches_s)}")
        arguments, table, n_rows = self.arguments.prepare_steps(pool, values, batches, n_steps)
        lengths, shared, all_ranks_call = self._lengths(session), None, self.variants.collectives is not None
        if batches_s is not None and lengths is not None:
            shared = table_per_rank(batches_s, [min(of_rank) for of_rank in lengths])
            if all_ranks_call:  # ranks without rows make the call with a row of weight 0
                shared.rows[shared.counts == 0] = 0, 1, 1
        tables = [each for each in (table, shared) if each is not None]
        columns = [column for each in tables for column in each.counts.reshape(len(each.counts), -1).T]
        counts = np.stack(columns or [np.zeros(n_steps or 1, np.int64)], axis=1)
        _, first, divisions, n_each = np.unique(
            counts.reshape(-1) if len(columns) < 2 else counts,  # (with an axis, np.unique takes ten times as long)
            axis=None if len(columns) < 2 else 0,
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        order = np.argsort(first)  # so that the first wrong step is reported
        first, n_each, divisions = first[order], n_each[order], np.argsort(order)[divisions.reshape(-1)]
        plans = []
        for i in first.tolist():
            with _about_step(i, batches, batches_s):
                of_step = n_rows if table is None else int(table.counts[i])
                if self.variants.states:
                    of_step = rows_of_states(self.engine, self.variants.states, of_step, num_slices)
                division = divide(
                    session.size,
                    session.root,
                    of_step,
                    lengths if shared is None else [[count] for count in shared.counts[i].tolist()],
                    None if shared is None else slice(None),
                    num_slices,
                    all_ranks_call,
                    self.variants.written_rows,
                )
                division = division.whole(session.size) if whole else division
                plans.append(self.plan(function, replicator, arguments, None, division, subset))
        ops, types = self._outputs(subset, num_slices, total)
        rows = np.zeros((len(divisions), 4), np.int64)
        rows[:, 0] = divisions
        if table is not None:
            rows[:, 1:] = table.rows
        if shared is not None and table is not None:
            shared = shared.shifted(len(table.indices))
        indices = np.concatenate([np.zeros(0, np.intp)] + [each.indices for each in tables])
        return StepSequence(
            plans,
            n_each.tolist(),
            first.tolist(),
            stage(pool, "steps", rows),
            None if shared is None else stage(pool, "steps of shared variables", shared.rows),
            stage(pool, "indices of steps", indices),
            table is not None,
            ops,
            types,
            None if whole else self._shapes_for(plans, ops, types, total, replicator),
            self._changing_lengths(replicator, lengths or []),
            total,
        )

    def _positions(self, subset: Optional[Sequence[int]]) -> Sequence[int]:
        return range(len(self.output_ops)) if subset is None else subset

    def _outputs(self, subset: Any, num_slices: int, total: bool) -> Tuple[List[ReduceOp], List[Any]]:
        ops, types = [], []
        for i in self._positions(subset):
            op, type_ = self.output_ops[i], self.outputs[i].type
            if total and op.name is None:
                raise ArgumentValueError(
                    "total",
                    f"False, because {self.outputs[i].label} has op None, which combines no results",
                    "True",
                    "use another op for the output, or exclude it with output_subset",
                )
            if num_slices > 1 and op.name in ("sum", "prod") and type_.dtype.kind == "b":
                type_ = type_._replace(dtype=np.dtype(np.int_))  # the dtype of combined slices
            if op.dtypes:
                type_ = type_._replace(dtype=np.dtype(op.dtypes[0]))
            ops.append(op)
            types.append(type_)
        return ops, types

    def _shapes_for(
        self,
        plans: Sequence[CallPlan],
        ops: Sequence[ReduceOp],
        types: Sequence[Any],
        total: bool,
        replicator: Replicator,
    ) -> Optional[int]:
        """Return the registry number of the graph that computes the outputs' shapes; None if all shapes are known."""
        stored = [(op, type_) for op, type_ in zip(ops, types) if type_ and (op.name == "gather" or not total)]
        at_once = all(plan.division.num_slices == 1 for plan in plans)
        if all(type_.ndim == 0 and (op.name != "gather" or at_once) for op, type_ in stored):
            return None
        return _number(replicator, self.variants.shapes(plans[0].division.shared_rows is not None))

    def _changing_lengths(self, replicator: Replicator, lengths: Sequence[Sequence[int]]) -> List[Any]:
        """Return each updated sliceable variable's registry number, axis of rows, and lengths by rank."""
        updated = {self.engine.identity(shared) for shared in self.engine.updated_in(self.variants.snapshot)}
        return [
            (replicator.find(self.engine, shared), axis, [of_rank[i] for of_rank in lengths])
            for i, (shared, axis) in enumerate(self.variants.sliceable.items())
            if self.engine.identity(shared) in updated
        ]

    def plan(
        self,
        function: Any,
        replicator: Replicator,
        arguments: Sequence[Any],
        indices: Any,
        division: Division,
        subset: Any,
    ) -> CallPlan:
        """Check a call and return its plan, which other calls with equal arguments share."""
        ops = self._ops(division, subset, replicator.session.root)
        if function.exact and division.rows_differ:
            raise _rows_differ("because the function is exact", "select equal numbers of rows of both")
        if division.num_slices > 1 and self.variants.collectives is None and not self._warned_of_slices:
            self._warned_of_slices = True
            warn_of_slices(function.name or "without a name", self.variants.own_updates(self.updates) or [])
        number, sliceable, updates = self._graph_for(function, division, replicator)
        inputs = self.arguments.inputs
        arguments = [
            one if one.kind != "state" else one._replace(value=replicator.find(self.engine, inputs[one.value].state))
            for one in arguments
        ]
        chosen = [self.outputs[i] for i in self._positions(subset)]
        types = [output.type for output in chosen]
        collectives, second_half = self.variants.collectives, None
        n_more = len(updates)
        if division.num_slices > 1 and collectives is not None and collectives.cut is not None:
            second_half = self._second_half(collectives.cut, replicator, self._positions(subset), division.num_slices)
            n_random = sum(map(self.engine.is_random, self.variants.returned(True)))
            n_more = len(second_half.ops) + n_random
        wanted = subset
        if subset is not None and n_more:
            wanted = [*subset, *range(len(self.output_ops), len(self.output_ops) + n_more)]
        # Answers contain no outputs of sliced calls: gathered scalars become arrays, and updates need a barrier anyway.
        divides = collectives is not None and collectives.divides
        in_answers = (
            division.num_slices == 1
            and not divides
            and all(op.name is None or type_ is not None and type_.ndim == 0 for op, type_ in zip(ops, types))
        )
        divided = self._divided(function, division, replicator.session)
        return CallPlan(
            number,
            function.name or "without a name",
            arguments,
            indices,
            division,
            subset,
            wanted,
            ops,
            [output.label for output in chosen],
            [_dtype_on_ranks(op, type_) for op, type_ in zip(ops, types)] if in_answers else None,
            self.engine.opened_device() is not None,
            sliceable,
            updates,
            None if collectives is None else collectives.replicated_updates,
            self._alike(updates, divided, replicator.session),
            divided,
            bool(divided) and not why_undivided(function.program, replicator.session),
            second_half,
            self._writes(replicator) if replicator.session.healing is not None else (),
            self.variants.written_rows,
        )

    def _divided(self, function: Any, division: Division, session: Session) -> Sequence[bool]:
        """Return which new values the graph returns as vectors; () if none."""
        if division.num_slices > 1 or not session.launcher.runs_python:
            return ()
        graph = function if division.shared_rows is None else self.variants.get(False)
        reasons = self.engine.why_whole(graph.on_ranks)
        return [not reason for reason in reasons] if "" in reasons else ()

    def _alike(self, updates: Sequence[Tuple[int, Any]], divided: Sequence[bool], session: Session) -> Sequence[bool]:
        """Return which new values are large and equal on all ranks; () if none."""
        collectives, entries = self.variants.collectives, session.context.entries([number for number, _ in updates])
        if collectives is None or collectives.cut is None:
            return ()
        found = [
            is_same and (is_divided or session.context.transport.common.takes(entry.key, entry.cell[0]))
            for is_same, is_divided, entry in zip(
                collectives.replicated_updates, divided or [False] * len(entries), entries
            )
        ]
        return found if any(found) else ()

    def _writes(self, replicator: Replicator) -> List[int]:
        """Return the numbers of the variables that a call updates; `Deposits` protects their values on all ranks."""
        updated = self.engine.updated_in(self.variants.snapshot)
        numbers = [replicator.find(self.engine, shared) for shared in updated]
        return [number for number in dict.fromkeys(numbers) if number is not None]

    def _second_half(
        self, cut: SplitPoint, replicator: Replicator, wanted: Sequence[int], num_slices: int
    ) -> AfterCollective:
        """Return the part of the graph that a sliced call computes at the end; raise if the graph cannot be split."""
        if cut.why_not:
            expected = f"1, because the function cannot be exact in slices: {cut.why_not}"
            hint = f"{cut.remedy}; or call it with fewer rows" if cut.remedy else "call it with fewer rows"
            raise ArgumentValueError("num_slices", expected, str(num_slices), hint)
        number = _number(replicator, self.variants.after_collective())
        outputs = [(i, cut.after_split.index(output)) for i, output in enumerate(wanted) if output in cut.after_split]
        ops = [None if op is None else ReduceOp(op) for op in cut.ops]
        return AfterCollective(number, ops, outputs, len(cut.after_split))

    def _ops(self, division: Division, subset: Optional[Sequence[int]], root: int) -> List[ReduceOp]:
        """Return the ops of the requested outputs; raise if an op cannot be applied in this call."""
        positions, outputs, collectives = self._positions(subset), self.outputs, self.variants.collectives
        ops = [self.output_ops[i] for i in positions]
        for i, op in zip(positions, ops):
            if op.name is None and division.num_slices > 1 and not self._is_same_in_slices(i):
                raise ArgumentValueError(
                    "num_slices",
                    f"1, because {outputs[i].label} has op None, which returns the master's own result",
                    str(division.num_slices),
                    "use another op for the output, or exclude it with output_subset",
                )
            if op.name is None and not division.takes_part(root):
                raise ArgumentValueError(
                    outputs[i].label,
                    "an op that combines the ranks' results, because op None returns the master's own result",
                    f"no rows of the sliceable shared variables on the master (rank {root}), so it makes no call",
                    "select rows on the master too, or exclude the output with output_subset",
                )
            if collectives is not None and collectives.cut is None:
                hint = "exclude the output with output_subset"
                _check_degree(division, outputs[i].label, collectives.outputs[i], op, hint)
        _check_weights(division, ops if collectives is None else [*ops, *collectives.ops])
        if division.is_empty:
            # Every rank makes an empty call, but only the master's result counts.
            return [ReduceOp(None, dtypes=op.dtypes) for op in ops]
        return ops

    def _is_same_in_slices(self, i: int) -> bool:
        """Return whether an output is equal in all slices, or is computed once after all slices."""
        variants, collectives = self.variants, self.variants.collectives
        if collectives is not None and collectives.cut is None and collectives.outputs[i] != CollectiveDependence.NONE:
            return False
        if collectives is not None and collectives.cut is not None and i in collectives.cut.after_split:
            return True
        placements = self.engine.placed(variants.snapshot, variants.placements)
        return placements is not None and op_of(placements[i], is_float=False) == ReduceOp(None)

    def _graph_for(self, function: Any, division: Division, replicator: Replicator) -> Tuple[int, List[Any], List[Any]]:
        """Return the number of the call's graph, its sliceable variables, and the updates that the graph returns."""
        sliced, collectives = division.num_slices > 1, self.variants.collectives
        updates: List[Any] = []
        if not sliced or collectives is not None and collectives.cut is not None:
            updates = [(replicator.find(self.engine, shared), None) for shared in self.variants.returned(sliced)]
        else:
            ops = {self.engine.identity(shared): op for shared, op in self.updates}
            for i, shared in enumerate(self.variants.returned(sliced)):
                if self.engine.is_random(shared):  # random states advance from slice to slice
                    updates.append((replicator.find(self.engine, shared), None))
                    continue
                type_ = self.engine.shared_type(shared)
                if type_ is None:
                    label = self.engine.label(shared, f"updates[{i}]")
                    raise ArgumentValueError(
                        "num_slices",
                        "1, because values from different slices cannot be combined",
                        f"{division.num_slices} for a function that updates {label}, which is not a dense array",
                    )
                default = ReduceOp("avg") if type_.dtype.kind in "fc" else MISSING
                op = ops.get(self.engine.identity(shared), default)
                if collectives is not None:
                    of_slices = ReduceOp(None) if op is MISSING else op
                    hint = "accumulate the gradients in one function, in slices, and update in another function"
                    label = f"the update of {self.engine.label(shared, f'updates[{i}]')}"
                    _check_degree(division, label, collectives.updates[i], of_slices, hint)
                updates.append((replicator.find(self.engine, shared), None if op is MISSING else op))
            _check_weights(division, [op for _, op in updates if op is not None])
        if not sliced and division.shared_rows is None:
            return replicator.number(function), [], updates
        return _number(replicator, self.variants.get(sliced)), self._sliceable(replicator), updates


def why_undivided(program: Program, session: Session) -> str:
    """Return why each rank computes all elements of new values in this session; "" if it computes its part."""
    if not session.context.transport.common.is_open:
        return "each rank has its own memory"
    return "" if program.shard_updates is None or program.shard_updates else "shard_updates is False"


def _number(replicator: Replicator, graph: CompiledGraph) -> int:
    """Return the registry number of a graph, which is distributed on first use."""
    replicator.ensure([graph])
    return replicator.number(graph)


def _dtype_on_ranks(op: ReduceOp, type_: Any) -> Any:
    """Return the dtype of an output on the ranks; None if it is not an array."""
    return np.dtype(op.dtypes[0]) if op.dtypes else None if type_ is None else type_.dtype


@contextmanager
def _about_step(step: int, batches: Any, batches_s: Any) -> Iterator[None]:
    """Add the step's batch, such as ``batches[3]``, to argument errors raised in the block."""
    try:
        yield
    except ArgumentError as error:
        names = {"batch": "batches", "batch_shared": "batches_shared"}
        argument = f"{names.get(error.argument, error.argument)}[{step}]"
        if error.argument not in names:
            given = "batches" if batches is not None else "batches_shared" if batches_s is not None else None
            argument = error.argument if given is None else f"{error.argument}, with {given}[{step}]"
        raise type(error)(argument, error.expected, error.got, error.hint) from None


def _check_degree(division: Division, label: str, degree: CollectiveDependence, op: ReduceOp, hint: str) -> None:
    """Raise for a call in slices if the op does not combine the slices' values into the value for all rows."""
    if division.num_slices == 1 or degree == CollectiveDependence.NONE:
        return
    why = "is not linear in the averages of an all_reduce inside the function, or depends on other values as well"
    if degree == CollectiveDependence.AFFINE:
        if op.name in (None, "avg"):  # None: all slices must be equal
            return
        why = f"depends on averages of an all_reduce inside the function and has op {op}"
    expected = f"1, because {label} {why}, so slices do not combine into the value for all rows"
    raise ArgumentValueError("num_slices", expected, str(division.num_slices), hint)


def _check_weights(division: Division, ops: Sequence[ReduceOp]) -> None:
    """Raise if an op averages and the ranks' weights are undefined."""
    if division.rows_differ and any(op.name == "avg" for op in ops):
        raise _rows_differ("because op 'avg' weights by rows", "select equal numbers of rows, or avoid op 'avg'")


def _rows_differ(why: str, hint: str) -> ArgumentValueError:
    expected = f"equal numbers of rows of the sliceable shared variables and the scattered inputs, {why}"
    return ArgumentValueError("batch_shared", expected, "different numbers of rows on some rank", hint)
