"""A function's graph with placements, and with the collectives that make it compute what the serial program does."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from ...errors import ArgumentValueError
from ...reductions import IN_GRAPH
from ...sharding import (
    Builder,
    Graph,
    Partial,
    Placement,
    Propagated,
    Replicate,
    Shard,
    Size,
    Unknown,
    complete,
    parts_of_rows,
    propagate,
)
from ..base import Sharding, Step
from .library import Library
from .snapshot import Halves, Snapshot


def placed(
    library: Library, snapshot: Snapshot, shards: Mapping[Any, Shard], exact: bool = False
) -> Tuple[Graph, Propagated]:
    """Return the graph of a function, and the placements of its variables."""
    graph: Graph = library.graph_of(snapshot.expressions())
    return graph, propagate(graph.nodes, {**graph.known, **shards}, exact)


def completed(
    library: Library,
    snapshot: Snapshot,
    shards: Mapping[Any, Shard],
    label: Callable[[Any], str],
    is_random: Callable[[Any], bool],
) -> Tuple[Snapshot, Sharding]:
    """Return the snapshot with collectives, and what there is to say of it; see `Engine.completed`."""
    snapshot, graph, found = _placed_with_formulas(library, snapshot, shards)
    wanted, fixed = [], []
    for target, new in snapshot.updates:
        placement = found.of(new)
        argument = f"the update of {label(target)}"
        if isinstance(placement, Unknown):
            raise ArgumentValueError(
                argument, "a value that ranks can compute exactly", f"one that is not: {placement.why}"
            )
        if isinstance(placement, Partial) and placement.reduction not in IN_GRAPH:
            got = f"a product of parts of all ranks ({placement})"
            raise ArgumentValueError(argument, "a value that ranks can compute exactly", got)
        if isinstance(placement, (Replicate, Shard)) and placement.power != 0:
            got = "one that depends on how many rows each rank has, from inside a loop"
            raise ArgumentValueError(argument, "a value that ranks can compute exactly", got)
        if isinstance(placement, Shard) and target not in shards:
            expected = "a value that all ranks have in common"
            got = "one with rows, of which every rank has its own"
            raise ArgumentValueError(argument, expected, got, "name the variable in sliceable_shareds if it has rows")
        if isinstance(placement, (Partial, Size)):
            wanted.append(new)
        elif not is_random(target):
            fixed.append(new)
    with library.change_flags(compute_test_value="off"):
        after = complete(graph.nodes, found, wanted, _builder(library))
    outputs = [library.Out(after.own.get(one.variable, one.variable), one.borrow) for one in snapshot.outputs]
    whole = {**after.own, **after.whole}
    updates = [
        (target, whole.get(new, new) if new in wanted else after.own.get(new, new)) for target, new in snapshot.updates
    ]
    late = [i for i, one in enumerate(snapshot.outputs) if one.variable in after.late]
    parts = parts_of_rows(graph.nodes, found, [*wanted, *(snapshot.outputs[i].variable for i in late)] + fixed)
    why_not = ""
    if after.waiting_rows is not None:
        why_not = f"its rows depend on what all rows have in common, at {after.waiting_rows}"
    if any(isinstance(found.of(one), Shard) for one in [*parts, *fixed]):
        why_not = "it updates rows"
    if any(isinstance(found.of(one), Size) for collective in after.collectives for one in collective.variables):
        why_not = "it counts the elements of rows that a mask chooses"
    halves = Halves([after.own.get(one, one) for one in parts], [_op(found.of(one)) for one in parts], late, why_not)
    placements = [found.of(one.variable) for one in snapshot.outputs]
    steps = [Step(one.op, [label(variable) for variable in one.variables]) for one in after.collectives]
    return snapshot._replace(outputs=outputs, updates=updates, halves=halves), Sharding(placements, steps)


def _placed_with_formulas(
    library: Library, snapshot: Snapshot, shards: Mapping[Any, Shard]
) -> Tuple[Snapshot, Graph, Propagated]:
    """Return the snapshot with formulas in place of operations without a rule, its graph, and the placements."""
    graph, found = placed(library, snapshot, shards, exact=True)
    before = snapshot.expressions()
    with library.change_flags(compute_test_value="off"):
        after = library.with_formulas(before, found.of)
    if all(new is old for new, old in zip(after, before)):
        return snapshot, graph, found
    outputs = [library.Out(new, one.borrow) for new, one in zip(after, snapshot.outputs)]
    updates = [(target, new) for (target, _), new in zip(snapshot.updates, after[len(outputs) :])]
    snapshot = snapshot._replace(outputs=outputs, updates=updates)
    return (snapshot, *placed(library, snapshot, shards, exact=True))


def _op(placement: Placement) -> Optional[str]:
    """Return by what the parts of slices are put together; None for what is the same in all of them."""
    return placement.reduction if isinstance(placement, Partial) else None


def _builder(library: Library) -> Builder:
    def apply(node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        new: List[Any] = node.outputs[0].owner.clone_with_new_inputs(list(inputs)).outputs
        for one, before in zip(new, node.outputs):
            one.name = before.name
        return new

    def all_reduce(variables: Sequence[Any], op: str) -> Sequence[Any]:
        results: Sequence[Any] = library.all_reduce(variables, op)
        return results

    return Builder(apply, all_reduce, library.whole_length, library.counted, library.checked)
