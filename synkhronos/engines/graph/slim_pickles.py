"""How the parts of compiled functions are pickled for ranks, without what only the master needs.

=================================  ==================================================================================
part of a function                 what the ranks receive
=================================  ==================================================================================
the values of its inputs           nothing: the maker contains storages and defaults. The library's own pickles compare
                                   values on loading, which fails for NaN, or if a rank's replica has another shape
the expressions of outputs and     their types, because the maker also contains the optimized graph
updates, as the program wrote them
the stacks that created its        each stack once, because the many nodes of a gradient, for example, have equal ones
variables and nodes
what only rewriting the graph      nothing: known shapes and merged nodes, which refer to all replaced nodes, and the
needs                              names of the rewrites that have added or removed a node
equal operations of the library:   one of them. Rewrites create an operation for nearly every node, and each contains
elementwise operations and         graphs and Python functions of its scalar operation. A program's own operations are
reductions, subtensors, changes    not compared: scalar operations count as equal if they have the same class, although
of axes                            their attributes may differ
=================================  ==================================================================================
"""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable, Dict, List, Tuple

from .library import Library

#: Attributes of a node's tag: the names of rewrites, and what the library creates again for each process.
LEFT_OUT = ("imported_by", "removed_by", "fake_node")


class Slim:
    """The ``reducer_override`` of one pickle; ``restore`` creates a function of a maker, see `GraphEngine.restored`."""

    def __init__(self, library: Library, restore: Callable[..., Any]) -> None:
        self._library, self._restore = library, restore
        self._for_rewrites = (library.ShapeFeature, library.MergeFeature)
        self._often_equal = (library.Elemwise, library.CAReduce, library.DimShuffle, library.Subtensor)
        self._package = library.Op.__module__.partition(".")[0]
        self._stacks: Dict[Tuple[Any, ...], List[Any]] = {}
        self._operations: Dict[Tuple[Any, ...], Any] = {}

    def __call__(self, thing: Any) -> Any:
        library = self._library
        if isinstance(thing, library.Function):
            return self._restore, (thing.maker, thing.name, thing.trust_input)
        for kind, attribute in (library.SymbolicOutput, "variable"), (library.SymbolicInput, "update"):
            expression = getattr(thing, attribute) if isinstance(thing, kind) else None
            if expression is not None and expression.owner is not None:
                without = copy.copy(thing)
                setattr(without, attribute, expression.type.make_variable(expression.name))
                return without.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if type(thing) is library.FunctionGraph:
            new, args, state = thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[:3]
            kept = {name: value for name, value in state.items() if not isinstance(value, self._for_rewrites)}
            kept["_features"] = [each for each in state["_features"] if not isinstance(each, self._for_rewrites)]
            return new, args, kept
        if isinstance(thing, self._often_equal):
            first = self._first_equal(thing)
            if first is not thing:
                return _same, (first,)
        reduced = library.reduce(thing)
        if reduced is NotImplemented and isinstance(thing, library.Tag) and vars(thing):
            new, args, state = thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[:3]
            kept = {name: value for name, value in state.items() if name not in LEFT_OUT}
            if kept.get("trace"):
                kept["trace"] = self._shared(kept["trace"])
            return new, args, kept
        return reduced

    def _first_equal(self, op: Any) -> Any:
        """Return the first operation of this pickle that is equal and prints alike; a program's own is returned."""
        if {type(each).__module__.partition(".")[0] for each in (op, getattr(op, "scalar_op", op))} != {self._package}:
            return op
        return self._operations.setdefault((type(op), getattr(op, "name", None), op), op)

    def _shared(self, trace: Any) -> Any:
        """Return an equal trace, a list of stacks, that is the same object for all equal traces."""
        try:
            stacks = [self._stacks.setdefault(tuple(stack), stack) for stack in trace]
            return self._stacks.setdefault(tuple(map(tuple, stacks)), stacks)
        except TypeError:  # of an operation that stores something else
            return trace


def _same(thing: Any) -> Any:
    return thing
