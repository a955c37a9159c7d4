"""Analysis of the collectives in a NumPy graph: their order, and the values that depend on them."""

from __future__ import annotations

import operator
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from ...engines.base import CollectiveDependence, Collectives
from .function import NumpyGraph
from .graph import Apply, NumpyVariable, Shared, ordered
from .operations import AllReduce, whole_length

FIXED = (False, CollectiveDependence.NONE)

#: By operation: the number of leading arguments that it is jointly affine in, if all other arguments are fixed.
_AFFINE: Dict[Any, int] = {np.add: 2, np.subtract: 2, operator.getitem: 1, operator.itemgetter: 1}
_AFFINE.update({np.sum: 1, np.mean: 1})
#: Operations that are affine in each of two arguments if the other is fixed.
_PRODUCTS = (np.multiply, np.dot)


def numbered(roots: Sequence[Any]) -> List[Any]:
    """Return the roots of a graph with its collectives numbered in order of execution."""
    new: Dict[int, Any] = {}
    n = 0
    for node in ordered(roots):
        if isinstance(node, Apply):
            function = node.function
            if isinstance(function, AllReduce):
                function, n = AllReduce(function.op, n), n + 1
            new[id(node)] = Apply(function, tuple(new.get(id(arg), arg) for arg in node.args), node.type, node.name)
    return [new.get(id(root), root) for root in roots]


def needs_call(graph: NumpyGraph) -> bool:
    """Return whether a graph has operations that need the current call: collectives or lengths over all ranks."""
    functions = [node.function for node in ordered(graph.expressions()) if isinstance(node, Apply)]
    return any(function is whole_length or isinstance(function, AllReduce) for function in functions)


def is_joint(graph: NumpyGraph) -> bool:
    """Return whether all ranks must take part in every call: true if the graph is exact or `needs_call`."""
    return graph.halves is not None or needs_call(graph)


def survey(graph: NumpyGraph, scattered: Sequence[Any]) -> Optional[Collectives]:
    """Analyze the collectives of a function; see `Engine.collectives`."""
    if not is_joint(graph):
        return None
    order = ordered(graph.expressions())
    ops = [node.function.op for node in order if isinstance(node, Apply) and isinstance(node.function, AllReduce)]
    of_ranks = {id(getattr(given, "variable", given)) for given in scattered}
    of_ranks.update(
        id(node) for node in order if isinstance(node, Shared) and isinstance(node.storage[0], np.random.RandomState)
    )
    news = [(id(target), id(new)) for target, new in graph.updates]
    known = _dependences(order, of_ranks)
    of_updates = [known.get(new, FIXED) for _, new in news]
    degrees = [degree.of_update(differs) for differs, degree in of_updates]
    of_outputs = [known.get(id(output), FIXED)[1] for output in graph.outputs]
    while True:  # updates that differ between ranks make their targets differ, too
        more = {target for target, new in news if known.get(new, FIXED)[0]} - of_ranks
        if not more:
            break
        of_ranks |= more
        known = _dependences(order, of_ranks)
    found = [known.get(new, FIXED) for _, new in news]
    common = [degree != CollectiveDependence.NONE or not differs for differs, degree in found]
    cut = None
    if graph.halves is not None:
        cut, common = graph.halves.cut, graph.halves.replicated_updates
    return Collectives(ops, common, degrees, of_outputs, cut)


def _dependences(order: Sequence[Any], of_ranks: Set[int]) -> Dict[int, Tuple[bool, CollectiveDependence]]:
    """Return, for every value, whether it differs between ranks, and its dependence on collectives."""
    known: Dict[int, Tuple[bool, CollectiveDependence]] = {}
    for node in order:
        args = [known[id(arg)] for arg in getattr(node, "args", ()) if isinstance(arg, NumpyVariable)]
        degree = max([of for _, of in args], default=CollectiveDependence.NONE)
        differs = id(node) in of_ranks or any(one for one, _ in args)
        if isinstance(node, Apply) and isinstance(node.function, AllReduce):
            differs, degree = (
                False,
                max(degree, CollectiveDependence.AFFINE)
                if node.function.op.name == "avg"
                else CollectiveDependence.OTHER,
            )
        elif isinstance(node, Apply) and node.function is whole_length:
            differs = False
        elif degree == CollectiveDependence.AFFINE and not _is_affine(node, known):
            degree = CollectiveDependence.OTHER
        known[id(node)] = differs, degree
    return known


def _is_affine(node: Any, known: Dict[int, Tuple[bool, CollectiveDependence]]) -> bool:
    args = [known.get(id(arg), FIXED) for arg in node.args]
    if node.function in _PRODUCTS:
        return args.count(FIXED) == 1
    key = operator.itemgetter if isinstance(node.function, operator.itemgetter) else node.function
    return all(arg == FIXED for arg in args[_AFFINE.get(key, 0) :])
