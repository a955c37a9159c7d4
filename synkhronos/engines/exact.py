"""Transformation of a function's graph into an exact graph: the part common to all engines."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ..errors import ArgumentValueError
from ..reductions import WHOLES
from ..sharding import (
    REPLICATE,
    GraphBuilder,
    NestedGraph,
    Partial,
    Placement,
    Propagated,
    Replicate,
    Shard,
    Size,
    Stream,
    Unknown,
    complete,
    parts_of_rows,
    propagate,
)
from .base import SplitPoint

#: A partial sum divided by the rank's share of the rows, such as a mean over the rank's rows.
AVERAGE = Partial("sum", -1)


#: Remedy for a gradient that multiplies every row by a value computed from all rows.
FACTOR_LAST = (
    "take the gradient of the sum over rows, and then multiply or divide the gradient: T.grad(total, w) / count, not "
    "T.grad(total / count, w)"
)


class SplitGraph(NamedTuple):
    """Split of an exact function's graph into a part computed per slice and a part computed once; see `SplitPoint`."""

    parts: List[Any]  # the values computed from rows before the split and used after it
    ops: List[Optional[str]]
    after_split: List[int]
    replicated_updates: List[bool]  # for each update, whether all ranks compute the same new value
    why_not: str = ""
    remedy: str = ""

    @property
    def cut(self) -> SplitPoint:
        """The split point for calls, without the variables of the graph."""
        return SplitPoint(self.ops, self.after_split, self.why_not, self.remedy)


class Exact(NamedTuple):
    """A function's graph with collectives: outputs, new values of updates, and the placements of both."""

    outputs: List[Any]
    news: List[Any]
    halves: SplitGraph
    placements: List[Placement]
    of_news: List[Placement]
    streams: List[Any]  # states of the random streams that all ranks share


def placed(graph: NestedGraph, shards: Mapping[Any, Shard]) -> List[Placement]:
    """Return the placements of a graph's outputs; see `Engine.placed`."""
    found = propagate(graph.nodes, {**graph.known, **shards}, False)
    return [found.of(output) for output in graph.outputs]


def propagated(graph: NestedGraph, shards: Mapping[Any, Shard], states: Sequence[Any] = ()) -> Propagated:
    """Propagate placements through an exact function; ranks share random streams of ``states`` only if necessary."""
    common: Set[Any] = set()
    while True:
        streams = {state: Stream(state, state in common) for state in states}
        found = propagate(graph.nodes, {**graph.known, **shards, **streams}, True)
        unknown = [one for one in found.placements.values() if isinstance(one, Unknown)]
        more = {one.stream for one in unknown if one.stream is not None} - common
        if not more:
            return found
        common |= more


