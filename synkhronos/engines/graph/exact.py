"""A function's graph with the collectives that make it compute what the serial program does."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Sequence, Tuple

import numpy as np

from ...reductions import ReduceOp
from ...sharding import Builder, Graph, Placement, Propagated, Shard
from .. import exact
from .library import Library
from .snapshot import Snapshot
from .unread_rows import explained


def completed(
    library: Library,
    snapshot: Snapshot,
    shards: Mapping[Any, Shard],
    label: Callable[[Any], str],
    is_random: Callable[[Any], bool],
) -> Tuple[Snapshot, List[Placement]]:
    """Return the snapshot with collectives, and the placements of its outputs; see `Engine.completed`."""
    inputs = library.graph_inputs(snapshot.expressions())
    states = [one for one in inputs if isinstance(one, library.SharedVariable) and is_random(one)]
    snapshot, graph, placements = _with_formulas(library, snapshot, shards, states)
    outputs = [one.variable for one in snapshot.outputs]
    wanted = snapshot.expressions()
    reasons = explained(library, wanted, shards, [placements.of(one) for one in wanted])
    placements.placements.update(zip(wanted, reasons))
    with library.without_test_values():
        found = exact.completed(
            graph, placements, outputs, snapshot.updates, shards, _builder(library), label, is_random
        )
    after = snapshot._replace(
        outputs=[library.Out(new, one.borrow) for new, one in zip(found.outputs, snapshot.outputs)],
        updates=[(target, new) for (target, _), new in zip(snapshot.updates, found.news)],
        halves=found.halves,
        streams=found.streams,
    )
    return after, found.placements


def _with_formulas(
    library: Library, snapshot: Snapshot, shards: Mapping[Any, Shard], states: Sequence[Any]
) -> Tuple[Snapshot, Graph, Propagated]:
    """Return the snapshot with formulas in place of operations without a rule, its graph, and the placements."""
    before = snapshot.expressions()
    graph: Graph = library.graph_of(before)
    found = exact.propagated(graph, shards, states)
    with library.without_test_values():
        after = library.with_formulas(before, found.of)
    if all(new is old for new, old in zip(after, before)):
        return snapshot, graph, found
    snapshot, graph = snapshot.with_expressions(library, after), library.graph_of(after)
    return snapshot, graph, exact.propagated(graph, shards, states)


def _builder(library: Library) -> Builder:
    def apply(node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        new: List[Any] = node.outputs[0].owner.clone_with_new_inputs(list(inputs)).outputs
        for one, before in zip(new, node.outputs):
            one.name = before.name
        return new

    def all_reduce(variables: Sequence[Any], op: str) -> Sequence[Any]:
        results: Sequence[Any] = library.AllReduce(ReduceOp(op), len(variables))(*variables, return_list=True)
        return results

    def whole_length(lengths: Any, position: int) -> Any:
        return library.WholeLength(position)(lengths)

    def as_average(part: Any) -> Any:
        """Return, of parts whose sum is a value, numbers whose average over ranks, weighted by rows, is that value."""
        if np.dtype(part.dtype).kind in "biu":
            return None  # integers have no average
        return part * library.InverseShare()(part).astype(part.dtype)

    return Builder(apply, all_reduce, whole_length, as_average, library.counted, library.checked)
