"""Propagate placements from a graph's inputs to all its variables."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence

from .placements import REPLICATE, Partial, Placement, Unknown
from .rule import Node, RuleResult


class Propagated(NamedTuple):
    """The placements found for a graph."""

    placements: Dict[Any, Placement]  # by variable
    whole: List[FrozenSet[int]]  # for each node, the positions of inputs whose whole values it receives
    equal: List[Sequence[Any]]  # for each node, lengths that must be equal, and other conditions

    def of(self, variable: Any) -> Placement:
        """Return the placement of a variable; constants and unlisted inputs are replicated."""
        return self.placements.get(variable, REPLICATE)


def propagate(
    nodes: Sequence[Node], known: Mapping[Any, Placement], exact: bool, completed: Optional[Propagated] = None
) -> Propagated:
    """Propagate placements through a graph, with ``nodes`` in topological order; unlisted inputs are replicated.

    ``exact`` determines whether whole values can be requested (`PlacementRule.place`). Partial values that are made
    whole in ``completed``, an exact result for the same graph, count as replicated here. With ``exact=False``, the
    result then shows which values of the completed graph would be averages if each rank used its own number of rows.
    """
    found = Propagated(dict(known), [], [])
    for k, node in enumerate(nodes):
        inputs = [found.of(variable) for variable in node.inputs]
        if completed is not None:
            for i in completed.whole[k]:
                if isinstance(completed.of(node.inputs[i]), Partial):
                    inputs[i] = REPLICATE
        unknown = next((one for one in inputs if isinstance(one, Unknown)), None)
        placed = RuleResult([unknown] * len(node.outputs)) if unknown is not None else node.rule.place(inputs, exact)
        for variable, one in zip(node.outputs, placed.outputs):
            if isinstance(one, Unknown) and unknown is None:
                one = one._replace(why=f"{node.describe()} {one.why}")
            found.placements[variable] = one
        found.whole.append(placed.whole)
        found.equal.append(placed.equal)
    return found
