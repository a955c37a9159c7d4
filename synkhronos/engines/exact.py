"""From a function's graph to one that computes what the serial program does: the part that all engines have in common.

An engine describes its graph by the rules of `synkhronos.sharding`, and says how it makes nodes (`Builder`).
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ..errors import ArgumentValueError
from ..reductions import WHOLES
from ..sharding import (
    REPLICATE,
    Builder,
    Graph,
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
from .base import Cut

#: A part of a sum, but for the share of the rows.
AVERAGE = Partial("sum", -1)


#: What to write instead of a gradient of which all rows are multiplied by what they have in common.
FACTOR_LAST = (
    "take the gradient of the sum over rows itself, and multiply or divide that: T.grad(total, w) / count, not "
    "T.grad(total / count, w)"
)


class Halves(NamedTuple):
    """Where the graph of an exact function can be cut: before, slice by slice; after, once.

    Attributes
    ----------
    parts : list of variables
        Computed from rows before the cut, and all that is needed of them after it.
    ops : list of (str or None)
        By what those of slices are put together; None for what is the same in all slices.
    late : list of int
        The outputs that are computed after the cut.
    common : list of bool
        For every update, whether the new value is the same on all ranks: not rows, nor the state of a split stream.
    why_not : str
        Why the graph cannot be cut; "" if it can.
    remedy : str
        What to write instead, if that is known.
    """

    parts: List[Any]
    ops: List[Optional[str]]
    late: List[int]
    common: List[bool]
    why_not: str = ""
    remedy: str = ""

    @property
    def cut(self) -> Cut:
        """What calls have to know of it."""
        return Cut(self.ops, self.late, self.why_not, self.remedy)


class Exact(NamedTuple):
    """A function with collectives.

    Attributes
    ----------
    outputs : list of variables
    news : list of variables
        The new values of the updates.
    halves : Halves
    placements, of_news : list of Placement
        Of the outputs, and of the new values.
    streams : list of variables
        The states of the streams from which all ranks draw the same numbers.
    """

    outputs: List[Any]
    news: List[Any]
    halves: Halves
    placements: List[Placement]
    of_news: List[Placement]
    streams: List[Any]


def placed(graph: Graph, shards: Mapping[Any, Shard]) -> List[Placement]:
    """Return the placements of what a function's graph computes; see `Engine.placed`."""
    found = propagate(graph.nodes, {**graph.known, **shards}, False)
    return [found.of(output) for output in graph.outputs]


def propagated(graph: Graph, shards: Mapping[Any, Shard], states: Sequence[Any] = ()) -> Propagated:
    """Return what is known of an exact function; ranks draw the same numbers from streams where they must.

    Parameters
    ----------
    graph : Graph
    shards : mapping from variable to Shard
    states : sequence of variables
        The states of random streams that all ranks may have in common.
    """
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
    graph: Graph,
    found: Propagated,
    outputs: Sequence[Any],
    updates: Sequence[Tuple[Any, Any]],
    shards: Mapping[Any, Shard],
    builder: Builder,
    label: Callable[[Any], str],
    is_random: Callable[[Any], bool],
) -> Exact:
    """Return the function with collectives; see `Engine.completed`."""
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
        why_not = "it updates rows"
    streams = [one for one in found.placements.values() if isinstance(one, Stream)]
    common_streams = list(dict.fromkeys(one.key for one in streams if one.common))
    if common_streams:
        why_not = "all its rows have random numbers in common, which every slice would draw anew"
    if after.waiting_rows is not None:
        why_not = f"its rows depend on what all rows have in common, at {after.waiting_rows}"
    if any(isinstance(found.of(one), Size) for collective in after.collectives for one in collective.variables):
        why_not = "it counts the elements of rows that a mask chooses"
    common = [
        target in common_streams if is_random(target) else not isinstance(found.of(new), Shard)
        for target, new in updates
    ]
    own = [(whole if output in lengths else after.own).get(output, output) for output in outputs]
    placements = [REPLICATE if output in lengths else found.of(output) for output in outputs]
    averages = propagate(graph.nodes, {**graph.known, **shards}, False, found)
    for i, output in enumerate(outputs):
        # A mean over rows is an average here, too, for steps are averaged by rows. (What slices compute once, at the
        # end, would need the rows of all of them.)
        once = output in after.late and after.waiting_rows is None
        if placements[i] == Partial() and averages.of(output) == AVERAGE and not once:
            average = builder.as_average(own[i])
            if average is not None:
                own[i], placements[i] = average, AVERAGE
    own_parts, ops = [after.own.get(one, one) for one in parts], [_op(found.of(one)) for one in parts]
    return Exact(
        own,
        [(whole if new in wanted else after.own).get(new, new) for _, new in updates],
        Halves(own_parts, ops, late, common, why_not, FACTOR_LAST if after.waiting_factor else ""),
        placements,
        [REPLICATE if new in wanted else found.of(new) for _, new in updates],
        common_streams,
    )


def _check_update(placement: Placement, target: Any, shards: Mapping[Any, Shard], argument: str) -> None:
    """Refuse an update that ranks cannot compute exactly."""
    expected = "a value that ranks can compute exactly"
    if isinstance(placement, Unknown):
        raise ArgumentValueError(argument, expected, f"one that is not: {placement.why}")
    if isinstance(placement, Partial) and placement.reduction not in WHOLES:
        raise ArgumentValueError(
            argument, expected, f"a part that depends on how many rows each rank has ({placement})"
        )
    if isinstance(placement, (Replicate, Shard)) and placement.power != 0:
        got = "one that depends on how many rows each rank has, from inside a loop"
        raise ArgumentValueError(argument, expected, got)
    if isinstance(placement, Shard) and target not in shards:
        expected = "a value that all ranks have in common"
        got = "one with rows, of which every rank has its own"
        hint = "if the variable has the batch's rows, list synkhronos.sharded(variable) in inputs"
        raise ArgumentValueError(argument, expected, got, f"{hint}; if it has data, name it in sliceable_shareds")
    if target in shards:
        check_rows(placement, shards[target].axis, argument)


def check_rows(placement: Placement, axis: int, argument: str) -> None:
    """Refuse a new value for a variable of which every rank has its own rows, if it is not that."""
    expected = f"a value with rows along axis {axis}, as the variable, of which every rank has its own"
    if not isinstance(placement, Shard):
        got = "one that is of all rows" if isinstance(placement, Partial) else "one that all ranks have"
        raise ArgumentValueError(argument, expected, got, f"synkhronos.ops.shard(value, axis={axis}) is a rank's share")
    if placement.axis != axis:
        hint = f"synkhronos.ops.shard(value, axis={axis}) of what all ranks have is a rank's share"
        raise ArgumentValueError(argument, expected, f"one with rows along axis {placement.axis}", hint)
    if not placement.is_gathered:
        got = "positions of rows, which every rank counts from 0" if placement.positions else "rows in another order"
        raise ArgumentValueError(argument, expected, got)


def _is_length(placement: Placement) -> bool:
    """Return whether a value is known to the call, as lengths are, and is not the sum of what ranks count."""
    return isinstance(placement, Size) and {one.power for one in placement.lengths} not in ({0}, {1})


def _op(placement: Placement) -> Optional[str]:
    """Return by what the parts of slices are put together; None for what is the same in all of them."""
    return placement.reduction if isinstance(placement, Partial) else None
