"""From a graph in which the program has written its number of rows to one that is right for any number of them.

::

    x         (rows, 4)
    100       T.concatenate([x, T.ones((100, 1))], axis=1)         the graph of the program
    rows      T.concatenate([x, T.ones((x.shape[0], 1))], axis=1)  the graph of the ranks, each with its share

With as many rows as are written both graphs compute the same, whichever of the numbers are read as rows: so a reading
is right if the placements of what it computes are known. Numbers stay what they are until an operation needs the rows: it
combines rows with a value that all ranks have, and along that axis the value is as long as a number that is written.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type

import numpy as np

from ...sharding import REPLICATE, ROWS, Placed, Placement, Replicate, Shard, Unknown
from .classes import Kinds
from .descriptions import described
from .lengths import broadcastable, ndim
from .placing import Placing
from .written_lengths import (
    NONE,
    Element,
    Mark,
    Marks,
    Number,
    Order,
    Share,
    WrittenLengths,
    marked,
    numbers_of,
    times_rows,
)

#: Readings of one operation that are tried, and passes through a graph.
MAX_TRIALS, MAX_PASSES = 40, 20

#: Numbers of a program that are tried, to say that one of them may be its rows.
MAX_NUMBERS = 6


class Read(NamedTuple):
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
    ) -> Read:
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
        graph = _Graph(self, outputs, known, rows, True)
        where: Dict[str, None] = {described(self.classes, one.node): None for one in marks if isinstance(one, Number)}
        reading = self._read(graph, marks, where)
        images = [self._as_before(reading.image(one), one) for one in outputs]
        return Read(images, reading.marks, list(where), reading.unclear() if graph.rows > 1 else "")

    def _read(self, graph: _Graph, marks: Marks, where: Dict[str, None]) -> _Pass:
        """Return the last pass through a graph; add the operations that need the rows."""
        for _ in range(MAX_PASSES):
            reading, n_ops = _Pass(graph, marks), len(graph.ops)
            where.update(dict.fromkeys(reading.where))
            if reading.marks == marks and len(graph.ops) == n_ops:
                break
            marks = reading.marks
        return reading

    def without_rows_of(self, op: Any) -> Optional[Callable[[Any, Sequence[Placement]], Any]]:
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
                    found[why] = f"{what} needs the number of rows, where {number} is written: build the function with rows={number}"
                    break
        return found

    def _numbers_before(self, node: Any) -> List[int]:
        """Return numbers from which lengths before a node are made: the nearest first."""
        found: Dict[int, None] = {}
        for one in reversed(list(self.classes.io_toposort([], node.outputs))):
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
            graph = _Graph(self, outputs, known, rows, False)
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


class _Graph:
    """A graph of the program, and what all passes through it have in common."""

    def __init__(
        self,
        library: WrittenRows,
        outputs: Sequence[Any],
        known: Mapping[Any, Placement],
        rows: Optional[int],
        exact: bool,
    ) -> None:
        #: The number of rows that is written; 0 if none is.
        self.rows = rows or 0
        self.library, self.known, self.exact = library, known, exact
        #: By scans, those in whose steps numbers are read as rows.
        self.ops: Dict[Any, Any] = {}
        self.nodes = list(library.classes.io_toposort([], outputs))
        self.place_of = {node: k for k, node in enumerate(self.nodes)}
        self.users: Dict[Any, List[int]] = {}
        for k, node in enumerate(self.nodes):
            for variable in node.inputs:
                self.users.setdefault(variable, []).append(k)
        self.own_rows = self._own_rows()
        self._numbers: Dict[Any, Any] = {}

    def _own_rows(self) -> Any:
        """Return an expression of how many rows a rank has; None if nothing has rows."""
        for variable, placement in self.known.items():
            if isinstance(placement, Shard) and placement.layout == ROWS:
                return variable.shape[placement.axis]
        for node in self.nodes:
            if isinstance(node.op, self.library.classes.TakeShare):
                return node.outputs[0].shape[node.op.axis]
        return None

    def number(self, constant: Any, node: Any) -> Any:
        """Return, in place of a number that is a multiple of the rows, the same multiple of the rank's own."""
        classes, times = self.library.classes, times_rows(constant.data, self.rows)
        is_tensor, dtype = isinstance(constant.type, classes.TensorType), "int64"
        is_cast = isinstance(node.op, classes.Elemwise) and isinstance(node.op.scalar_op, classes.scalar.Cast)
        if not is_tensor or isinstance(node.op, (classes.Elemwise, classes.DimShuffle)) and not is_cast:
            dtype = constant.dtype  # (a cast to fewer bits is not known to keep a length)
            if dtype in classes.float_dtypes and self._dtypes_after(node) == {"float64"}:
                dtype = "float64"  # the inverse of another number may have more digits
        key = times, dtype, is_tensor
        if key not in self._numbers:
            found = self._times(times) if times > 0 else 1.0 / self._times(-times)
            found = found if found.dtype == dtype else classes.tensor.cast(found, dtype)
            self._numbers[key] = found if is_tensor else classes.ScalarFromTensor()(found)
        return self._numbers[key]

    def _dtypes_after(self, node: Any) -> Set[str]:
        """Return the dtypes in which a number is computed with, that a node is given."""
        nodes = [node]
        if isinstance(node.op, self.library.classes.DimShuffle):
            nodes = [self.nodes[k] for k in self.users.get(node.outputs[0], ())]
        return {str(one.outputs[0].dtype) for one in nodes}

    def length(self, value: int, order: Order) -> Any:
        """Return, in place of a multiple of the rows, the same one of the rank's own: the length of such an axis."""
        times, key = value // self.rows, (value, order)
        if times == 1 or order == Order.OPEN:
            return self._times(times)
        if key not in self._numbers:
            shape = [self.own_rows, np.int64(times)][:: -1 if order == Order.LAST else 1]
            self._numbers[key] = self.library.classes.tensor.zeros(shape, "int8").reshape((-1,)).shape[0]
        return self._numbers[key]

    def _times(self, times: int) -> Any:
        return self.own_rows if times == 1 else self.own_rows * np.int64(times)

    def vector(self, constant: Any, marks: Sequence[Element]) -> Any:
        """Return a vector with the rank's own number of rows in the place of some elements."""
        key = tuple(marks)
        if key not in self._numbers:
            tensor, orders = self.library.classes.tensor, {one.place: one.order for one in marks}
            elements = [
                self.length(value, orders[i]) if i in orders else tensor.constant(value, dtype="int64")
                for i, value in enumerate(constant.data.tolist())
            ]
            found = tensor.stack(elements)
            self._numbers[key] = found if constant.dtype == "int64" else tensor.cast(found, constant.dtype)
        return self._numbers[key]


