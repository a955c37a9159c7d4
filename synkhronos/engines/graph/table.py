"""How a function lies over the ranks, and the collectives inside it: for those who look."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

from ...sharding import Shard, propagate
from ..base import ArrayType, Inside, Sharding
from .library import Library
from .snapshot import Snapshot


def sharding(
    library: Library,
    snapshot: Snapshot,
    shards: Mapping[Any, Shard],
    label: Callable[[Any], str],
    array_type: Callable[[Any], Optional[ArrayType]],
) -> Sharding:
    """Return the placements and the collectives of a function; see `Engine.sharding`."""
    roots = snapshot.expressions()
    graph = library.graph_of(roots)
    found = propagate(graph.nodes, {**graph.known, **shards}, False)
    collectives = []
    for node in library.io_toposort([], roots):
        if isinstance(node.op, library.AllReduce):
            parts = node.inputs[: node.op.n]
            types = [array_type(part.type) for part in parts]
            names = [f"{label(part)} ({type_.words})" for part, type_ in zip(parts, types) if type_]
            updates = [label(target) for target, new in snapshot.updates if _depends(library, new, node)]
            collectives.append(Inside(str(node.op.op), names, updates))
    return Sharding(
        [found.of(given.variable) for given in snapshot.inputs],
        [found.of(output.variable) for output in snapshot.outputs],
        [found.of(new) for _, new in snapshot.updates],
        collectives,
    )


def _depends(library: Library, variable: Any, node: Any) -> bool:
    return node in library.io_toposort([], [variable])
