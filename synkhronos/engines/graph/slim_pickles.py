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
=================================  ==================================================================================
"""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable, Dict, List, Tuple

from .library import Library


class Slim:
    """The ``reducer_override`` of one pickle; ``restore`` creates a function of a maker, see `GraphEngine.restored`."""

    def __init__(self, library: Library, restore: Callable[..., Any]) -> None:
        self._library, self._restore = library, restore
        self._stacks: Dict[Tuple[Any, ...], List[Any]] = {}

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
        reduced = library.reduce(thing)
        if reduced is NotImplemented and isinstance(thing, library.Tag) and vars(thing).get("trace"):
            new, args, state = thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[:3]
            return new, args, {**state, "trace": self._shared(state["trace"])}
        return reduced

    def _shared(self, trace: Any) -> Any:
        """Return an equal trace, a list of stacks, that is the same object for all equal traces."""
        try:
            stacks = [self._stacks.setdefault(tuple(stack), stack) for stack in trace]
            return self._stacks.setdefault(tuple(map(tuple, stacks)), stacks)
        except TypeError:  # of an operation that stores something else
            return trace
