"""Topological order of a graph's nodes that follows the order of the outputs, as in Theano."""

from __future__ import annotations

from typing import Any, List, Sequence, Set


def io_toposort(inputs: Sequence[Any], outputs: Sequence[Any]) -> List[Any]:
    """Return the nodes between inputs and outputs in topological order; collectives are numbered in this order.

    Ancestors of an earlier output, or of a node's earlier input, come first, as in Theano. PyTensor's own order starts
    from the last output.
    """
    found: List[Any] = []
    done: Set[Any] = {variable.owner for variable in inputs if variable.owner is not None}
    ahead = [variable.owner for variable in reversed(outputs)]
    while ahead:
        node = ahead[-1]
        if node is None or node in done:
            ahead.pop()
            continue
        needed = [one.owner for one in node.inputs if one.owner is not None and one.owner not in done]
        if needed:
            ahead += reversed(needed)
        else:
            done.add(ahead.pop())
            found.append(node)
    return found
