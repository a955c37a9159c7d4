"""The collectives inside a function's graph, numbered and put in order.

All ranks call the same graph, but what makes a graph run is free to choose an order, and may choose another on
another rank. Every collective therefore takes a token from the one before it::

    x --> [0: avg] --> ...          y --> [1: sum] --> ...         z --> [ scan of [2: avg] ] --> ...
              \\------ token -------------/     \\------- token -------------/

Those that are computed in a branch of an ``ifelse`` alone have a number, but no token: another collective that waited
for them would have the branch computed even if it is not taken.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ...reductions import ReduceOp
from .library import Library


def ops_in(library: Library, outputs: Sequence[Any]) -> List[ReduceOp]:
    """Return the ops of a graph's collectives, by number; those of graphs inside its operations are among them."""
    ops: List[ReduceOp] = []
    for node in library.io_toposort([], outputs):
        if isinstance(node.op, library.AllReduce):
            ops.append(node.op.op)
        else:
            ops += ops_in(library, library.inner_outputs(node.op))
    return ops


def needs_call(library: Library, outputs: Sequence[Any]) -> bool:
    """Return whether a graph has operations that ask the call on this rank: collectives, all rows, or its own."""
    return any(
        isinstance(node.op, (library.AllReduce, library.WholeLength, library.InverseShare, library.Share))
        or needs_call(library, library.inner_outputs(node.op))
        for node in library.io_toposort([], outputs)
    )


def divides(library: Library, outputs: Sequence[Any]) -> bool:
    """Return whether a graph divides rows over the ranks."""
    return any(
        isinstance(node.op, library.Share) or divides(library, library.inner_outputs(node.op))
        for node in library.io_toposort([], outputs)
    )


def unconditional(library: Library, outputs: Sequence[Any]) -> Set[Any]:
    """Return the nodes of a graph that are computed whatever the conditions in it are."""
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
    """Return the outputs of a graph that is the same but for the order of its collectives.

    Parameters
    ----------
    library : Library
    outputs : list of variables
    token : variable, optional
        Of the collective before this graph; there is none by default.
    numbers : iterator, optional
        The numbers of the collectives; from 0 by default.

    Returns
    -------
    outputs : list of variables
    token : variable
        Of the last collective.
    """
    token = library.AllReduce.first_token() if token is None else token
    numbers = count() if numbers is None else numbers
    always = unconditional(library, outputs)
    new: Dict[Any, Any] = {}
    for node in library.io_toposort([], outputs):
        inputs = [new.get(variable, variable) for variable in node.inputs]
        before = token if node in always else None
        if isinstance(node.op, library.AllReduce):
            results, after = node.op.in_order(next(numbers), inputs, before)
        elif ops_in(library, library.inner_outputs(node.op)):
            results, after = library.scan_in_order(
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
