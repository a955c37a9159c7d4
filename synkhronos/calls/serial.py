"""Call the serial function on all rows, and restore the original values of its variables, even after an error."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from ..runtime.session import Session
from ..selection import Selection, moved, parse_per_rank
from .plan import Argument


class Given(NamedTuple):
    """The staged arguments of a call (see `Arguments.prepare`), and its selected rows and outputs."""

    arguments: Sequence[Argument]
    chosen: Optional[Selection]
    n_rows: Optional[int]
    batch_s: Any  # the user's argument
    subset: Optional[Sequence[int]]  # the requested outputs


def rows_of_all(parts: Sequence[Any], axis: int, batch_s: Any) -> Any:
    """Return the rows of a sliceable variable that a call uses on all ranks, in rank order."""
    if batch_s is not None:
        selections = parse_per_rank(batch_s, [part.shape[axis] for part in parts])
        parts = [moved(rows.take(moved(part, axis, 0)), 0, axis) for rows, part in zip(selections, parts)]
    return np.concatenate(list(parts), axis)


def call_serially(
    engine: Any, compiled: Any, shareds: Sequence[Any], session: Session, given: Given, values: Mapping[int, Any]
) -> Tuple[List[Any], Dict[Any, Any]]:
    """Call the serial function; return its outputs on the host, and the variables' new values by `Engine.identity`.

    ``values`` are the variables' values during the call, by ``id``; by default, copies of the current values.
    """
    pools = session.context.pools
    chosen: Dict[Any, Any] = {}  # one variable per storage
    for shared in shareds:
        if engine.identity(shared) not in chosen or id(shared) in values:
            chosen[engine.identity(shared)] = shared
    before = {identity: engine.get(shared) for identity, shared in chosen.items()}
    copies = {
        identity: engine.to_device(shared, values[id(shared)] if id(shared) in values else engine.export(shared))
        for identity, shared in chosen.items()
    }
    try:
        for identity, shared in chosen.items():
            engine.put(shared, copies[identity])
        states = [one.state for one in engine.inputs(compiled)]
        arguments = [
            engine.get(states[one.value]) if one.kind == "state" else _whole(one, given.chosen, given.n_rows, pools)
            for one in given.arguments
        ]
        outputs = engine.call(compiled, arguments, given.subset)
        after = {identity: engine.to_host(engine.get(shared)) for identity, shared in chosen.items()}
    finally:
        for identity, shared in chosen.items():
            engine.put(shared, before[identity])
    return [engine.to_host(output) for output in outputs], after


def _whole(argument: Argument, chosen: Optional[Selection], n_rows: Optional[int], pools: Any) -> Any:
    """Return the rows of an argument that the call uses on all ranks, as a separate array."""
    if argument.kind == "value":
        return cloudpickle.loads(argument.value)
    array = pools.attach(argument.value)
    if argument.kind == "selected" and chosen is not None:
        array = chosen.take(array)
    elif argument.kind == "batch":
        array = array[:n_rows]
    return np.array(moved(array, 0, argument.axis) if argument.axis else array)
