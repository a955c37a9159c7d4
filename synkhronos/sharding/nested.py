"""Placement rules for operations with an inner graph or with branches."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .layout import ROWS, Product, RowLayout
from .placements import REPLICATE, Length, Partial, Placement, Replicate, Shard, Size, Stream, Unknown
from .propagate import propagate
from .rule import Node, PlacementRule, RuleResult, taken_whole


class NestedGraph(NamedTuple):
    """A graph of placement rules, such as an operation's inner graph; ``known`` maps zero constants to placements."""

    nodes: Sequence[Node]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    known: Mapping[Any, Placement]

    def place(self, inputs: Sequence[Placement]) -> List[Placement]:
        """Return the placements of the outputs; collectives cannot be inserted into an inner graph."""
        found = propagate(self.nodes, {**self.known, **dict(zip(self.inputs, inputs))}, exact=False)
        return [found.of(variable) for variable in self.outputs]


class Inner(PlacementRule):
    """Placement rule for an operation defined by an inner graph.

    With ``is_here``, the inner graph uses the operation's own inputs, so its symbolic lengths are valid in both graphs.
    """

    def __init__(self, graph: NestedGraph, is_here: bool = False) -> None:
        self.graph, self.is_here = graph, is_here

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        return _with_wholes(self._place, inputs, exact)

    def _place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        found = self.graph.place(inputs)
        return RuleResult(found if self.is_here else _escaped(found, inputs, exact))


class Choice(PlacementRule):
    """Placement rule for ``ifelse``; the inputs are a condition and the values of two branches."""

    def __init__(self, n_outputs: int) -> None:
        self.n_outputs = n_outputs

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        n = self.n_outputs
        whole, after = taken_whole(inputs, [0], exact)
        if not (isinstance(after[0], Replicate) and after[0].power == 0):
            why = "branches on a value that differs between ranks"
            return RuleResult([after[0] if isinstance(after[0], Unknown) else Unknown(why)] * n, whole)
        outputs: List[Placement] = []
        for i in range(1, n + 1):
            found = joined(after[i], after[i + n])
            if found is None:
                more, after = taken_whole(after, [i, i + n], exact)
                whole |= more
                found = joined(after[i], after[i + n]) or Unknown("has branches with different row layouts")
            outputs.append(found)
        return RuleResult(outputs, whole)


class Completed(PlacementRule):
    """Placement rule for a collective in the program itself: an ``all_reduce`` of some variables.

    In a graph that may be rewritten, the rule only requests whole values; the op is irrelevant.
    """

    def __init__(self, count: int, op: str) -> None:
        self.count, self.op = count, op

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        if not exact:
            return RuleResult([REPLICATE] * self.count)
        whole, after = taken_whole(inputs, range(self.count), exact)
        why = "reduces values that consist of each rank's own rows"
        return RuleResult([Unknown(why) if isinstance(one, Shard) else one for one in after[: self.count]], whole)


def joined(one: Placement, other: Placement) -> Optional[Placement]:
    """Return the placement of a value that may have either of two placements; None if no placement covers both."""
    for first, second in ((one, other), (other, one)):
        if isinstance(first, Unknown) or first == second:
            return first
        if isinstance(first, Shard) and first.zero and isinstance(second, Shard):
            first = first._replace(power=second.power)  # zero times any power is zero
            if first._replace(zero=second.zero, uniform=second.uniform) == second:
                return second._replace(uniform=False)
        if isinstance(first, Replicate) and first.zero and isinstance(second, Stream):
            return second
        if isinstance(first, Replicate) and first.zero and isinstance(second, (Partial, Replicate)):
            return second if isinstance(second, Partial) else second._replace(zero=False)
    if isinstance(one, Replicate) and isinstance(other, Replicate) and one.power == other.power:
        return one._replace(zero=False)
    if isinstance(one, Size) and isinstance(other, Size) and len(one.lengths) == len(other.lengths):
        powers = [{length.power for length in both} for both in zip(one.lengths, other.lengths)]
        same = [first if first == second else Length(first.power) for first, second in zip(one.lengths, other.lengths)]
        return Size(tuple(same)) if all(len(both) == 1 for both in powers) else None
    if isinstance(one, Shard) and isinstance(other, Shard):
        plain = [shard._replace(zero=False, uniform=False) for shard in (one, other)]
        if plain[0] == plain[1]:
            return plain[0]._replace(zero=one.zero and other.zero)
    return None