class _Pass:
    """One pass through a graph: what it finds to be rows is read so from there on, and in the next pass everywhere."""

    def __init__(self, graph: _Graph, marks: Marks) -> None:
        self.graph, self.library, self.marks = graph, graph.library, marks
        self.new: Dict[Any, Any] = {}
        self.placements: Dict[Any, Placement] = {}
        self.where: List[str] = []
        for k, node in enumerate(graph.nodes):
            after = self._rebuilt(node, self.marks, self.new)
            placed = self._place(after)
            if isinstance(node.op, self.library.classes.Scan) and node not in graph.ops:
                after, placed = self._unwritten_inside(k, after, placed)
            if graph.rows < 2 or graph.own_rows is None:
                pass  # one row is of length 1, which all rules know
            elif self._is_lost(node, placed):
                after, placed = self._repaired(k, after, placed)
            elif isinstance(node.op, self.library.classes.SpecifyShape):
                after, placed = self._specified(k, after, placed)
            self._keep(node, after, placed, self.new)

    def image(self, variable: Any) -> Any:
        """Return what stands for a variable in the graph of the ranks."""
        return self.new.get(variable, variable)

    # -- placements

    def of(self, variable: Any) -> Placement:
        """Return the placement of a variable of the new graph."""
        if variable in self.placements:
            return self.placements[variable]
        if variable.owner is None:
            zero = self.library.placing.graph_of([], [variable]).known
            found = self.graph.known.get(variable) or zero.get(variable, REPLICATE)
            self.placements[variable] = found
            return found
        placed = self._place(variable.owner)
        self.placements.update(zip(variable.owner.outputs, placed.outputs))
        return self.placements[variable]

    def _place(self, node: Any) -> Placed:
        inputs = [self.of(one) for one in node.inputs]
        unknown = next((one for one in inputs if isinstance(one, Unknown)), None)
        if unknown is not None:
            return Placed([unknown] * len(node.outputs))
        placed = self.library.placing.rule_of(node).place(inputs, self.graph.exact)
        # Draws of a shape without rows are the same on all ranks, if that is wanted of their stream.
        drawn = [REPLICATE if getattr(one, "stream", None) is not None else one for one in placed.outputs]
        return placed._replace(outputs=drawn)

    def _is_lost(self, node: Any, placed: Placed) -> bool:
        """Return whether a node is the first of which nothing is known."""
        return any(isinstance(one, Unknown) for one in placed.outputs) and not any(
            isinstance(self.of(self.image(one)), Unknown) for one in node.inputs
        )

    # -- the new graph

    def _rebuilt(self, node: Any, marks: Marks, new: Mapping[Any, Any]) -> Any:
        """Return a node with its inputs as they are read."""
        inputs = [self._input(node, i, marks, new) for i in range(len(node.inputs))]
        after = node
        if node in self.graph.ops:
            after = self.library.remake(self.graph.ops[node], node, inputs)
        elif isinstance(node.op, self.library.classes.MakeVector) and any(
            marked(Number(node, i), marks) for i in range(len(inputs))
        ):
            after = self.library.classes.tensor.stack(inputs).owner  # of more bits, perhaps
        elif any(one is not old for one, old in zip(inputs, node.inputs)):
            after = self.library.remake(node.op, node, inputs)
        unwritten = self.library.without_rows_of(node.op)
        op = None if unwritten is None else unwritten(after, [self.of(one) for one in after.inputs])
        if op is None:
            return after
        self.where.append(described(self.library.classes, node))
        return op.make_node(*after.inputs)

    def _input(self, node: Any, i: int, marks: Marks, new: Mapping[Any, Any]) -> Any:
        variable, graph = node.inputs[i], self.graph
        if isinstance(node.op, self.library.classes.ARange) and i == 1:
            found = marked(Number(node, i), marks)
            if isinstance(found, Number):
                return graph.length(self.library.lengths.length(variable).number, found.order)
        if isinstance(variable, self.library.classes.Constant):
            elements = [one for one in marks if isinstance(one, Element) and one.vector is variable]
            if Number(node, i) in marks:
                variable = graph.number(variable, node)
            elif elements:
                variable = graph.vector(variable, sorted(elements, key=lambda one: one.place))
        else:
            variable = new.get(variable, variable)
        for axis in range(ndim(variable)):
            if Share(node, i, axis) in marks:
                variable = self.library.classes.TakeShare(axis)(variable)
        return variable

    def _keep(self, node: Any, after: Any, placed: Placed, new: Dict[Any, Any]) -> None:
        self.placements.update(zip(after.outputs, placed.outputs))
        if after is not node:
            for one, old in zip(after.outputs, node.outputs):
                one.name = old.name
            new.update(zip(node.outputs, after.outputs))

    # -- readings

    def _repaired(self, k: int, after: Any, placed: Placed) -> Tuple[Any, Placed]:
        """Return the node, and its placements, as it is read so that they are known; as it is if there is no way."""
        if isinstance(after.op, self.library.classes.Scan):
            after, placed = self._read_inside(k, after, placed)
            if not self._is_lost(self.graph.nodes[k], placed):
                return after, placed
        for more in self._readings(k, after):
            found = self._tried(k, self.marks | more)
            if found is not None:
                node, placed, images = found
                self.where.append(self._described(k))
                self.marks |= more
                self.new.update(images)
                return node, placed
        for fewer in self._other_readings(k):
            found = self._tried(k, self.marks - fewer)
            for share in [NONE, *self._shares(k)] if found is None else [NONE]:
                found = found or self._tried(k, (self.marks - fewer) | share)
                if found is not None:  # for this operation alone: another one needs what is before it to be rows
                    self.marks |= share
                    return found[0], found[1]
        return after, placed

    def _other_readings(self, k: int) -> Iterator[Marks]:
        """Iterate over marks of which a node may be computed without; not of draws, which are the same for all."""
        nodes = [self.graph.nodes[index] for index in self._before(k, 0)]
        if not any(isinstance(node.op, self.library.draws) for node in nodes):
            before = [mark for mark in self.marks if any(self._is_changed(node, frozenset([mark]), {}) for node in nodes)]
            yield from [frozenset([mark]) for mark in before]
            if len(before) > 1:
                yield frozenset(before)

    def _shares(self, k: int) -> List[Marks]:
        """Return the inputs of a node of which the rank's share may be taken: not in a step of a loop."""
        node, lengths = self.graph.nodes[k], self._lengths()
        return [
            frozenset([Share(node, i, axis)])
            for i, variable in enumerate(node.inputs)
            for axis in range(ndim(variable))
            if self.graph.exact and not broadcastable(variable)[axis] and lengths.is_long(variable, axis)
        ]

    def _unwritten_inside(self, k: int, after: Any, placed: Placed) -> Tuple[Any, Placed]:
        """Return the node of a scan, in whose steps there may be operations with a number of rows as a property."""
        if self.library.are_properties(self.library.classes.steps(after.op).outputs):
            return self._read_inside(k, after, placed)
        return after, placed

    def _read_inside(self, k: int, after: Any, placed: Placed) -> Tuple[Any, Placed]:
        """Return the node of a scan, and its placements, as the graph inside is read."""
        placements = [self.of(one) for one in after.inputs]
        op = self.library.inside(after, placements, self.graph.rows, self._expected(k, placements))
        if op is None:
            return after, placed
        self.graph.ops[self.graph.nodes[k]] = op
        self.where.append(self._described(k))
        after = self.library.remake(op, after, after.inputs)
        return after, self._place(after)

    def _specified(self, k: int, after: Any, placed: Placed) -> Tuple[Any, Placed]:
        """Return the node that asserts a shape, as it is read if that has a number of rows."""
        (found,), node = placed.outputs, self.graph.nodes[k]
        if not isinstance(found, Shard):
            return after, placed
        lengths = self._lengths()
        is_vector = len(node.inputs) == 2 and ndim(node.inputs[1]) == 1
        axis = found.axis
        more = lengths.element(node.inputs[1], axis) if is_vector else lengths.number(node, 1 + axis)
        if not more:
            return after, placed
        self.marks |= more
        self.where.append(self._described(k))
        after = self._rebuilt(node, self.marks, self.new)
        return after, self._place(after)

    def _lengths(self) -> WrittenLengths:
        return WrittenLengths(self.library.lengths, self.library.draws, self.graph.rows, self.marks)

    def _expected(self, k: int, placements: Sequence[Placement]) -> Dict[int, int]:
        """Return which inputs of a node may be read as rows, and along which axis."""
        found, inputs = {}, self.graph.nodes[k].inputs
        if self.graph.rows < 2:
            return {}
        lengths = self._lengths()
        for i, variable in enumerate(inputs):
            if isinstance(placements[i], Replicate):
                axes = [axis for axis in range(ndim(variable)) if lengths.axis(variable, axis)]
                if axes:
                    found[i] = axes[0]
        return found

    def _described(self, k: int) -> str:
        return described(self.library.classes, self.graph.nodes[k])

    def _readings(self, k: int, after: Any) -> Iterator[Marks]:
        """Iterate over what may be read as rows so that more is known of a node; the likeliest first."""
        node, graph, library = self.graph.nodes[k], self.graph, self.library
        lengths = self._lengths()
        numbers, by_input = [], []
        positions = numbers_of(library.lengths, library.draws, node)
        for i in positions:
            if ndim(node.inputs[i]) == 0:
                numbers.append(lengths.number(node, i))
            else:
                numbers += [lengths.element(node.inputs[i], j) for j in range(lengths._count(node.inputs[i]))]
        for i, variable in enumerate(node.inputs):
            placement = self.of(after.inputs[i])
            if i in positions or not isinstance(placement, Replicate) or placement.power != 0:
                continue
            axes = [axis for axis in range(ndim(variable)) if not broadcastable(variable)[axis]]
            by_input.append([found for found in (lengths.axis(variable, axis) for axis in axes) if found])
        found = [one for one in numbers if one]
        singles = [*found, *(one for each in by_input for one in each)]
        together = frozenset().union(*[each[0] for each in by_input if each])
        tried: Set[Marks] = set()
        several = [one | other for one, other in combinations(singles, 2)]
        for marks in [*self._in_other_orders(singles), together, *several, *self._shares(k)]:
            if marks and marks not in tried and len(tried) < MAX_TRIALS:
                tried.add(marks)
                yield marks

    def _in_other_orders(self, singles: Sequence[Marks]) -> List[Marks]:
        """Return marks with all orders of the rows, if there are several elements of each."""
        found: List[Marks] = []
        for marks in singles:
            for order in Order:
                found.append(frozenset(self._in_order(mark, order) for mark in marks))
        return found

    def _in_order(self, mark: Mark, order: Order) -> Mark:
        value, classes = None, self.library.classes
        if isinstance(mark, Element):
            value = int(mark.vector.data[mark.place])
        elif isinstance(mark, Number) and isinstance(mark.node.op, classes.ARange):
            value = self.library.lengths.length(mark.node.inputs[1]).number
        return mark if value in (None, self.graph.rows) or isinstance(mark, Share) else replace(mark, order=order)

    def unclear(self) -> str:
        """Return an operation of which it is not known how its numbers are to be read, and why; "" if there is none."""
        lengths, classes, rows = self._lengths(), self.library.classes, self.graph.rows
        for k, node in enumerate(self.graph.nodes):
            inputs = [self.of(self.image(one)) for one in node.inputs]
            lost = next((one for one in inputs if isinstance(one, Unknown)), None)
            if lost is None:
                continue
            constants = [one for one in node.inputs if isinstance(one, classes.Constant)]
            values = {value for one in constants for value in np.ravel(getattr(one, "data", ())).tolist()}
            numbers = numbers_of(self.library.lengths, self.library.draws, node)
            is_number = bool(numbers or hasattr(node.op, "scalar_op")) and (rows in values or 1 / rows in values)
            is_long = any(
                lengths.axis(variable, axis) is not None
                for variable, one in zip(node.inputs, inputs)
                if isinstance(one, Replicate)
                for axis in range(ndim(variable))
            )
            if is_number or is_long:
                return f"{rows} in {self._described(k)}, where it may be that or another length: {lost.why}"
        return ""

    def _tried(self, k: int, marks: Marks) -> Optional[Tuple[Any, Placed, Dict[Any, Any]]]:
        """Return a node, its placements, and what is before it, as they are with these marks; None if that is lost."""
        graph, changed = self.graph, marks ^ self.marks
        first = min(index for mark in changed for index in self._used_at(mark))
        images: Dict[Any, Any] = {}
        new = _Chained(images, self.new)
        for index in self._before(k, first):
            node = graph.nodes[index]
            if not self._is_changed(node, changed, images):
                continue
            after = self._rebuilt(node, marks, new)
            placed = self._place(after)
            if any(isinstance(one, Unknown) for one in placed.outputs):
                return None
            if index == k:
                return after, placed, images
            self._keep(node, after, placed, images)
            for variable in node.outputs:
                images.setdefault(variable, variable)  # as it is, if it is no longer read as rows
        return None

    def _used_at(self, mark: Mark) -> Sequence[int]:
        if isinstance(mark, Element):
            return self.graph.users[mark.vector]
        return [self.graph.place_of[mark.node]]

    def _before(self, k: int, first: int) -> List[int]:
        """Return a node, and those after the first that it is computed from, in order."""
        found, ahead = {k}, [k]
        while ahead:
            for variable in self.graph.nodes[ahead.pop()].inputs:
                if variable.owner is not None:
                    index = self.graph.place_of[variable.owner]
                    if index >= first and index not in found:
                        found.add(index)
                        ahead.append(index)
        return sorted(found)

    def _is_changed(self, node: Any, changed: Marks, images: Mapping[Any, Any]) -> bool:
        return any(variable in images for variable in node.inputs) or any(
            mark.vector in node.inputs if isinstance(mark, Element) else mark.node is node for mark in changed
        )


class _Chained(Dict[Any, Any]):
    """What is in one table, or else in another."""

    def __init__(self, first: Mapping[Any, Any], then: Mapping[Any, Any]) -> None:
        super().__init__()
        self.first, self.then = first, then

    def get(self, key: Any, default: Any = None) -> Any:
        return self.first[key] if key in self.first else self.then.get(key, default)
