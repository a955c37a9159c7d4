"""A call to a function on all ranks at once, in one thread, for engines that compute all ranks' results together.

::

    every rank (`rank_call.call`)       select rows -> compute, with collectives through the transport -> change values
    `call_together`                     select all ranks' rows -> compute all ranks' results -> change all values

The steps, their order and the plan are the same. Nothing changes before all ranks' results are there.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from ..errors import prefixed
from ..reductions import reduce_outputs
from ..runtime.context import RankContext
from ..selection import moved
from ..transports.shared_memory import check_same
from .plan import CallPlan, RankPlan
from .rank_call import NOTHING, CollectivesOfCall, RankResult, change_of, explain


def is_possible(plan: CallPlan, contexts: Sequence[RankContext]) -> bool:
    """Return whether `call_together` supports a call: its engine must, and the call must not be made in slices."""
    engine = contexts[0].registry.functions[plan.number].engine
    return engine.calls_together and plan.division.num_slices == 1 and plan.after_collective is None


def call_together(
    prepared: Sequence[RankPlan],
    values: Sequence[Sequence[Any]],
    rows: Any,
    shared_rows: Sequence[Any],
    contexts: Sequence[RankContext],
    root: int,
) -> List[RankResult]:
    """Call a function on all ranks; arguments and results are lists by rank, except for the call's ``rows``."""
    plan, n_outputs = prepared[0].plan, len(prepared[0].plan.ops)
    division, joint = plan.division, plan.replicated_updates
    entries = [context.registry.functions[plan.number] for context in contexts]
    calling = [rank for rank, each in enumerate(prepared) if each.pieces]
    arguments = [prepared[r].slice(0, values[r], rows, shared_rows[r], contexts[r]) for r in calling]
    calls: List[Optional[CollectivesOfCall]] = [None] * len(calling)
    if joint is not None:
        calls = [CollectivesOfCall(plan, prepared[r].weights[0], prepared[r].rows[0], contexts[r]) for r in calling]
    functions = [entries[rank].reference() for rank in calling]
    try:
        results, change = entries[root].engine.call_together(calling, functions, arguments, calls, plan.wanted)
    except Exception as error:
        explain(error, plan, entries[root].engine, contexts[root])
        raise
    first = calls[0]
    if first is not None and division.weights is None and first.weights is not None:
        division = division._replace(weights=list(map(int, first.weights)))
    found = [RankResult([None] * n_outputs, NOTHING, division) for _ in contexts]
    for rank, of_rank in zip(calling, results):
        for k, axis in prepared[rank].moved:
            of_rank[k] = moved(of_rank[k], axis, 0)
        if joint is None:
            found[rank] = RankResult(of_rank[:n_outputs], change if rank == calling[0] else NOTHING, division)
            continue
        counts = division.takes_part(rank)
        of_change = change_of(prepared[rank], prepared[rank].applied(counts), of_rank[n_outputs:])
        found[rank] = RankResult(of_rank[:n_outputs] if counts else [None] * n_outputs, of_change, division)
    return found


def apply(changes: Sequence[Callable[[], object]]) -> None:
    """Change the values of all ranks, even if a signal's handler raises in between."""
    try:
        for change in changes:
            change()
    except BaseException:
        for change in changes:  # a change may be repeated, and cannot fail by itself
            change()
        raise


def on_host(plan: CallPlan, outputs: Sequence[Any], context: RankContext) -> List[Any]:
    """Wait for a rank's outputs, which a device may still be computing; return them on the host."""
    return list(map(context.registry.functions[plan.number].engine.to_host, outputs))


def combined(plan: CallPlan, of_ranks: Sequence[Sequence[Any]], weights: Any, root: int) -> List[Any]:
    """Combine the ranks' outputs as `Transport.reduce` does; return the master's outputs."""
    outputs = list(of_ranks[root])
    for i, op in enumerate(plan.ops):
        if op.name is not None:
            parts = [None if one[i] is None else np.asarray(one[i]) for one in of_ranks]
            label = f"{plan.labels[i]} of function {plan.name}"
            if op.name != "gather":
                check_same(parts, lambda _, label=label: label, i)  # type: ignore[misc]
            with prefixed(label):
                outputs[i] = reduce_outputs(op, parts, weights, root)
    return outputs
