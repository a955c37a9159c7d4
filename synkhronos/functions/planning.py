"""Plans of calls, made on the master for a call that is not like any before it."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from ..errors import ArgumentValueError
from ..reductions import MISSING, ReduceOp
from ..replication.replicator import Replicator, replicator_of
from ..runtime.session import Session
from .arguments import Arguments
from .division import Division, divide
from .plan import Plan
from .upkeep import SharedLengths
from .variants import Variants


class Planner:
    """Makes the plans of one function.

    Parameters
    ----------
    engine : Engine
    compiled : the engine's function
    output_ops : list of ReduceOp
        One per output.
    updates : list of (shared variable, op)
        The updates that the user gave.
    arguments : Arguments
    variants : Variants
    """

    def __init__(
        self,
        engine: Any,
        compiled: Any,
        output_ops: List[ReduceOp],
        updates: List[Tuple[Any, Any]],
        arguments: Arguments,
        variants: Variants,
    ) -> None:
        self.engine, self.compiled, self.output_ops, self.updates = engine, compiled, output_ops, updates
        self.arguments, self.variants = arguments, variants

    def division(self, session: Session, n_rows: Optional[int], batch_s: Any, num_slices: Any) -> Division:
        """Return the division of a call with slices or sliceable variables, long lists of indices as handles."""
        lengths, sliceable = None, self.variants.sliceable
        if sliceable:
            replicator = replicator_of(session)
            lengths = session.run(SharedLengths([replicator.find(self.engine, shared) for shared in sliceable]))
        joint = self.variants.collectives is not None
        division = divide(session.size, session.root, n_rows, lengths, batch_s, num_slices, joint)
        if division.shared_rows is None:
            return division
        packed = [self.arguments.pack(session.pool, rank, rows) for rank, rows in enumerate(division.shared_rows)]
        return division._replace(shared_rows=packed)

    def plan(
        self,
        function: Any,
        replicator: Replicator,
        arguments: Sequence[Any],
        indices: Any,
        division: Division,
        subset: Any,
    ) -> Plan:
        """Return what a call has in common with others of the same arguments, after checking that it makes sense."""
        ops = self._ops(division, subset, replicator.session.root)
        number, sliceable, updates = self._graph_for(function, division, replicator)
        outputs = self.engine.outputs(self.compiled)
        chosen = outputs if subset is None else [outputs[i] for i in subset]
        types = [output.type for output in chosen]
        wanted = subset
        if subset is not None and updates:
            wanted = [*subset, *range(len(outputs), len(outputs) + len(updates))]
        collectives = self.variants.collectives
        # In slices, what is gathered grows, and updates are applied at a barrier anyway.
        in_answers = division.num_slices == 1 and all(
            op.name is None or type_ is not None and type_.ndim == 0 for op, type_ in zip(ops, types)
        )
        return Plan(
            number,
            function.name or "without a name",
            arguments,
            indices,
            division,
            subset,
            wanted,
            ops,
            [output.label for output in chosen],
            [None if type_ is None else type_.dtype for type_ in types] if in_answers else None,
            self.engine.opened_device() is not None,
            sliceable,
            updates,
            None if collectives is None else collectives.common,
        )

    def _ops(self, division: Division, subset: Optional[Sequence[int]], root: int) -> List[ReduceOp]:
        """Return the ops of the wanted outputs; refuse those that make no sense in this call."""
        positions = range(len(self.output_ops)) if subset is None else subset
        ops = [self.output_ops[i] for i in positions]
        for i, op in zip(positions, ops):
            if op.name is None and division.num_slices > 1:
                raise ArgumentValueError(
                    "num_slices",
                    f"1, because {self.engine.outputs(self.compiled)[i].label} has op None, which takes one result",
                    str(division.num_slices),
                    "give the output another op, or leave it out with output_subset",
                )
            if op.name is None and not division.takes_part(root):
                raise ArgumentValueError(
                    self.engine.outputs(self.compiled)[i].label,
                    "an op that combines ranks: op None takes the master's own result",
                    f"no rows of the sliceable shared variables on the master (rank {root}), so it makes no call",
                    "select some there too, or leave the output out with output_subset",
                )
        inside = [] if self.variants.collectives is None else self.variants.collectives.ops
        _check_weights(division, ops + list(inside))
        if division.is_empty:
            return [ReduceOp(None)] * len(ops)  # every rank makes the call without rows; the master's result counts
        return ops

    def _graph_for(self, function: Any, division: Division, replicator: Replicator) -> Tuple[int, List[Any], List[Any]]:
        """Return the number of the graph that the call needs, and of the variables whose updates it leaves to us."""
        sliced = division.num_slices > 1
        updates: List[Any] = []
        if not sliced:
            updates = [(replicator.find(self.engine, shared), None) for shared in self.variants.returned(sliced)]
        else:
            self._check_linear(division)
            ops = {self.engine.identity(shared): op for shared, op in self.updates}
            for shared in self.variants.returned(sliced):
                if self.engine.is_random(shared):  # it advances from slice to slice
                    updates.append((replicator.find(self.engine, shared), None))
                    continue
                type_ = self.engine.shared_type(shared)
                if type_ is None:
                    raise ArgumentValueError(
                        "num_slices",
                        "1, because values on different slices cannot be combined",
                        f"{division.num_slices} for a function that updates {self.engine.label(shared)}, which is "
                        "not a dense array",
                    )
                default = ReduceOp("avg") if type_.dtype.kind in "fc" else MISSING
                op = ops.get(self.engine.identity(shared), default)
                updates.append((replicator.find(self.engine, shared), None if op is MISSING else op))
            _check_weights(division, [op for _, op in updates if op is not None])
        if not sliced and division.shared_rows is None:
            return replicator.number(function), [], updates
        graph = self.variants.get(sliced)
        replicator.ensure([graph])
        sliceable = [replicator.find(self.engine, shared) for shared in self.variants.sliceable]
        return replicator.number(graph), sliceable, updates

    def _check_linear(self, division: Division) -> None:
        """Refuse slices if the mean of an update's new values on them is not its new value on all rows."""
        if self.variants.collectives is None:
            return
        updated = self.engine.updated_in(self.variants.snapshot)
        for shared, is_linear in zip(updated, self.variants.collectives.linear):
            if not is_linear:
                raise ArgumentValueError(
                    "num_slices",
                    f"1, because the update of {self.engine.label(shared)} is not linear in what an all_reduce inside "
                    "the function gives, so that the mean over slices is something else",
                    str(division.num_slices),
                    "accumulate the gradients in one function, in slices, and update in another",
                )


def _check_weights(division: Division, ops: Sequence[ReduceOp]) -> None:
    """Refuse averages for which rows have no weights."""
    if division.rows_differ and any(op.name == "avg" for op in ops):
        raise ArgumentValueError(
            "batch_s",
            "as many rows of the sliceable shared variables as of the scattered inputs, for op 'avg' weighs by rows",
            "different numbers on some rank",
            "select as many rows of both, or use other ops",
        )
