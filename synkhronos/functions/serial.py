"""The same call of the serial function: with all rows, on copies of the shared variables.

The serial function is the one that `Function.as_theano` calls. The variables hold the same objects as before when it
has returned, or raised.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from ..runtime.session import Session
from ..selection import Selection, moved, parse_per_rank
from .plan import Argument


class Given(NamedTuple):
    """What a call is given, checked.

    Attributes
    ----------
    arguments, chosen, n_rows
        As `Arguments.prepare` returns them.
    batch_s
        As the user gave it.
    subset : sequence of int, optional
        The outputs that are wanted.
    """

    arguments: Sequence[Argument]
    chosen: Optional[Selection]
    n_rows: Optional[int]
    batch_s: Any
    subset: Optional[Sequence[int]]


def rows_of_all(parts: Sequence[Any], axis: int, batch_s: Any) -> Any:
    """Return the rows that a call is about of what every rank has of a sliceable variable, in rank order."""
    if batch_s is not None:
        selections = parse_per_rank(batch_s, [part.shape[axis] for part in parts])
        parts = [moved(rows.take(moved(part, axis, 0)), 0, axis) for rows, part in zip(selections, parts)]
    return np.concatenate(list(parts), axis)


def call_serially(
    engine: Any, compiled: Any, shareds: Sequence[Any], session: Session, given: Given, values: Mapping[int, Any]
) -> Tuple[List[Any], Dict[Any, Any]]:
    """Call the serial function.

    Parameters
    ----------
    engine : Engine
    compiled
        The engine's own function.
    shareds : sequence of shared variables
        All that it uses.
    session : Session
    given : Given
    values : dict of int to array
        What variables hold meanwhile, by ``id``; copies of their values by default.

    Returns
    -------
    outputs : list
        On the host.
    after : dict
        What the variables hold then, by `Engine.identity`.
    """
    pools = session.context.pools
    chosen: Dict[Any, Any] = {}  # one variable of each storage
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
    """Return all rows of an argument that the call is about, as an array of their own."""
    if argument.kind == "value":
        return cloudpickle.loads(argument.value)
    array = pools.attach(argument.value)
    if argument.kind == "selected" and chosen is not None:
        array = chosen.take(array)
    elif argument.kind == "batch":
        array = array[:n_rows]
    return np.array(moved(array, 0, argument.axis) if argument.axis else array)
