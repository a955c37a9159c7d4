"""Transformation of a graph with a literal number of rows into a graph for any number of rows.

::

    x         (rows, 4)
    100       T.concatenate([x, T.ones((100, 1))], axis=1)         the graph of the program
    rows      T.concatenate([x, T.ones((x.shape[0], 1))], axis=1)  the graph of the ranks, each with its share

For the literal number of rows, both graphs compute equal values, whichever numbers are replaced. Any choice of
numbers that makes all placements known is therefore correct. A number is replaced only if this is
necessary, for example if an operation combines rows with a replicated value of that length.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Type

import numpy as np

from ...sharding import Placement, Shard, Unknown
from .classes import Kinds
from .descriptions import described
from .lengths import broadcastable
from .placing import Placing
from .reading import Reading, WrittenGraph
from .written_lengths import NONE, Marks, NumberMark, numbers_of

MAX_PASSES = 20

#: Maximum number of constants that are tried as the number of rows, per operation in an error message.
MAX_NUMBERS = 6


class ReadGraph(NamedTuple):
    """A graph after the replacement of literal numbers of rows; its outputs keep their types."""

    outputs: List[Any]
    marks: Marks
    where: List[str]  # descriptions of the operations that require the replacements
    unclear: str = ""  # an operation with a number or length that may or may not be the number of rows


class WrittenRowsReader:
    """Converter that replaces literal numbers of rows in a library's graphs with the rank's own number.

    ``remake(op, node, inputs)`` creates a node with inferred types in place of ``node``; ``with_inside`` replaces the
    graph in a scan. ``without_rows`` maps classes of operations that store a number of rows to functions. Such a
    function maps a node and placements to the operation without the number, or to None if there is no change.
    """

    def __init__(
        self,
        placing: Placing,
        draws: Kinds,
        remake: Callable[[Any, Any, Sequence[Any]], Any],
        with_inside: Callable[[Any, Sequence[Any], Sequence[Any]], Any],
        without_rows: Optional[Dict[Type[Any], Callable[[Any, Sequence[Placement]], Any]]] = None,
    ) -> None:
        self.placing, self.draws, self.remake, self.with_inside = placing, draws, remake, with_inside
        self.classes, self.lengths = placing.lengths.classes, placing.lengths
        self.without_rows = without_rows or {}

    def __call__(
        self, outputs: Sequence[Any], known: Mapping[Any, Placement], rows: Optional[int], marks: Marks = NONE
    ) -> ReadGraph:
        """Insert the rank's number of rows where marked or required; without ``rows``, only in operation properties."""
        graph = WrittenGraph(self, outputs, known, rows, True)
        divisors = [one.node for one in marks if isinstance(one, NumberMark)]
        where: Dict[str, None] = {described(self.classes, node): None for node in divisors}
        reading = self._read(graph, marks, where)
        images = [self._as_before(reading.image(one), one) for one in outputs]
        return ReadGraph(images, reading.marks, list(where), reading.unclear() if graph.rows > 1 else "")

    def _read(self, graph: WrittenGraph, marks: Marks, where: Dict[str, None]) -> Reading:
        """Return a graph's last pass; ``where`` collects descriptions of the operations that require replacements."""
        for _ in range(MAX_PASSES):
            reading, n_ops = Reading(graph, marks), len(graph.ops)
            where.update(dict.fromkeys(reading.where))
            if reading.marks == marks and len(graph.ops) == n_ops:
                break
            marks = reading.marks
        return reading

    def without_rows_of(self, op: Any) -> Optional[Callable[[Any, Sequence[Placement]], Any]]:
        """Return the function that removes a number of rows from an operation; None if there is none."""
        return next((self.without_rows[cls] for cls in type(op).__mro__ if cls in self.without_rows), None)

    def reasons(self, outputs: Sequence[Any], known: Mapping[Any, Placement], lost: Sequence[str]) -> Dict[str, str]:
        """Map reasons for unknown placements (``lost``) to explanations that suggest ``rows=``."""
        found: Dict[str, str] = {}
        for node in self.classes.io_toposort([], outputs):
            what = described(self.classes, node)
            why = next((one for one in lost if one.startswith(what) and one not in found), None)
            if why is None:
                continue
            for number in self._numbers_before(node):
                read = self(node.outputs, known, number)
                if what in read.where:
                    hint = f"build the function with rows={number} (otherwise, it {why[len(what) :].strip()})"
                    found[why] = f"{what} needs the number of rows: if {number} is that number, {hint}"
                    break
        return found

    def _numbers_before(self, node: Any) -> List[int]:
        """Return the constants that define lengths in or before a node, the nearest first."""
        found: Dict[int, None] = {}
        for one in reversed(list(self.classes.io_toposort([], node.outputs))):
            if isinstance(one.op, (self.classes.Subtensor, self.classes.IncSubtensor)):
                continue  # the 2 in x[:2] is not the number of all rows
            for i in numbers_of(self.lengths, self.draws, one):
                if isinstance(one.inputs[i], self.classes.Constant):
                    values = np.ravel(getattr(one.inputs[i], "data", ())).tolist()
                    found.update({value: None for value in values if isinstance(value, int) and value > 1})
        return list(found)[:MAX_NUMBERS]

    def are_properties(self, outputs: Sequence[Any]) -> bool:
        """Return whether a graph has operations that store a length, which may be a number of rows, as a property."""
        return bool(self.without_rows) and any(map(self._is_property, self.classes.io_toposort([], outputs)))

    def _is_property(self, node: Any) -> bool:
        if isinstance(node.op, self.classes.Scan):
            return self.are_properties(self.classes.steps(node.op).outputs)
        unwritten = self.without_rows_of(node.op)
        if unwritten is None:
            return False
        return any(unwritten(node, [Shard(axis)] * len(node.inputs)) is not None for axis in (0, 1))

    def inside(
        self, node: Any, placements: Sequence[Placement], rows: Optional[int], expected: Mapping[int, int]
    ) -> Optional[Any]:
        """Return a scan with numbers of rows replaced in its steps; None if that is unnecessary or impossible.

        ``placements`` belong to the node's inputs; ``expected`` maps the positions of replicated inputs to
        the axis whose length may be the literal number of rows.
        """
        loop: Any = self.placing.rule_of(node)
        inputs, outputs = loop.graph.inputs, loop.graph.outputs
        for axes in [expected, {}] if expected else [{}]:
            as_expected = [Shard(axes[i]) if i in axes else placement for i, placement in enumerate(placements)]
            given = loop.given(as_expected)
            known = {inputs[i]: one for i, one in given.items() if not isinstance(one, Unknown)}
            graph = WrittenGraph(self, outputs, known, rows, False)
            reading = self._read(graph, NONE, {})
            found = [reading.of(reading.image(one)) for one in outputs]
            if (reading.marks or reading.where) and not any(isinstance(one, Unknown) for one in found):
                images = [self._as_before(reading.image(one), one) for one in outputs]
                return self.with_inside(node.op, inputs, images)
        return None

    def _as_before(self, new: Any, old: Any) -> Any:
        if broadcastable(new) != broadcastable(old):
            new = self.classes.as_type(new, old.type)
        if new is not old:
            new.name = old.name
        return new
