"""From a graph in which the program has written its number of rows to one that is right for any number of them.

::

    x         (rows, 4)
    100       T.concatenate([x, T.ones((100, 1))], axis=1)         the graph of the program
    rows      T.concatenate([x, T.ones((x.shape[0], 1))], axis=1)  the graph of the ranks, each with its share

With as many rows as are written both graphs compute the same, whichever of the numbers are read as rows: so a reading
is right if the placements of what it computes are known. Numbers stay what they are until an operation needs the rows:
it combines rows with a value that all ranks have, and along that axis the value is as long as a number that is written.
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

#: Passes through a graph: the most in which everything that must be rows is found.
MAX_PASSES = 20

#: Numbers of a program that are tried, to say that one of them may be its rows.
MAX_NUMBERS = 6


class ReadGraph(NamedTuple):
    """A graph in which numbers are read as rows.

    Attributes
    ----------
    outputs : list of variables
        Of the same types as before.
    marks : set of Mark
    where : list of str
        The operations that need the rows.
    unclear : str
        An operation that is given the number, or another of the same size, along with a value of which nothing is
        known; "" if there is none.
    """

    outputs: List[Any]
    marks: Marks
    where: List[str]
    unclear: str = ""


class WrittenRows:
    """Reads numbers as rows, in the graphs of a library.

    Parameters
    ----------
    placing : Placing
    draws : sequence of classes
        Operations that draw random numbers.
    remake : callable
        From an operation, a node of it or of one like it, and other inputs to a node, whose types follow from these.
    with_inside : callable
        From a scan, and inputs and outputs, to the same scan with that graph inside.
    without_rows : dict
        From a class of operations that have a number of rows as a property to what returns, for a node and the
        placements of its inputs, the operation without it; None if it has none.
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
        """Read as rows what operations need, and these marks.

        Without a number only properties of operations are read so: they say nothing else than the rows of an input.

        Parameters
        ----------
        outputs : sequence of variables
        known : mapping from variable to Placement
            Of the inputs that have rows, and of the states of random streams.
        rows : int, optional
        marks : set of Mark
        """
        graph = WrittenGraph(self, outputs, known, rows, True)
        divisors = [one.node for one in marks if isinstance(one, NumberMark)]
        where: Dict[str, None] = {described(self.classes, node): None for node in divisors}
        reading = self._read(graph, marks, where)
        images = [self._as_before(reading.image(one), one) for one in outputs]
        return ReadGraph(images, reading.marks, list(where), reading.unclear() if graph.rows > 1 else "")

    def _read(self, graph: WrittenGraph, marks: Marks, where: Dict[str, None]) -> Reading:
        """Return the last pass through a graph; add the operations that need the rows."""
        for _ in range(MAX_PASSES):
            reading, n_ops = Reading(graph, marks), len(graph.ops)
            where.update(dict.fromkeys(reading.where))
            if reading.marks == marks and len(graph.ops) == n_ops:
                break
            marks = reading.marks
        return reading

    def without_rows_of(self, op: Any) -> Optional[Callable[[Any, Sequence[Placement]], Any]]:
        """Return what makes an operation that has no number of rows of one that may have one; None for others."""
        return next((self.without_rows[cls] for cls in type(op).__mro__ if cls in self.without_rows), None)

    def reasons(self, outputs: Sequence[Any], known: Mapping[Any, Placement], lost: Sequence[str]) -> Dict[str, str]:
        """Return better reasons for which nothing is known of operations, if a number that is written is one.

        Parameters
        ----------
        outputs : sequence of variables
        known : mapping from variable to Placement
        lost : sequence of str
            The reasons, of `Unknown`.
        """
        found: Dict[str, str] = {}
        for node in self.classes.io_toposort([], outputs):
            what = described(self.classes, node)
            why = next((one for one in lost if one.startswith(what) and one not in found), None)
            if why is None:
                continue
            for number in self._numbers_before(node):
                read = self(node.outputs, known, number)
                if what in read.where:
                    hint = f"build the function with rows={number} (as it is, it {why[len(what) :].strip()})"
                    found[why] = f"{what} needs the number of rows: if that is the {number} written there, {hint}"
                    break
        return found

    def _numbers_before(self, node: Any) -> List[int]:
        """Return numbers from which lengths before a node are made: the nearest first."""
        found: Dict[int, None] = {}
        for one in reversed(list(self.classes.io_toposort([], node.outputs))):
            if isinstance(one.op, (self.classes.Subtensor, self.classes.IncSubtensor)):
                continue  # the first two rows are not all of them
            for i in numbers_of(self.lengths, self.draws, one):
                if isinstance(one.inputs[i], self.classes.Constant):
                    values = np.ravel(getattr(one.inputs[i], "data", ())).tolist()
                    found.update({value: None for value in values if isinstance(value, int) and value > 1})
        return list(found)[:MAX_NUMBERS]

    def are_properties(self, outputs: Sequence[Any]) -> bool:
        """Return whether a graph has operations that may have a number of rows as a property."""
        return bool(self.without_rows) and any(
            self.without_rows_of(node.op) is not None for node in self.classes.io_toposort([], outputs)
        )

    def inside(
        self, node: Any, placements: Sequence[Placement], rows: Optional[int], expected: Mapping[int, int]
    ) -> Optional[Any]:
        """Return a scan in whose steps numbers are read as rows; None if none are.

        Parameters
        ----------
        node
            Of the scan.
        placements : sequence of Placement
            Of its inputs.
        rows : int, optional
        expected : dict of int to int
            Inputs that all ranks have, and along which axis they may be read as rows.
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
