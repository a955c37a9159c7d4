"""Insertion of the collectives that make a function's graph compute the results of the serial program."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from ...reductions import MISSING, ReduceOp
from ...sharding import GraphBuilder, NestedGraph, Partial, Placement, Propagated, Shard, Unknown, complete, propagate
from .. import exact
from .lengths import broadcastable
from .library import Library
from .rewrites import LATER, OF_ELEMENTS
from .snapshot import Snapshot
from .unread_rows import explained

logger = logging.getLogger("synkhronos")

UNLIKE = (
    "function %s: collectives are inserted before the mode's optimizations, because rows cannot be traced after them. "
    "If values are inf or NaN, or lose digits, results may differ from the serial function's"
)


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
    images = _Images(library, placements)
    with library.without_test_values():
        found = exact.completed(graph, placements, outputs, snapshot.updates, shards, images.builder, label, is_random)
        wide = [images.before_rounding(one) for one in found.outputs]
        parts = [images.before_rounding(one) for one in found.halves.parts]
    after = snapshot._replace(
        outputs=[library.Out(new, one.borrow) for new, one in zip(wide, snapshot.outputs)],
        updates=[(target, new) for (target, _), new in zip(snapshot.updates, found.news)],
        halves=found.halves._replace(parts=parts),
        streams=found.streams,
        placements=[*found.placements, *found.of_news],
    )
    return after, found.placements


#: A snapshot, the graph of its expressions, and their placements.
Followed = Tuple[Snapshot, NestedGraph, Propagated]


def _rewritten(library: Library, snapshot: Snapshot, shards: Mapping[Any, Shard], states: Sequence[Any]) -> Followed:
    """Apply the mode's rewrites that may change values; skip some or all if rows could not be traced after them."""
    found: List[Followed] = []
    for left_out in (LATER, (*LATER, *OF_ELEMENTS), None):
        with library.without_test_values():
            expressions, mode = library.rewritten(snapshot.expressions(), snapshot.settings["mode"], left_out)
        after, graph, placements = _with_formulas(
            library, snapshot.with_expressions(library, expressions), shards, states
        )
        # After formulas, loops or skipped `OF_ELEMENTS` rewrites, all passes must run again, so the mode is kept.
        if left_out is LATER and after.expressions() == expressions and not _has_loops(library, expressions):
            after = after._replace(settings=dict(snapshot.settings, mode=mode))
        found.append((after, graph, placements))
        if not _unknown(found[-1]):
            break
    best = min(found, key=lambda one: len(_unknown(one)))
    unknown = _unknown(best)
    if best is found[-1] and len(found) == 3:
        logger.warning(UNLIKE, snapshot.settings["name"])
    if unknown:
        written = found[-1][0].expressions()
        reasons = explained(library, written, shards, [found[-1][2].of(one) for one in written])
        for i, one in enumerate(best[0].expressions()):
            if i in unknown and isinstance(reasons[i], Unknown):
                best[2].placements[one] = reasons[i]
    return best


def _has_loops(library: Library, expressions: Sequence[Any]) -> bool:
    return any(isinstance(node.op, library.Scan) for node in library.io_toposort([], expressions))


def _unknown(found: Followed) -> List[int]:
    return [i for i, one in enumerate(found[0].expressions()) if isinstance(found[2].of(one), Unknown)]


def with_late_outputs(
    library: Library,
    snapshot: Snapshot,
    shards: Mapping[Any, Shard],
    ops: Sequence[Any],
    label: Callable[[Any], str],
    is_random: Callable[[Any], bool],
) -> Tuple[Snapshot, List[Placement]]:
    """Return the snapshot with unrounded partials as outputs, and the placements; see `Engine.with_late_outputs`."""
    before, wanted = snapshot, snapshot.expressions()
    graph = library.graph_of(wanted)
    found = propagate(graph.nodes, {**graph.known, **shards}, False)
    placements, images = explained(library, wanted, shards, list(map(found.of, graph.outputs))), _Images(library, found)
    if any(found.equal):
        with library.without_test_values():
            own = complete(graph.nodes, found, [], images.builder).own
        outputs = [library.Out(own.get(one.variable, one.variable), one.borrow) for one in snapshot.outputs]
        updates = [(target, own.get(new, new)) for target, new in snapshot.updates]
        snapshot = snapshot._replace(outputs=outputs, updates=updates)
    late = [i for i, op in enumerate(ops) if op is MISSING and getattr(placements[i], "is_late", False)]
    outputs = list(snapshot.outputs)
    if late:
        alone = snapshot._replace(outputs=[outputs[i] for i in late], updates=[])
        after, of_late = completed(library, alone, shards, label, is_random)
        for i, new, placement in zip(late, after.outputs, of_late):
            if not isinstance(placement, Unknown) and not after.streams:
                outputs[i], placements[i] = new, placement
    for i, (op, placement) in enumerate(zip(ops, placements)):
        if isinstance(placement, Partial) and i not in late and op in (MISSING, placement.reduction):
            one = outputs[i].variable
            with library.without_test_values():
                # A wider accumulator alone does not justify a separate graph for the ranks.
                if library.before_rounding(one, images.is_part, accumulated=False) is not None:
                    outputs[i] = library.Out(images.before_rounding(one), outputs[i].borrow)
    if snapshot is before and all(new is old for new, old in zip(outputs, snapshot.outputs)):
        return snapshot, placements
    return snapshot._replace(outputs=outputs, has_late_outputs=True), placements


