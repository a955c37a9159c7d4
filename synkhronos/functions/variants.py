"""The other graphs of a function: for calls in slices, and for calls that select rows of shared variables.

`function` compiles one graph. Another is compiled when a call first needs it,
from the graph as it was at `function`, and then kept:

=====================  ==================  =======================================
call                   updates             sliceable shared variables
=====================  ==================  =======================================
``f(...)``             in the graph        as they are: no other graph is needed
``batch_s=``           in the graph        their selected rows are given as inputs
``num_slices=``        accumulated by us   each slice's rows are given as inputs
of an exact function   in a second graph,  likewise; parts of values are accumulated,
                       called once         and given to the second graph
shapes for ``steps``   none                as the steps themselves need them
=====================  ==================  =======================================

A function with collectives (`synkhronos.ops`) has no updates in any of the graphs that ranks call: an update is made in
place, so a second collective that fails would find the first one's made. We make all of them, on all ranks or on none.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..engines.base import Collectives
from ..sharding import Shard


class Graph:
    """One compiled graph, as the ranks hold it."""

    common_streams: Sequence[Any] = ()  # its function was there first
    own_streams: Sequence[Any] = ()

    def __init__(self, engine: Any, compiled: Any) -> None:
        self.engine, self.on_ranks = engine, engine.on_ranks(compiled)
        self._shareds: List[Any] = engine.shareds(compiled)

    def get_shared(self) -> List[Any]:
        """Return the shared variables that the graph uses."""
        return self._shareds


class Written(NamedTuple):
    """What a program has written as its number of rows.

    Attributes
    ----------
    rows : int, optional
        Which every call must have; None if any number will do.
    where : list of str
        The operations for which numbers are read as each rank's share of the rows.
    """

    rows: Optional[int]
    where: Sequence[str]


class Variants:
    """The graphs of one function beside the first.

    Parameters
    ----------
    engine : Engine
    snapshot
        The function's graph; see `Engine.snapshot`.
    sliceable : dict from shared variables to int
        What calls may select rows of, and along which axis.
    scattered : dict from variables to int
        The inputs that are divided by rows, likewise.
    states : dict from shared variables to int
        Those that have the batch's rows, likewise; see `state_rows`.
    written : Written, optional
        If the graph is right for any number of rows, but the master's own function is not.

    Attributes
    ----------
    rows : dict from shared variables to int
        Those of which every rank has its own rows.
    shards : dict from variables to int
        All that is divided by rows, and along which axes.
    placements : dict from variables to Shard
        The same, for the engine.
    collectives : Collectives, optional
        What there is to know of the function's collectives; None if it has none.
    """

    def __init__(
        self,
        engine: Any,
        snapshot: Any,
        sliceable: Dict[Any, int],
        scattered: Dict[Any, int],
        states: Dict[Any, int],
        written: Optional[Written] = None,
    ) -> None:
        self.engine, self.snapshot, self.sliceable, self.states = engine, snapshot, sliceable, states
        self.rows, self.written = {**sliceable, **states}, written
        self.shards = {**scattered, **self.rows}
        self.placements = {variable: Shard(axis) for variable, axis in self.shards.items()}
        self.collectives: Optional[Collectives] = engine.collectives(snapshot, self.shards)
        self._graphs: Dict[Tuple[str, bool], Graph] = {}
        self._labels: Dict[bool, List[str]] = {}

    def __iter__(self) -> Any:
        """Iterate over the graphs that have been compiled."""
        return iter(list(self._graphs.values()))

    @property
    def written_rows(self) -> Optional[int]:
        """The number of rows that every call must have; None if any will do."""
        return None if self.written is None else self.written.rows

    def first(self, compiled: Any) -> Any:
        """Return the function that ranks call if neither slices nor rows of shared variables are asked for."""
        if self.collectives is None and self.written is None and not self.engine.has_late_outputs(self.snapshot):
            return compiled
        return self.engine.variant(self.snapshot, False, [])

    def get(self, sliced: bool) -> Graph:
        """Return the graph for calls in slices, or for calls that only select rows; compile it at its first use."""
        graph = self._graphs.get(("variant", sliced))
        if graph is None:
            graph = Graph(self.engine, self.engine.variant(self.snapshot, sliced, list(self.sliceable)))
            self._graphs["variant", sliced] = graph
        return graph

    def second_half(self) -> Graph:
        """Return the graph of what a call of an exact function in slices computes once; compile it likewise."""
        graph = self._graphs.get(("second half", True))
        if graph is None:
            graph = Graph(self.engine, self.engine.second_half(self.snapshot, list(self.sliceable)))
            self._graphs["second half", True] = graph
        return graph

    def shapes(self, selects: bool) -> Graph:
        """Return the graph of the outputs' shapes, with sliceable variables as inputs or not; compile it likewise."""
        graph = self._graphs.get(("shapes", selects))
        if graph is None:
            graph = Graph(self.engine, self.engine.shapes(self.snapshot, list(self.sliceable) if selects else []))
            self._graphs["shapes", selects] = graph
        return graph

    def updated_in_graph(self, sliced: bool) -> List[str]:
        """Return the names of the shared variables that a call updates on each rank by itself, not on all or none."""
        if sliced not in self._labels:
            self._labels[sliced] = [
                self.engine.label(shared, f"updates[{i}]")
                for i, shared in enumerate(self.engine.updated_in(self.snapshot))
                if self.collectives is None and (not sliced or self.engine.is_random(shared))
            ]
        return self._labels[sliced]

    def returned(self, sliced: bool) -> List[Any]:
        """Return the shared variables whose new values the graph gives as outputs, in that order."""
        updated = self.engine.updated_in(self.snapshot)
        if self.collectives is not None:
            return list(updated)
        return [shared for shared in updated if not self.engine.is_random(shared)] if sliced else []
