"""Literal numbers of rows that divide sums over rows, in functions that are not exact.

::

    loss = T.sum(errors) / 100             the mean over the rows of a batch, as the program intends
    the gradient on a rank with 34 rows    must divide by 34, not 100, so that the average over ranks is the mean
"""

from __future__ import annotations

from typing import Any, FrozenSet, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from ...sharding import REPLICATE, Partial, Placement, Propagated, Stream, Unknown
from .. import exact
from .library import Library
from .written_lengths import NONE, Marks, NumberMark, times_rows

MAX_NUMBERS = 12


class Shortcomings(NamedTuple):
    """Counts of unknown placements and of sums over rows, for a choice of replaced divisors; compared in this order."""

    lost: int  # values with unknown placements
    sums: int  # values that are sums over a rank's rows, not means


def means(
    library: Library, outputs: Sequence[Any], wanted: Sequence[int], known: Mapping[Any, Placement], rows: int
) -> Marks:
    """Return marks of numbers to replace with the rank's number of rows, so that ``wanted`` outputs become means."""
    shards = {one: placement for one, placement in known.items() if not isinstance(placement, Stream)}
    states = [one for one, placement in known.items() if isinstance(placement, Stream)]
    targets, others = [outputs[i] for i in wanted], [one for i, one in enumerate(outputs) if i not in wanted]
    not_free = _divisors(library, others, rows)
    candidates = [one for one in _divisors(library, targets, rows) if one not in not_free][:MAX_NUMBERS]

    def found_with(marks: Marks) -> Shortcomings:
        return _found(library, library.written_rows(targets, known, rows, marks).outputs, shards, states)

    best, chosen = (found_with(NONE), NONE) if candidates else (Shortcomings(0, 0), NONE)
    if not best.sums:
        return NONE
    together: FrozenSet[Any] = frozenset(candidates)
    if found_with(together) == Shortcomings(best.lost, 0):
        return together
    for _ in candidates:
        scored: List[Tuple[Shortcomings, int]] = [
            (found_with(chosen | {one}), i) for i, one in enumerate(candidates) if one not in chosen
        ]
        found, i = min(scored)
        if found.lost > best.lost or found >= best:
            break
        best, chosen = found, chosen | {candidates[i]}
    return chosen


def _divisors(library: Library, outputs: Sequence[Any], rows: int) -> List[NumberMark]:
    """Return marks of constant factors and divisors that are multiples of the number of rows, or their inverses."""
    classes = library.written_rows.classes
    kinds = (classes.scalar.Mul, classes.scalar.TrueDiv, classes.scalar.IntDiv)
    found: List[NumberMark] = []
    for node in library.io_toposort([], outputs):
        scalar_op = getattr(node.op, "scalar_op", None)
        is_moved = isinstance(node.op, classes.DimShuffle)
        if is_moved or isinstance(node.op, classes.Elemwise) and isinstance(scalar_op, (*kinds, classes.scalar.Cast)):
            for i, one in enumerate(node.inputs):
                if isinstance(one, library.Constant) and np.size(one.data) == 1 and times_rows(one.data, rows):
                    found.append(NumberMark(node, i))
    return found


def _found(library: Library, outputs: Sequence[Any], shards: Any, states: Sequence[Any]) -> Shortcomings:
    graph = library.graph_of(outputs)
    found = exact.propagated(graph, shards, states)
    own = Propagated({**graph.known, **shards}, [], [])  # placements if ranks use their own numbers of rows
    for node, whole in zip(graph.nodes, found.whole):
        inputs = [own.of(one) for one in node.inputs]
        for i in whole:
            if isinstance(inputs[i], Partial):
                inputs[i] = REPLICATE
        for is_exact in (False, True):
            lost = next((one for one in inputs if isinstance(one, Unknown)), None)
            placed = [lost] * len(node.outputs) if lost else node.rule.place(inputs, is_exact).outputs
            own.placements.update(zip(node.outputs, placed))
            if not any(isinstance(one, Unknown) for one in placed):
                break
    whole_of = {node.inputs[i] for node, whole in zip(graph.nodes, found.whole) for i in whole}
    n_lost = sum(isinstance(one, Unknown) for one in (*found.placements.values(), *own.placements.values()))
    return Shortcomings(n_lost, sum(own.of(one) == Partial() for one in {*whole_of, *outputs}))
