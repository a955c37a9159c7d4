"""Which inputs a function that is refused had better list elsewhere: in ``bcast_inputs``, or no longer there.

It is tried: with the inputs listed so, the placements that were missing have to be found.
"""

from __future__ import annotations

from itertools import chain, combinations, islice
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from ..sharding import Shard

#: Lists of inputs that are tried: each takes as long as the placements of a function do.
MAX_TRIALS = 24


def advice(
    names: Mapping[Any, str],
    shards: Mapping[Any, Shard],
    could_have_rows: Sequence[Any],
    builds: Callable[[Dict[Any, Shard]], bool],
    updated: Mapping[Any, str] = MappingProxyType({}),
) -> Optional[str]:
    """Return what to do, if it is about inputs; else None.

    Parameters
    ----------
    names : mapping from variables to str
        Of the function's inputs, as the program may call them.
    shards : mapping from variables to Shard
        What is divided by rows.
    could_have_rows : sequence of variables
        Inputs that go whole to every rank, but could be divided.
    builds : callable
        From what is divided to whether the function is not refused then.
    updated : mapping from shared variables to str
        Those that the function updates, which may have the batch's rows; how the program may call them.
    """
    scattered = [variable for variable in shards if variable in names]
    for whole in islice(_fewer(scattered, len(shards)), MAX_TRIALS):
        if builds({variable: shard for variable, shard in shards.items() if variable not in whole}):
            listed = ", ".join(names[variable] for variable in whole)
            do, them = ("does", "it") if len(whole) == 1 else ("do", "them")
            return f"if {listed} {do} not have the batch's rows, list {them} apart: bcast_inputs=[{listed}]"
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
    """Yield inputs that may be whole, the last ones first; something stays divided."""
    last_first = scattered[::-1]
    most = min(len(scattered), n_divided - 1)
    sizes = [*range(1, min(most, 2) + 1), *([most] if most > 2 else [])]
    return chain.from_iterable(combinations(last_first, size) for size in sizes)