def completed(
    graph: NestedGraph,
    found: Propagated,
    outputs: Sequence[Any],
    updates: Sequence[Tuple[Any, Any]],
    shards: Mapping[Any, Shard],
    builder: GraphBuilder,
    label: Callable[[Any], str],
    is_random: Callable[[Any], bool],
) -> Exact:
    """Return the function's graph with collectives; see `Engine.completed`."""
    wanted, fixed = [], []
    for target, new in updates:
        placement = found.of(new)
        _check_update(placement, target, shards, f"the update of {label(target)}")
        if isinstance(placement, (Partial, Size)):
            wanted.append(new)
        elif not is_random(target):
            fixed.append(new)
    lengths = [output for output in outputs if _is_length(found.of(output))]
    after = complete(graph.nodes, found, [*wanted, *lengths], builder)
    whole = {**after.own, **after.whole}
    late = [i for i, output in enumerate(outputs) if output in after.late]
    parts = parts_of_rows(graph.nodes, found, [*wanted, *(outputs[i] for i in late), *fixed])
    why_not = ""
    if any(isinstance(found.of(one), Shard) for one in [*parts, *fixed]):
        why_not = "it updates rows of a sharded variable"
    streams = [one for one in found.placements.values() if isinstance(one, Stream)]
    common_streams = list(dict.fromkeys(one.key for one in streams if one.common))
    if common_streams:
        why_not = "all its rows share random numbers, which every slice would draw again"
    if after.waiting_rows is not None:
        why_not = f"its rows depend on a value computed from all rows, at {after.waiting_rows}"
    if any(isinstance(found.of(one), Size) for collective in after.collectives for one in collective.variables):
        why_not = "it counts elements of rows selected by a mask"
    common = [
        target in common_streams if is_random(target) else not isinstance(found.of(new), Shard)
        for target, new in updates
    ]
    own = [(whole if output in lengths else after.own).get(output, output) for output in outputs]
    placements = [REPLICATE if output in lengths else found.of(output) for output in outputs]
    averages = propagate(graph.nodes, {**graph.known, **shards}, False, found)
    for i, output in enumerate(outputs):
        # A mean over rows remains an average, because `steps` weights averages by rows. (An output computed once,
        # after all slices, cannot be an average: it would need the number of rows of all slices.)
        once = output in after.late and after.waiting_rows is None
        if placements[i] == Partial() and averages.of(output) == AVERAGE and not once:
            average = builder.as_average(own[i])
            if average is not None:
                own[i], placements[i] = average, AVERAGE
    own_parts, ops = [after.own.get(one, one) for one in parts], [_op(found.of(one)) for one in parts]
    return Exact(
        own,
        [(whole if new in wanted else after.own).get(new, new) for _, new in updates],
        SplitGraph(own_parts, ops, late, common, why_not, FACTOR_LAST if after.waiting_factor else ""),
        placements,
        [REPLICATE if new in wanted else found.of(new) for _, new in updates],
        common_streams,
    )


def _check_update(placement: Placement, target: Any, shards: Mapping[Any, Shard], argument: str) -> None:
    expected = "a value that ranks can compute exactly"
    if isinstance(placement, Unknown):
        raise ArgumentValueError(argument, expected, f"an inexact value: {placement.why}")
    if isinstance(placement, Partial) and placement.reduction not in WHOLES:
        raise ArgumentValueError(
            argument, expected, f"a partial value that depends on each rank's number of rows ({placement})"
        )
    if isinstance(placement, (Replicate, Shard)) and placement.power != 0:
        got = "a value that depends on each rank's number of rows, computed inside a loop"
        raise ArgumentValueError(argument, expected, got)
    if isinstance(placement, Shard) and target not in shards:
        expected = "a value that is the same on all ranks"
        got = "a value with rows that differ between ranks"
        hint = "if the variable has the batch's rows, list synkhronos.sharded(variable) in inputs"
        raise ArgumentValueError(argument, expected, got, f"{hint}; if it contains data, list it in sliceable_shareds")
    if target in shards:
        check_rows(placement, shards[target].axis, argument)


def check_rows(placement: Placement, axis: int, argument: str) -> None:
    """Raise an error unless a sharded variable's new value has rows along ``axis``, in the variable's order."""
    expected = f"a value with rows along axis {axis}, like the variable, whose rows are divided over the ranks"
    if not isinstance(placement, Shard):
        got = "a value computed from all rows" if isinstance(placement, Partial) else "a value equal on all ranks"
        raise ArgumentValueError(
            argument, expected, got, f"synkhronos.ops.shard(value, axis={axis}) selects a rank's rows"
        )
    if placement.axis != axis:
        hint = f"synkhronos.ops.shard(value, axis={axis}) selects a rank's rows of a value that is equal on all ranks"
        raise ArgumentValueError(argument, expected, f"a value with rows along axis {placement.axis}", hint)
    if not placement.is_gathered:
        got = "positions of rows, which every rank counts from 0" if placement.positions else "rows in another order"
        raise ArgumentValueError(argument, expected, got)


def _is_length(placement: Placement) -> bool:
    """Return whether a value's lengths must be replaced by totals, because summing them over ranks would be wrong."""
    return isinstance(placement, Size) and {one.power for one in placement.lengths} not in ({0}, {1})


def _op(placement: Placement) -> Optional[str]:
    """Return the op that combines a value over slices; None if the value is identical in all slices."""
    return placement.reduction if isinstance(placement, Partial) else None