class LoopState(NamedTuple):
    """A value carried by a loop from step to step."""

    outer: int  # position of the state's initial values among the inputs of the loop
    inputs: Sequence[int]  # positions of its values among the inputs of the inner graph
    outputs: Sequence[int]  # positions of its new values among the outputs of the inner graph
    has_steps: bool = True  # whether, outside the loop, the first axis is the axis of steps


class ScanLoop(PlacementRule):
    """Placement rule for a loop over the first axis of its sequences; ``graph`` is the graph of one step.

    Parameters
    ----------
    sequences, fixed : sequence of (int, int)
        Pairs of positions: in the loop's inputs, and in the graph's inputs.
    states : sequence of LoopState
        Outputs of the loop, in this order: states with steps come first, states without steps last.
    collected : sequence of int
        Outputs of the graph that the loop returns between these two kinds of states, with an axis of steps.
    unchanging : sequence of int
        Positions of inputs that determine the number of steps, and so must be equal on all ranks.
    until : int, optional
        Position of the graph's output that ends the loop.
    """

    #: Maximum number of changes of a state's placement, such as from zero to partial and then to unknown.
    MOST_CHANGES = 4

    def __init__(
        self,
        graph: NestedGraph,
        sequences: Sequence[Tuple[int, int]],
        states: Sequence[LoopState],
        collected: Sequence[int],
        fixed: Sequence[Tuple[int, int]],
        unchanging: Sequence[int],
        until: Optional[int] = None,
    ) -> None:
        self.graph, self.sequences, self.states = graph, sequences, states
        self.collected, self.fixed, self.unchanging, self.until = collected, fixed, unchanging, until

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        return _with_wholes(self._place, inputs, exact)

    def _place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        n_outputs = len(self.states) + len(self.collected)
        for i in self.unchanging:
            if not _is_fixed(inputs[i]):
                why = (
                    "runs a number of steps that depends on how many rows the rank has: replace the loop with "
                    "operations on whole arrays"
                )
                return RuleResult([Unknown(why)] * n_outputs)
        whole, inputs = self._whole_sequences(inputs, exact)
        given = self.given(inputs)
        carried = [_inside(inputs[one.outer]) if one.has_steps else inputs[one.outer] for one in self.states]
        outputs: List[Placement] = []
        for _ in range(self.MOST_CHANGES * len(self.states) + 1):
            for state, placement in zip(self.states, carried):
                given.update(dict.fromkeys(state.inputs, placement))
            unknown = next((one for one in given.values() if isinstance(one, Unknown)), None)
            if unknown is not None:
                return RuleResult([unknown] * n_outputs, whole)
            outputs = self.graph.place([given[i] for i in range(len(self.graph.inputs))])
            after = [self._carried(one, placement, outputs) for one, placement in zip(self.states, carried)]
            if after == carried:
                break
            carried = after
        else:
            return RuleResult([Unknown("carries values whose placements keep changing")] * n_outputs, whole)
        if self.until is not None and not _is_fixed(outputs[self.until]):
            return RuleResult([Unknown("ends on a condition that differs between ranks")] * n_outputs, whole)
        with_steps = [_outside(one) for state, one in zip(self.states, carried) if state.has_steps]
        others = [one for state, one in zip(self.states, carried) if not state.has_steps]
        placements = [*with_steps, *[_outside(outputs[i]) for i in self.collected], *others]
        return RuleResult(_escaped(placements, inputs, exact), whole)

    def given(self, inputs: Sequence[Placement]) -> Dict[int, Placement]:
        """Return the placements of the graph's inputs in the first step, by position."""
        given: Dict[int, Placement] = {inner: inputs[outer] for outer, inner in self.fixed}
        given.update({inner: _inside(inputs[outer]) for outer, inner in self.sequences})
        for state in self.states:
            carried = _inside(inputs[state.outer]) if state.has_steps else inputs[state.outer]
            given.update(dict.fromkeys(state.inputs, carried))
        return given

    def _whole_sequences(self, inputs: Sequence[Placement], exact: bool) -> Any:
        """Request whole values of sequences of lengths; `_with_wholes` does so only for partial inputs."""
        positions = [outer for outer, _ in self.sequences if isinstance(inputs[outer], Size)]
        return taken_whole(inputs, positions, exact)

    def _carried(self, state: LoopState, before: Placement, outputs: Sequence[Placement]) -> Placement:
        for i in state.outputs:
            found = joined(before, outputs[i])
            if found is None:
                return Unknown(
                    f"carries a value that is {before} at first and {outputs[i]} after a step; initialize that value "
                    "with a row for each row of the inputs"
                )
            before = found
        return before


