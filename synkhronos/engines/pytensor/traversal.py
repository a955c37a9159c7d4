"""The nodes of a graph in an order that follows from how the program has written it."""

from __future__ import annotations

from typing import Any, List, Sequence, Set


def io_toposort(inputs: Sequence[Any], outputs: Sequence[Any]) -> List[Any]:
    """Return the nodes between inputs and outputs, each after those that it needs.

    What the first output needs comes first, and of each node what its first input needs, as in Theano: this is how
    collectives are numbered. PyTensor's own function of this name goes from the last output to the first.
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
