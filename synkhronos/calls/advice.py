"""Suggest changes to the input lists of a function that cannot be built or lacks an op; every suggestion is tested."""

from __future__ import annotations

from itertools import chain, combinations, islice
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from ..errors import ArgumentError
from ..reductions import MISSING, ReduceOp
from ..sharding import Shard
from .arguments import Arguments
from .default_ops import op_of

#: Maximum number of trials of each kind of change; every trial propagates the placements of the whole function.
MAX_TRIALS = 24


def advice(
    names: Mapping[Any, str],
    shards: Mapping[Any, Shard],
    could_have_rows: Sequence[Any],
    builds: Callable[[Dict[Any, Shard]], bool],
    updated: Mapping[Any, str] = MappingProxyType({}),
) -> Optional[str]:
    """Return, as text, a change to the inputs that makes the function valid; None if no such change is found.

    ``shards`` are the variables divided by rows. The inputs ``could_have_rows`` and the shared variables ``updated``
    are not divided, but could be.
    """
    scattered = [variable for variable in shards if variable in names]
    for whole in islice(_fewer(scattered, len(shards)), MAX_TRIALS):
        if builds({variable: shard for variable, shard in shards.items() if variable not in whole}):
            listed = ", ".join(names[variable] for variable in whole)
            do, them = ("does", "it") if len(whole) == 1 else ("do", "them")
            return f"if {listed} {do} not have the batch's rows, list {them} separately: bcast_inputs=[{listed}]"
    for one in could_have_rows[:MAX_TRIALS]:
        if builds({**shards, one: Shard(0)}):
            return f"if {names[one]} has the batch's rows, list it in inputs, not in bcast_inputs"
    for states in islice(chain.from_iterable(combinations(updated, size) for size in (1, 2)), MAX_TRIALS):
        if builds({**shards, **dict.fromkeys(states, Shard(0))}):
            has = "has" if len(states) == 1 else "have"
            listed = ", ".join(f"synkhronos.sharded({updated[one]})" for one in states)
            return f"if {' and '.join(updated[one] for one in states)} {has} the batch's rows, add {listed} to inputs"
    return None


def _fewer(scattered: Sequence[Any], n_divided: int) -> Iterator[Tuple[Any, ...]]:
    """Yield sets of inputs to keep whole, starting from the last input; at least one variable stays divided."""
    last_first = scattered[::-1]
    most = min(len(scattered), n_divided - 1)
    sizes = [*range(1, min(most, 2) + 1), *([most] if most > 2 else [])]
    return chain.from_iterable(combinations(last_first, size) for size in sizes)


def advice_for(
    engine: Any, snapshot: Any, shards: Dict[Any, Shard], arguments: Arguments, ops: Any, outputs: Any, exact: bool
) -> Optional[str]:
    """Return, as text, a change to the inputs that makes the function valid; None if no such change is found."""

    def builds(shards: Dict[Any, Shard]) -> bool:
        try:
            found = engine.completed(snapshot, shards)[1] if exact else engine.placed(snapshot, shards)
        except ArgumentError:
            return False
        return found is not None and all(
            op is not MISSING
            or output.type is None
            or isinstance(op_of(placement, output.type.dtype.kind in "fc"), ReduceOp)
            for op, output, placement in zip(ops, outputs, found)
        )

    names = {given.variable: given.name or f"inputs[{i}]" for i, given in enumerate(arguments.inputs)}
    could = [
        given.variable
        for given in arguments.inputs
        if given.variable not in shards and given.state is None and _can_have_rows(given.type)
    ]
    updated = {
        shared: shared.name or f"updates[{i}]"
        for i, shared in enumerate(engine.updated_in(snapshot))
        if shared not in shards and not engine.is_random(shared) and _can_have_rows(engine.shared_type(shared))
    }
    return advice(names, shards, could, builds, updated)


def _can_have_rows(type_: Any) -> bool:
    return type_ is not None and type_.ndim > 0 and not type_.broadcastable[0]
