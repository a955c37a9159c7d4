"""From the placements of a graph's inputs to those of all its variables."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence

from .placements import REPLICATE, Partial, Placement, Unknown
from .rule import Node, Placed


class Propagated(NamedTuple):
    """What is known of a graph.

    Attributes
    ----------
    placements : dict
        By variable.
    whole : list of set of int
        For each node, the inputs of which it is given the whole value.
    equal : list of sequence of (Product, Product) or NotNegative
        For each node, the lengths that have to be equal, and other conditions.
    """

    placements: Dict[Any, Placement]
    whole: List[FrozenSet[int]]
    equal: List[Sequence[Any]]

    def of(self, variable: Any) -> Placement:
        """Return the placement of a variable; constants, and inputs of which nothing was said, are replicated."""
        return self.placements.get(variable, REPLICATE)


def propagate(
    nodes: Sequence[Node], known: Mapping[Any, Placement], exact: bool, completed: Optional[Propagated] = None
) -> Propagated:
    """Propagate placements through a graph.

    Parameters
    ----------
    nodes : sequence of Node
        Each after those whose outputs it is given.
    known : mapping from variable to Placement
        Those of the graph's inputs and constants; replicated if not listed.
    exact : bool
        Whether whole values can be asked for; see `Rule.place`.
    completed : Propagated, optional
        What is known of the exact graph: parts that are made whole there are so here. With ``exact`` False this says of
        the completed graph, if numbers of rows were the rank's own, which parts are averages over rows.
    """
    found = Propagated(dict(known), [], [])
    for k, node in enumerate(nodes):
        inputs = [found.of(variable) for variable in node.inputs]
        if completed is not None:
            for i in completed.whole[k]:
                if isinstance(completed.of(node.inputs[i]), Partial):
                    inputs[i] = REPLICATE
        unknown = next((one for one in inputs if isinstance(one, Unknown)), None)
        placed = Placed([unknown] * len(node.outputs)) if unknown is not None else node.rule.place(inputs, exact)
        for variable, one in zip(node.outputs, placed.outputs):
            if isinstance(one, Unknown) and unknown is None:
                one = one._replace(why=f"{node.describe()} {one.why}")
            found.placements[variable] = one
        found.whole.append(placed.whole)
        found.equal.append(placed.equal)
    return found
