"""A function's graph with the collectives that make it compute what the serial program does."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ...reductions import ReduceOp
from ...sharding import Builder, Graph, Placement, Propagated, Shard, Unknown
from .. import exact
from .lengths import broadcastable
from .library import Library
from .rewrites import LATER, OF_ELEMENTS
from .snapshot import Snapshot

logger = logging.getLogger("synkhronos")


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
    snapshot, graph, placements = _rewritten(library, snapshot, shards, states)
    outputs = [one.variable for one in snapshot.outputs]
    with library.without_test_values():
        found = exact.completed(
            graph, placements, outputs, snapshot.updates, shards, _builder(library), label, is_random
        )
    after = snapshot._replace(
        outputs=[library.Out(new, one.borrow) for new, one in zip(found.outputs, snapshot.outputs)],
        updates=[(target, new) for (target, _), new in zip(snapshot.updates, found.news)],
        halves=found.halves,
        streams=found.streams,
        placements=[*found.placements, *found.of_news],
    )
    return after, found.placements


#: What is said of functions whose rows rules follow only as long as nothing is rewritten.
UNLIKE = (
    "function %s: its collectives are put in before its mode's optimizations, as it could not be followed after these: "
    "where values are inf or NaN, or lose digits, it may differ from the serial function"
)

#: A function's expressions as rules see them: the snapshot, its graph, and the placements.
Followed = Tuple[Snapshot, Graph, Propagated]


def _rewritten(library: Library, snapshot: Snapshot, shards: Mapping[Any, Shard], states: Sequence[Any]) -> Followed:
    """Return the function with those rewrites of its mode that may change values; see `graph.rewrites`.

    Fewer of them are made if rules do not follow the rows otherwise. What is never followed is explained by the
    operations that the program has written.
    """
    best: Optional[Followed] = None
    reasons: Dict[int, Placement] = {}
    for left_out in (LATER, (*LATER, *OF_ELEMENTS), None):
        with library.without_test_values():
            expressions, mode = library.rewritten(snapshot.expressions(), snapshot.settings["mode"], left_out)
        found = _with_formulas(library, snapshot.with_expressions(library, expressions), shards, states)
        reasons = _unknown(found)
        if best is None or len(reasons) < len(_unknown(best)):
            best = found
            if left_out is None:
                logger.warning(UNLIKE, snapshot.settings["name"])
            # Formulas, and what comes out of loops, are left to be rewritten.
            elif left_out is LATER and found[0].expressions() == expressions and not _has_loops(library, expressions):
                best = (found[0]._replace(settings=dict(snapshot.settings, mode=mode)), *found[1:])
        if not reasons:
            break
    assert best is not None
    unknown = _unknown(best)
    for i, one in enumerate(best[0].expressions()):
        if i in unknown and i in reasons:
            best[2].placements[one] = reasons[i]
    return best


def _has_loops(library: Library, expressions: Sequence[Any]) -> bool:
    return any(isinstance(node.op, library.Scan) for node in library.io_toposort([], expressions))


def _unknown(found: Followed) -> Dict[int, Placement]:
    """Return those of the expressions of which nothing is known, by number."""
    placements = [found[2].of(one) for one in found[0].expressions()]
    return {i: one for i, one in enumerate(placements) if isinstance(one, Unknown)}


def _with_formulas(
    library: Library, snapshot: Snapshot, shards: Mapping[Any, Shard], states: Sequence[Any]
) -> Followed:
    """Return the snapshot with formulas in place of operations without a rule, its graph, and the placements."""
    before = snapshot.expressions()
    graph: Graph = library.graph_of(before)
    found = exact.propagated(graph, shards, states)
    with library.without_test_values():
        after = library.with_formulas(before, found.of)
    if all(new is old for new, old in zip(after, before)):
        return snapshot, graph, found
    graph = library.graph_of(after)
    return snapshot.with_expressions(library, after), graph, exact.propagated(graph, shards, states)


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

    def template(variable: Any) -> Any:
        pattern = broadcastable(variable)
        if not isinstance(variable.type, library.TensorType) or not all(pattern):
            return None
        return library.AllReduce.names.tensor.constant(np.zeros([1] * len(pattern), variable.dtype))

    return Builder(apply, all_reduce, whole_length, as_average, library.counted, library.checked, template)