def _with_wholes(
    place: Callable[[Sequence[Placement], bool], RuleResult], inputs: Sequence[Placement], exact: bool
) -> RuleResult:
    """Place an inner graph; request whole values of partial inputs if an inner operation needs them."""
    first = place(inputs, exact)
    if not exact or not any(isinstance(one, Unknown) for one in first.outputs):
        return first
    whole, after = taken_whole(inputs, [i for i, one in enumerate(inputs) if isinstance(one, Partial)], exact)
    if not whole or any(isinstance(one, Unknown) for one in after):
        return first
    second = place(after, exact)
    return (
        first
        if any(isinstance(one, Unknown) for one in second.outputs)
        else second._replace(whole=second.whole | whole)
    )


def _is_fixed(placement: Placement) -> bool:
    if isinstance(placement, Size):
        return all(one.power == 0 for one in placement.lengths)
    return isinstance(placement, Replicate) and placement.power == 0


def _inside(placement: Placement) -> Placement:
    if isinstance(placement, Shard):
        if placement.axis == 0:
            return Unknown("iterates along the axis of the rows")
        return placement._replace(axis=placement.axis - 1)
    if isinstance(placement, Size) and not _is_fixed(placement):
        return Unknown("iterates over numbers that depend on how many rows the rank has")
    return REPLICATE if isinstance(placement, Size) else placement


def _outside(placement: Placement) -> Placement:
    if isinstance(placement, Shard):
        return placement._replace(axis=placement.axis + 1, uniform=False)
    if isinstance(placement, Size):
        return Unknown("collects numbers that depend on how many rows the rank has")
    return placement


def _escaped(placements: Sequence[Placement], inputs: Sequence[Placement], exact: bool) -> List[Placement]:
    """Convert placements inside a graph to placements outside.

    Symbols of inner lengths have no meaning outside, because their values differ between uses of the graph.
    Exact functions reject results that depend on the rank's number of rows, because no collective can complete them.
    """
    known = {length for one in inputs if isinstance(one, Shard) for length in (*one.layout, *one.of, one.size)}

    def outside(length: Optional[Product]) -> Optional[Product]:
        return length if length in known or length and not length.factors else None

    after: List[Placement] = []
    for one in placements:
        if isinstance(one, Shard):
            layouts = [
                RowLayout(outside(layout.outer), outside(layout.inner), outside(layout.per_row))
                for layout in (one.layout, one.of)
            ]
            if not one.layout.is_even and layouts[0].is_even:
                after.append(Unknown("chooses elements of rows inside a nested graph, so that their number is unknown"))
                continue
            if outside(one.size) is None:
                after.append(Unknown("computes positions from a length inside a nested graph"))
                continue
            one = one._replace(layout=layouts[0], of=layouts[1])
        lost = isinstance(one, (Replicate, Shard)) and one.power != 0
        if exact and (lost or isinstance(one, Partial) and one.reduction is None):
            one = Unknown("computes with the rank's number of rows inside a nested graph")
        if exact and isinstance(one, Size) and not _is_fixed(one):
            one = Unknown("returns, from a nested graph, a number that depends on how many rows the rank has")
        if isinstance(one, Size):
            one = Size(
                tuple(
                    Length(length.power, ROWS if length.is_rows else None, outside(length.times))
                    for length in one.lengths
                )
            )
        after.append(one)
    return after
