"""A call to a function on all ranks at once, in one thread, for engines that compute all ranks' results together.

::

    every rank (`rank_call.call`)       select rows -> compute, with collectives through the transport -> change values
    `call_together`                     select all ranks' rows -> compute all ranks' results -> change all values

The steps, their order and the plan are the same. Nothing changes before all ranks' results are there.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from ..errors import prefixed
from ..reductions import reduce_outputs
from ..runtime.context import RankContext
from ..selection import moved
from ..transports.shared_memory import check_same
from .division import Division
from .plan import CallPlan, RankPlan
from .rank_call import NOTHING, CollectivesOfCall, change_of, explain


class AllRanks(NamedTuple):
    """The results of a call: outputs and changes by rank, and the division, which the graph may have made.

    Outputs may still be on devices, which compute them while this thread goes on.
    """

    outputs: List[List[Any]]
    changes: List[Callable[[], object]]
    division: Division


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
) -> AllRanks:
    """Call a function on all ranks; ``prepared``, ``values``, ``shared_rows`` and ``contexts`` are lists by rank."""
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
    found = AllRanks([[None] * n_outputs for _ in contexts], [NOTHING] * len(contexts), division)
    for rank, of_rank in zip(calling, results):
        for k, axis in prepared[rank].moved:
            of_rank[k] = moved(of_rank[k], axis, 0)
        counts = joint is None or division.takes_part(rank)
        if counts:
            found.outputs[rank] = of_rank[:n_outputs]
        if joint is not None:
            chosen = [i for i, is_common in enumerate(joint) if counts or is_common]
            found.changes[rank] = change_of(plan, chosen, of_rank[n_outputs:], contexts[rank])
    if joint is None:
        found.changes[root] = change
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
    """Wait for a rank's outputs; return them on the host."""
    return list(map(context.registry.functions[plan.number].engine.to_host, outputs))


def combined(plan: CallPlan, found: AllRanks, root: int) -> List[Any]:
    """Return the master's outputs, combined over the ranks as `Transport.reduce` does."""
    outputs = list(found.outputs[root])
    for i, op in enumerate(plan.ops):
        if op.name is not None:
            parts = [None if one[i] is None else np.asarray(one[i]) for one in found.outputs]
            label = f"{plan.labels[i]} of function {plan.name}"
            if op.name != "gather":
                check_same(parts, lambda _, label=label: label, i)  # type: ignore[misc]
            with prefixed(label):
                outputs[i] = reduce_outputs(op, parts, found.division.weights, root)
    return outputs
