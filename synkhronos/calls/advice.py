"""Suggest changes to the input lists of a function that cannot be built or lacks an op; every suggestion is tested."""

from __future__ import annotations

from itertools import chain, combinations, islice
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from ..sharding import Shard

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
