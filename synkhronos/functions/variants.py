"""The other graphs of a function: for calls in slices, and for calls that select rows of shared variables.

`function` compiles one graph. Another is compiled when a call first needs it,
from the graph as it was at `function`, and then kept:

=====================  ==================  =======================================
call                   updates             sliceable shared variables
=====================  ==================  =======================================
``f(...)``             in the graph        as they are: no other graph is needed
``batch_s=``           in the graph        their selected rows are given as inputs
``num_slices=``        accumulated by us   each slice's rows are given as inputs
shapes for ``steps``   none                as the steps themselves need them
=====================  ==================  =======================================
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple


class Graph:
    """One compiled graph, as the ranks hold it."""

    def __init__(self, engine: Any, compiled: Any) -> None:
        self.engine, self.on_ranks = engine, engine.on_ranks(compiled)
        self._shareds: List[Any] = engine.shareds(compiled)

    def get_shared(self) -> List[Any]:
        """Return the shared variables that the graph uses."""
        return self._shareds


class Variants:
    """The graphs of one function beside the first.

    Parameters
    ----------
    engine : Engine
    snapshot
        The function's graph; see `Engine.snapshot`.
    sliceable : sequence of shared variables
        What calls may select rows of.
    """

    def __init__(self, engine: Any, snapshot: Any, sliceable: Sequence[Any]) -> None:
        self.engine, self.snapshot, self.sliceable = engine, snapshot, list(sliceable)
        self._graphs: Dict[Tuple[str, bool], Graph] = {}
        self._labels: Dict[bool, List[str]] = {}

    def __iter__(self) -> Any:
        """Iterate over the graphs that have been compiled."""
        return iter(list(self._graphs.values()))

    def get(self, sliced: bool) -> Graph:
        """Return the graph for calls in slices, or for calls that only select rows; compile it at its first use."""
        graph = self._graphs.get(("variant", sliced))
        if graph is None:
            graph = Graph(self.engine, self.engine.variant(self.snapshot, sliced, self.sliceable))
            self._graphs["variant", sliced] = graph
        return graph

    def shapes(self, selects: bool) -> Graph:
        """Return the graph of the outputs' shapes, with sliceable variables as inputs or not; compile it likewise."""
        graph = self._graphs.get(("shapes", selects))
        if graph is None:
            graph = Graph(self.engine, self.engine.shapes(self.snapshot, self.sliceable if selects else []))
            self._graphs["shapes", selects] = graph
        return graph

    def updated_in_graph(self, sliced: bool) -> List[str]:
        """Return the names of the shared variables that a call updates on each rank by itself, not on all or none."""
        if sliced not in self._labels:
            self._labels[sliced] = [
                self.engine.label(shared)
                for shared in self.engine.updated_in(self.snapshot)
                if not sliced or self.engine.is_random(shared)
            ]
        return self._labels[sliced]

    def accumulated(self) -> List[Any]:
        """Return the shared variables whose new values a call in slices gives as outputs, in that order."""
        return [shared for shared in self.engine.updated_in(self.snapshot) if not self.engine.is_random(shared)]
