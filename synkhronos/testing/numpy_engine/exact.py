"""Add collectives to a NumPy graph so that its results equal the serial function's."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Sequence, Tuple

from ...engines import exact
from ...reductions import ReduceOp
from ...sharding import GraphBuilder, Node, Placement, Shard
from .function import NumpyGraph
from .graph import Apply, NumpyVariable
from .operations import all_reduce, scaled, whole_length
from .placing import graph_of, is_element


def completed(
    graph: NumpyGraph, shards: Mapping[Any, Shard], label: Callable[[Any], str], is_random: Callable[[Any], bool]
) -> Tuple[NumpyGraph, List[Placement]]:
    """Return the graph with collectives, and the placements of its outputs; see `Engine.completed`."""
    nodes = graph_of(graph.expressions())
    found = exact.completed(
        nodes, exact.propagated(nodes, shards), graph.outputs, graph.updates, shards, BUILDER, label, is_random
    )
    updates = [(target, new) for (target, _), new in zip(graph.updates, found.news)]
    return graph._replace(outputs=found.outputs, updates=updates, halves=found.halves), found.placements


def _apply(node: Node, inputs: Sequence[Any]) -> Sequence[Any]:
    one = next(output for output in node.outputs if isinstance(output, Apply))
    before = one.args[0] if is_element(one) else one
    args = [new if isinstance(new, NumpyVariable) else arg for new, arg in zip(inputs, before.args)]
    new = Apply(before.function, (*args, *before.args[len(args) :]), before.type, before.name)
    if before is one:
        return [new]
    return [
        Apply(output.function, (new,), output.type, output.name) if isinstance(output, Apply) else output
        for output in node.outputs
    ]


def _as_average(part: Any) -> Any:
    return None if part.type.dtype.kind in "biu" else Apply(scaled, (part,), part.type)


BUILDER = GraphBuilder(
    _apply,
    lambda variables, op: all_reduce(variables, ReduceOp(op)),
    lambda lengths, position: Apply(whole_length, (lengths, position), lengths.type),
    _as_average,
)
