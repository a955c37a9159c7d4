"""Variants of a function's graph, for calls in slices and for calls that select rows of shared variables.

`function` compiles one graph. A call that needs a different graph compiles it from the same snapshot and caches it:

=====================  ==================  =======================================
call                   updates             sliceable shared variables
=====================  ==================  =======================================
``f(...)``             in the graph        used whole, with the first graph
``batch_shared=``      in the graph        their selected rows become inputs
``num_slices=``        accumulated         each slice's rows become inputs
``num_slices=``,       in a second graph,  each slice's rows become inputs; partial
exact function         called once         values are accumulated for the second graph
shapes for ``steps``   none                as in the steps themselves
=====================  ==================  =======================================

With collectives, and in exact functions, the graphs that ranks call contain no updates, because an update in place
would remain if a later collective failed. Updates are applied after the call instead, on all ranks or on none.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..engines.base import Collectives
from ..sharding import Shard


class CompiledGraph:
    """One compiled graph, as distributed to the ranks."""

    common_streams: Sequence[Any] = ()  # already distributed with the function
    own_streams: Sequence[Any] = ()

    def __init__(self, engine: Any, compiled: Any) -> None:
        self.engine, self.on_ranks = engine, engine.on_ranks(compiled)
        self._shareds: List[Any] = engine.shareds(compiled)

    def get_shared(self) -> List[Any]:
        return self._shareds


class Written(NamedTuple):
    """A literal number of rows in a program's graph."""

    rows: Optional[int]  # required in every call; None if any number is allowed
    where: Sequence[str]  # operations that use a constant as each rank's share of the rows


class Variants:
    """All graphs of one function except the first, compiled on first use.

    Five dicts map variables to axes of rows: ``sliceable``, ``scattered`` (inputs), ``states`` (see `state_rows`),
    ``rows`` (``sliceable`` and ``states``) and ``shards`` (all three). ``written`` is set if the program's graph
    contains a literal number of rows, or `function` received one.
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
        self._graphs: Dict[Tuple[str, bool], CompiledGraph] = {}
        self._labels: Dict[bool, List[str]] = {}

    def __iter__(self) -> Any:
        return iter(list(self._graphs.values()))

    @property
    def written_rows(self) -> Optional[int]:
        """The number of rows that every call must have; None if any number is allowed."""
        return None if self.written is None else self.written.rows

    @property
    def is_first_serial(self) -> bool:
        """Whether ranks call the serial function if a call requests neither slices nor rows of shared variables."""
        return self.collectives is None and self.written is None and not self.engine.has_late_outputs(self.snapshot)

    def first(self, compiled: Any) -> Any:
        """Return the function that ranks call in this case; ``compiled`` is the serial function."""
        if self.is_first_serial:
            self.engine.note_graph(compiled, self.snapshot)
            return compiled
        return self.engine.variant(self.snapshot, False, [])

    def get(self, sliced: bool) -> CompiledGraph:
        """Return the graph for calls in slices, or for calls that only select rows; compile it on first use."""
        return self._made("variant", sliced, lambda rows: self.engine.variant(self.snapshot, sliced, rows))

    def after_collective(self) -> CompiledGraph:
        """Return the graph that a sliced call to an exact function runs once, at the end; compile it on first use."""
        return self._made("second half", True, lambda rows: self.engine.after_collective(self.snapshot, rows))

    def shapes(self, selects: bool) -> CompiledGraph:
        """Return the graph that computes the outputs' shapes; with ``selects``, sliceable variables are inputs."""
        return self._made("shapes", selects, lambda rows: self.engine.shapes(self.snapshot, rows if selects else []))

    def _made(self, kind: str, option: bool, make: Callable[[List[Any]], Any]) -> CompiledGraph:
        """Return a graph, compiled on first use; ``make`` takes the variables whose rows are inputs."""
        graph = self._graphs.get((kind, option))
        if graph is None:
            graph = self._graphs[kind, option] = CompiledGraph(self.engine, make(list(self.sliceable)))
        return graph

    def updated_in_graph(self, sliced: bool) -> List[str]:
        """Return the names of the shared variables that a call updates on each rank separately."""
        if sliced not in self._labels:
            self._labels[sliced] = [
                self.engine.label(shared, f"updates[{i}]")
                for i, shared in enumerate(self.engine.updated_in(self.snapshot))
                if self.collectives is None and (not sliced or self.engine.is_random(shared))
            ]
        return self._labels[sliced]

    def returned(self, sliced: bool) -> List[Any]:
        """Return the shared variables whose new values are outputs of the graph, in the order of these outputs."""
        updated = self.engine.updated_in(self.snapshot)
        if self.collectives is not None:
            return list(updated)
        return [shared for shared in updated if not self.engine.is_random(shared)] if sliced else []
