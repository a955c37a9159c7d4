"""A call to a function on all ranks at once, in one thread, for engines that compute all ranks' results together.

::

    every rank (`RankCall.run`)         select rows -> compute, with collectives through the transport -> change values
    `call_together`                     select all ranks' rows -> compute all ranks' results -> change all values

The steps, their order and the plan are the same. Nothing changes before all ranks' results are there.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from ..errors import prefixed
from ..reductions import reduce_outputs
from ..runtime.context import RankContext
from ..selection import moved
from ..transports.layouts import check_same
from .plan import CallPlan, RankPlan
from .rank_call import NOTHING, CollectivesOfCall, RankResult, change_of, explain


def is_possible(plan: CallPlan, contexts: Sequence[RankContext]) -> bool:
    """Return whether `call_together` supports a call: its engine must, and the call must not be made in slices."""
    engine = contexts[0].registry.functions[plan.number].engine
    return engine.calls_together and plan.division.num_slices == 1 and plan.after_collective is None


def can_repeat(prepared: Sequence[RankPlan], values: Sequence[Sequence[Any]]) -> bool:
    """Return whether the arguments of several calls exist at once: rows of arrays on devices, or the same arrays."""
    plan, engine = prepared[0].plan, prepared[0].engine
    return not plan.sliceable and all(
        engine.is_on_device(value) if argument.kind in ("selected", "batch") else argument.kind != "state"
        for of_rank in values
        for argument, value in zip(plan.arguments, of_rank)
    )


def call_together(
    prepared: Sequence[RankPlan],
    values: Sequence[Sequence[Any]],
    steps: Sequence[Tuple[Any, Sequence[Any]]],
    contexts: Sequence[RankContext],
    root: int,
    n_most: int = 1,
) -> List[List[RankResult]]:
    """Call a function on all ranks for one or more steps; return the results of the first steps, by step and rank.

    ``prepared`` and ``values`` are lists by rank; ``steps`` has the rows of each step, and its shared rows by rank. The
    last results contain the changes of all these steps. For ``n_most`` see `Engine.call_together`.
    """
    plan, n_outputs = prepared[0].plan, len(prepared[0].plan.ops)
    division, joint = plan.division, plan.replicated_updates
    entries = [context.registry.functions[plan.number] for context in contexts]
    calling = [rank for rank, each in enumerate(prepared) if each.pieces]
    arguments = [
        [prepared[r].slice(0, values[r], rows, shared_rows[r], contexts[r]) for r in calling]
        for rows, shared_rows in steps
    ]
    calls: List[Optional[CollectivesOfCall]] = [None] * len(calling)
    if joint is not None:
        calls = [CollectivesOfCall(prepared[r], 0, contexts[r]) for r in calling]
    functions = [entries[rank].reference() for rank in calling]
    try:
        made, change = entries[root].engine.call_together(calling, functions, arguments, calls, plan.wanted, n_most)
    except Exception as error:
        _explain(error, plan, contexts, root)
        raise
    first, own = calls[0], [prepared[rank] for rank in calling]
    counts, chosen = [each.counts for each in own], [each.chosen for each in own]
    if first is not None and division.weights is None and first.weights is not None:
        division = division._replace(weights=list(map(int, first.weights)))
        counts = [division.takes_part(rank) for rank in calling]
        chosen = [each.applied(count) for each, count in zip(own, counts)]
    changes: List[Any] = [change, *[NOTHING] * len(calling)]
    if joint is not None:
        changes = [change_of(each, some, of_rank[n_outputs:]) for each, some, of_rank in zip(own, chosen, made[-1])]
    found = []
    for results in made:
        of_step = [RankResult([None] * n_outputs, NOTHING, division) for _ in contexts]
        for rank, count, of_rank, of_change in zip(calling, counts, results, changes):
            for k, axis in prepared[rank].moved:
                of_rank[k] = moved(of_rank[k], axis, 0)
            outputs = of_rank[:n_outputs] if count or joint is None else [None] * n_outputs
            of_step[rank] = RankResult(outputs, of_change if results is made[-1] else NOTHING, division)
        found.append(of_step)
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


def on_host(
    plan: CallPlan,
    outputs: Sequence[Sequence[Any]],
    contexts: Sequence[RankContext],
    root: int,
    on_loss: Callable[[], object] = bool,
) -> List[List[Any]]:
    """Wait for outputs by rank, which devices may still be computing; return them on the host.

    ``on_loss`` is called if an error of the devices has destroyed the values of variables.
    """
    to_host = contexts[root].registry.functions[plan.number].engine.to_host
    try:
        return [list(map(to_host, of_rank)) for of_rank in outputs]
    except Exception as error:
        _explain(error, plan, contexts, root, on_loss)
        raise


def _explain(
    error: Exception,
    plan: CallPlan,
    contexts: Sequence[RankContext],
    root: int,
    on_loss: Callable[[], object] = bool,
) -> None:
    entries = [context.registry.functions[plan.number] for context in contexts]
    if entries[root].engine.replace_lost([entry.reference() for entry in entries], error):
        on_loss()
    explain(error, plan, entries[root].engine, contexts[root])


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