def _with_formulas(
    library: Library, snapshot: Snapshot, shards: Mapping[Any, Shard], states: Sequence[Any]
) -> Followed:
    """Return a snapshot with its graph and placements; formulas replace operations whose placements are unknown."""
    before = snapshot.expressions()
    graph: NestedGraph = library.graph_of(before)
    found = exact.propagated(graph, shards, states)
    with library.without_test_values():
        after = library.with_formulas(before, found.of)
    if all(new is old for new, old in zip(after, before)):
        return snapshot, graph, found
    snapshot, graph = snapshot.with_expressions(library, after), library.graph_of(after)
    return snapshot, graph, exact.propagated(graph, shards, states)


class _Images:
    """Builder of an exact graph that records which values are partials, given the original graph's placements."""

    def __init__(self, library: Library, placements: Propagated) -> None:
        self.library, self.placements = library, placements
        self._is_part: Dict[Any, bool] = {}
        self._wider: Dict[Any, Any] = {}
        self.builder = GraphBuilder(
            *(self.apply, self.all_reduce, self.whole_length, self.as_average),
            *(library.placing.lengths.counted, library.placing.lengths.checked, self.template),
        )

    def is_part(self, variable: Any) -> bool:
        """Return whether a variable of the original or the new graph is a partial."""
        known = self._is_part.get(variable)
        return isinstance(self.placements.of(variable), Partial) if known is None else known

    def before_rounding(self, variable: Any) -> Any:
        """Return the wider value that a partial is rounded from; the variable itself if there is none."""
        wider = self.library.before_rounding(variable, self.is_part, known=self._wider)
        if wider is None:
            return variable
        wider.name = wider.name or variable.name
        return wider

    def apply(self, node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        of, before = self.placements.of, node.outputs[0].owner
        made = before.clone_with_new_inputs(list(inputs))
        takes = [isinstance(of(old), Shard) or self.is_part(new) for old, new in zip(node.inputs, inputs)]
        new: List[Any] = made.outputs
        if node.rule.is_rounded and isinstance(of(node.outputs[0]), Partial) and any(takes):
            wider = self.library.before_rounding.accumulated(made)
            if wider is not None:
                self._is_part[wider] = True
                new = [self.library.tensor.cast(wider, made.outputs[0].dtype)]
        for one, old in zip(new, node.outputs):
            one.name = old.name
            self._is_part[one] = isinstance(of(old), Partial) and any(takes)
        return new

    def all_reduce(self, variables: Sequence[Any], op: str) -> Sequence[Any]:
        wide = [self.before_rounding(one) for one in variables]
        results: Sequence[Any] = self.library.AllReduce(ReduceOp(op), len(wide))(*wide, return_list=True)
        return [
            result if one.dtype == result.dtype else self.library.tensor.cast(result, one.dtype)
            for one, result in zip(variables, results)
        ]

    def whole_length(self, lengths: Any, position: int) -> Any:
        return self.library.WholeLength(position)(lengths)

    def as_average(self, part: Any) -> Any:
        """Return values whose average, weighted by rows, is the sum of these partials; None for integers and bools."""
        if np.dtype(part.dtype).kind in "biu":
            return None  # an average of integers need not be an integer
        part = self.before_rounding(part)
        return part * self.library.InverseShare()(part).astype(part.dtype)

    def template(self, variable: Any) -> Any:
        """Return a constant with the variable's type and shape if the type fixes every length at 1; else None."""
        pattern = broadcastable(variable)
        if not isinstance(variable.type, self.library.TensorType) or not all(pattern):
            return None
        return self.library.AllReduce.names.tensor.constant(np.zeros([1] * len(pattern), variable.dtype))
