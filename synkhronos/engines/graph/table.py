"""Overview of a function's placements and collectives, for inspection by users."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

from ...sharding import REPLICATE, Shard
from ..base import ArrayType, Inside, Sharding
from ..exact import placed
from .collectives import inside
from .library import Library
from .snapshot import Snapshot


def sharding(
    library: Library,
    snapshot: Snapshot,
    shards: Mapping[Any, Shard],
    label: Callable[[Any], str],
    array_type: Callable[[Any], Optional[ArrayType]],
) -> Sharding:
    """Return the placements and collectives of a function; see `Engine.sharding`."""
    roots, placements = snapshot.expressions(), snapshot.placements
    if placements is None:
        placements = placed(library.graph_of(roots), shards)
    collectives, number = [], 0
    for node in library.io_toposort([], roots):
        if isinstance(node.op, library.AllReduce):
            parts = node.inputs[: node.op.n]
            types = [array_type(part.type) for part in parts]
            names = [f"{label(part)} ({type_.words})" for part, type_ in zip(parts, types) if type_]
            updates = [label(target) for target, new in snapshot.updates if _depends(library, new, node)]
            collectives.append(Inside(number, str(node.op.op), names, updates))
            number += 1
        else:
            number += sum(isinstance(one, library.AllReduce) for one in inside(library, node))
    return Sharding(
        [shards.get(given.variable, REPLICATE) for given in snapshot.inputs],
        placements[: len(snapshot.outputs)],
        placements[len(snapshot.outputs) :],
        collectives,
    )


def _depends(library: Library, variable: Any, node: Any) -> bool:
    return node in library.io_toposort([], [variable])
