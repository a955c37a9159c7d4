"""Numbering and ordering of the collectives in a function's graph.

All ranks execute the same graph, but their linkers may choose different orders of execution. Every collective therefore
depends on a token from the previous collective::

    x --> [0: avg] --> ...          y --> [1: sum] --> ...         z --> [ scan of [2: avg] ] --> ...
              \\------ token -------------/     \\------- token -------------/

A collective in a branch of an ``ifelse`` has a number, but no token. A later collective that depended on such a token
would force the branch to be computed.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from .library import Library


def of_calls(library: Library, outputs: Sequence[Any]) -> List[Any]:
    """Return the operations that depend on the current call, including inner ones, in the order of collectives."""
    found: List[Any] = []
    for node in library.io_toposort([], outputs):
        if isinstance(node.op, (library.AllReduce, library.WholeLength, library.InverseShare, library.Share)):
            found.append(node.op)
        else:
            found += inside(library, node)
    return found


def inside(library: Library, node: Any) -> List[Any]:
    """Return the operations in a node's inner graph that depend on the current call; see `of_calls`."""
    outputs = library.scans.inner_outputs(node.op)
    return of_calls(library, outputs) if outputs else []


def reduces(library: Library, operations: Sequence[Any]) -> bool:
    """Return whether there is a collective among operations from `of_calls`."""
    return any(isinstance(one, library.AllReduce) for one in operations)


def unconditional(library: Library, outputs: Sequence[Any]) -> Set[Any]:
    """Return the nodes of a graph that are computed regardless of conditions."""
    nodes: Set[Any] = set()
    ahead = list(outputs)
    while ahead:
        node = ahead.pop().owner
        if node is not None and node not in nodes:
            nodes.add(node)
            ahead += node.inputs[:1] if isinstance(node.op, library.IfElse) else node.inputs
    return nodes


def in_order(
    library: Library,
    outputs: Sequence[Any],
    token: Optional[Any] = None,
    numbers: Optional[Iterator[int]] = None,
) -> Tuple[List[Any], Any]:
    """Return equivalent outputs with ordered collectives, and the last token; ``token`` precedes them."""
    token = library.AllReduce.first_token() if token is None else token
    numbers = count() if numbers is None else numbers
    always = unconditional(library, outputs)
    new: Dict[Any, Any] = {}
    for node in library.io_toposort([], outputs):
        inputs = [new.get(variable, variable) for variable in node.inputs]
        before = token if node in always else None
        if isinstance(node.op, library.AllReduce):
            results, after = node.op.in_order(next(numbers), inputs, before)
        elif reduces(library, inside(library, node)):
            results, after = library.scans.in_order(
                node.op, inputs, before, lambda inner, state: in_order(library, inner, state, numbers)
            )
        elif any(one is not other for one, other in zip(inputs, node.inputs)):
            results, after = node.clone_with_new_inputs(inputs).outputs, before
        else:
            continue
        if node in always:
            token = after
        for variable, result in zip(node.outputs, results):
            result.name = variable.name
            new[variable] = result
    return [new.get(variable, variable) for variable in outputs], token
