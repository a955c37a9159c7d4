"""One rank's call of a function: on its rows at once, or slice by slice."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

from ..runtime.context import RankContext
from .plan import Plan, Prepared
from .slicing import in_slices

#: What a call changes on this rank if it is committed; must not fail.
Changes = List[Callable[[], object]]


def call(
    prepared: Prepared, values: Sequence[Any], rows: Any, shared_rows: Any, context: RankContext
) -> Tuple[List[Any], Changes]:
    """Call the function on this rank's rows; return its outputs, and what is left to be changed.

    Parameters
    ----------
    prepared : Prepared
        The plan, on this rank.
    values, rows, shared_rows
        As `Prepared.slice` takes them.
    context : RankContext

    Returns
    -------
    outputs : list
        None for each if the rank makes no call.
    changes : list of callables
        Updates that the graph leaves to us; the others have been made.
    """
    plan = prepared.plan
    if not prepared.pieces:
        return [None] * len(plan.ops), []
    if plan.division.num_slices > 1:
        return _in_slices(prepared, values, rows, shared_rows, context)
    entry = context.functions[plan.number]
    arguments = prepared.slice(0, values, rows, shared_rows, context)
    try:
        return entry.engine.call(entry.reference(), arguments, plan.subset), []
    except Exception as error:
        _explain(error, plan, entry.engine, context)
        raise


def _in_slices(
    prepared: Prepared, values: Sequence[Any], rows: Any, shared_rows: Any, context: RankContext
) -> Tuple[List[Any], Changes]:
    """Call the function slice by slice; return the outputs, and what applies the accumulated updates."""
    plan = prepared.plan
    entry = context.functions[plan.number]
    engine, compiled = entry.engine, entry.reference()
    n_outputs = len(engine.outputs(compiled)) - len(plan.updates)
    wanted = list(range(n_outputs)) if plan.subset is None else list(plan.subset)
    wanted = wanted + list(range(n_outputs, n_outputs + len(plan.updates)))
    targets = [context.shareds[number].reference() for number, _ in plan.updates]

    def call_slice(i: int) -> Any:
        try:
            return engine.call(compiled, prepared.slice(i, values, rows, shared_rows, context), wanted)
        except Exception as error:
            _explain(error, plan, engine, context)
            raise

    outputs, news = in_slices(
        call_slice,
        [weight for weight, _, _ in prepared.pieces],
        list(zip(plan.labels, plan.ops)),
        [(engine.label(target), op) for target, (_, op) in zip(targets, plan.updates)],
        engine.accumulator,
    )
    for i, (target, new) in enumerate(zip(targets, news)):
        news[i] = engine.to_device(target, new)
        if isinstance(news[i], np.ndarray):  # a value on the device has the graph's type already
            news[i] = engine.coerce(target, news[i], f"the update of {engine.label(target)}")
    return outputs, [functools.partial(engine.put, target, new) for target, new in zip(targets, news)]


def _explain(error: Exception, plan: Plan, engine: Any, context: RankContext) -> None:
    """Raise a `MemoryError` that says what to do, if the error says that the device has no memory left."""
    if engine.is_out_of_memory(error):
        first = str(error).split("\n")[0]
        raise MemoryError(
            f"rank {context.rank} has no memory left on its device in function {plan.name} ({first}): call it with "
            f"num_slices={2 * plan.division.num_slices}, or with fewer rows"
        ) from error
