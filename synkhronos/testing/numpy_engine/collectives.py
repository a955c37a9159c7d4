"""Analysis of the collectives in a NumPy graph: their order, and the values that depend on them."""

from __future__ import annotations

import itertools
import operator
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from ...engines.base import CollectiveDependence, Collectives
from .function import NumpyGraph
from .graph import Apply, NumpyVariable, Shared, ordered, substituted
from .operations import AllReduce, whole_length

FIXED = (False, CollectiveDependence.NONE)

#: By operation: the number of leading arguments that it is jointly affine in, if all other arguments are fixed.
_AFFINE: Dict[Any, int] = {np.add: 2, np.subtract: 2, operator.getitem: 1, operator.itemgetter: 1}
_AFFINE.update({np.sum: 1, np.mean: 1})
#: Operations that are affine in each of two arguments if the other is fixed.
_PRODUCTS = (np.multiply, np.dot)


def numbered(roots: Sequence[Any]) -> List[Any]:
    """Return the roots of a graph with its collectives numbered in order of execution."""
    numbers = itertools.count()
    return substituted(roots, (), lambda one: AllReduce(one.op, next(numbers)) if isinstance(one, AllReduce) else one)


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
    degrees = [degree.of_update(differs) for differs, degree in (known.get(new, FIXED) for _, new in news)]
    of_outputs = [known.get(id(output), FIXED)[1] for output in graph.outputs]
    if graph.halves is not None:
        return Collectives(ops, graph.halves.replicated_updates, degrees, of_outputs, graph.halves.cut)
    while True:  # updates that differ between ranks make their targets differ, too
        found = [known.get(new, FIXED) for _, new in news]
        more = {target for (target, _), (differs, _) in zip(news, found) if differs} - of_ranks
        if not more:
            break
        of_ranks |= more
        known = _dependences(order, of_ranks)
    common = [degree != CollectiveDependence.NONE or not differs for differs, degree in found]
    return Collectives(ops, common, degrees, of_outputs, None)


def _dependences(order: Sequence[Any], of_ranks: Set[int]) -> Dict[int, Tuple[bool, CollectiveDependence]]:
    """Return, for every value, whether it differs between ranks, and its dependence on collectives."""
    known: Dict[int, Tuple[bool, CollectiveDependence]] = {}
    for node in order:
        args = [known[id(arg)] for arg in getattr(node, "args", ()) if isinstance(arg, NumpyVariable)]
        degree = max([of for _, of in args], default=CollectiveDependence.NONE)
        differs = id(node) in of_ranks or any(one for one, _ in args)
        function = getattr(node, "function", None)
        if isinstance(function, AllReduce):
            least = CollectiveDependence.AFFINE if function.op.name == "avg" else CollectiveDependence.OTHER
            differs, degree = False, max(degree, least)
        elif function is whole_length:
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
