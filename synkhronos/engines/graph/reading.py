"""Passes through a graph that replace literal numbers of rows with the rank's own number if operations require it.

::

    nodes, in order     x, ones, join(x, ones), dot, sum
    join                combines a rank's rows with a replicated value, so its placement is unknown
    candidates          replace the number in ones, or take the rank's share of ones, or replace another length, ...
    chosen candidate    the first that makes the placement known; it applies from this node on, and in the next pass
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from itertools import combinations
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from ...sharding import REPLICATE, ROWS, Placement, Replicate, RuleResult, Shard, Unknown
from .descriptions import described
from .lengths import broadcastable, ndim
from .written_lengths import (
    NONE,
    ElementMark,
    LengthsMark,
    Mark,
    Marks,
    NumberMark,
    RowOrder,
    ShareMark,
    WrittenLengths,
    marked,
    numbers_of,
    times_rows,
)

MAX_TRIALS = 40


class WrittenGraph:
    """A program's graph and the state of all passes; ``exact`` allows collectives, which loop steps cannot contain."""

    def __init__(
        self,
        library: Any,
        outputs: Sequence[Any],
        known: Mapping[Any, Placement],
        rows: Optional[int],
        exact: bool,
    ) -> None:
        #: The literal number of rows in the program; 0 if none is given.
        self.rows = rows or 0
        self.library, self.known, self.exact = library, known, exact
        self.ops: Dict[Any, Any] = {}  # by scan node: the scan operation with numbers of rows replaced in its steps
        self.nodes = list(library.classes.io_toposort([], outputs))
        self.place_of = {node: k for k, node in enumerate(self.nodes)}
        self.roots = set(outputs)
        self.users: Dict[Any, List[int]] = {}
        for k, node in enumerate(self.nodes):
            for variable in node.inputs:
                self.users.setdefault(variable, []).append(k)
        self.own_rows = self._own_rows()  # expression of the rank's number of rows; None without rows
        self._numbers: Dict[Any, Any] = {}

    def _own_rows(self) -> Any:
        for variable, placement in self.known.items():
            if isinstance(placement, Shard) and placement.layout == ROWS:
                return variable.shape[placement.axis]
        for node in self.nodes:
            if isinstance(node.op, self.library.classes.TakeShare):
                return node.outputs[0].shape[node.op.axis]
        return None

    def number(self, constant: Any, node: Any) -> Any:
        """Return the rank's value for a constant that is a multiple of the number of rows, or the inverse of one."""
        classes, times = self.library.classes, times_rows(constant.data, self.rows)
        is_tensor, dtype = isinstance(constant.type, classes.TensorType), "int64"
        is_cast = isinstance(node.op, classes.Elemwise) and isinstance(node.op.scalar_op, classes.scalar.Cast)
        if not is_tensor or isinstance(node.op, (classes.Elemwise, classes.DimShuffle)) and not is_cast:
            dtype = constant.dtype  # (not before a cast: the constant's dtype may be too narrow for a length)
            if dtype in classes.float_dtypes and self._dtypes_after(node) == {"float64"}:
                dtype = "float64"  # the inverse of the rank's number of rows may need more digits
        key = times, dtype, is_tensor
        if key not in self._numbers:
            found = self._times(times) if times > 0 else 1.0 / self._times(-times)
            found = found if found.dtype == dtype else classes.tensor.cast(found, dtype)
            self._numbers[key] = found if is_tensor else classes.ScalarFromTensor()(found)
        return self._numbers[key]

    def _dtypes_after(self, node: Any) -> Set[str]:
        """Return the dtypes of the results computed from a number that is an input of this node."""
        nodes = [node]
        if isinstance(node.op, self.library.classes.DimShuffle):
            nodes = [self.nodes[k] for k in self.users.get(node.outputs[0], ())]
        return {str(one.outputs[0].dtype) for one in nodes}

    def length(self, value: int, order: RowOrder) -> Any:
        """Return the axis length that replaces a constant multiple of the program's number of rows."""
        times, key = value // self.rows, (value, order)
        if times == 1 or order == RowOrder.OPEN:
            return self._times(times)
        if key not in self._numbers:
            shape = [self.own_rows, np.int64(times)][:: -1 if order == RowOrder.LAST else 1]
            self._numbers[key] = self.library.classes.tensor.zeros(shape, "int8").reshape((-1,)).shape[0]
        return self._numbers[key]

    def _times(self, times: int) -> Any:
        return self.own_rows if times == 1 else self.own_rows * np.int64(times)

    def vector(self, constant: Any, marks: Sequence[ElementMark]) -> Any:
        """Replace a vector's marked elements with multiples of the rank's own number of rows."""
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


class Reading:
    """One pass through a graph to replace marked numbers; new marks apply to later nodes and to the next pass."""

    def __init__(self, graph: WrittenGraph, marks: Marks) -> None:
        self.graph, self.library, self.marks = graph, graph.library, marks
        self.new: Dict[Any, Any] = {}
        self.placements: Dict[Any, Placement] = {}
        self.where: List[str] = []  # descriptions of the operations that require the marks
        for k, node in enumerate(graph.nodes):
            after = self._rebuilt(node, self.marks, self.new)
            placed = self._place(after)
            if isinstance(node.op, self.library.classes.Scan) and node not in graph.ops:
                after, placed = self._unwritten_inside(k, after, placed)
            if graph.rows < 2 or graph.own_rows is None:
                pass  # for one row, or without rows, there is nothing to replace: all rules handle length 1
            elif self._is_lost(node, placed) or self._is_misread(k, placed):
                after, placed = self._repaired(k, after, placed)
            elif isinstance(node.op, self.library.classes.SpecifyShape):
                after, placed = self._specified(k, after, placed)
            self._keep(node, after, placed, self.new)

    def image(self, variable: Any) -> Any:
        """Return the variable that replaces this one in the ranks' graph."""
        return self.new.get(variable, variable)

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

    def _place(self, node: Any) -> RuleResult:
        inputs = [self.of(one) for one in node.inputs]
        unknown = next((one for one in inputs if isinstance(one, Unknown)), None)
        if unknown is not None:
            return RuleResult([unknown] * len(node.outputs))
        placed: RuleResult = self.library.placing.rule_of(node).place(inputs, self.graph.exact)
        # Random arrays without rows count as replicated: the ranks of an exact function can share the stream.
        drawn = [REPLICATE if getattr(one, "stream", None) is not None else one for one in placed.outputs]
        return placed._replace(outputs=drawn)

    def _is_lost(self, node: Any, placed: RuleResult) -> bool:
        """Return whether a node has an unknown placement although its inputs' placements are known."""
        return any(isinstance(one, Unknown) for one in placed.outputs) and not any(
            isinstance(self.of(self.image(one)), Unknown) for one in node.inputs
        )

    def _is_misread(self, k: int, placed: RuleResult) -> bool:
        """Return whether a result or update of this node contains positions of rows, which each rank counts from 0."""
        return self.graph.exact and any(
            one in self.graph.roots and isinstance(placement, Shard) and placement.positions
            for one, placement in zip(self.graph.nodes[k].outputs, placed.outputs)
        )

    def _rebuilt(self, node: Any, marks: Marks, new: Mapping[Any, Any]) -> Any:
        inputs = [self._input(node, i, marks, new) for i in range(len(node.inputs))]
        after = node
        if node in self.graph.ops:
            after = self.library.remake(self.graph.ops[node], node, inputs)
        elif isinstance(node.op, self.library.classes.MakeVector) and any(
            marked(NumberMark(node, i), marks) for i in range(len(inputs))
        ):
            after = self.library.classes.tensor.stack(inputs).owner  # the vector's dtype may have more bits than before
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
            found = marked(NumberMark(node, i), marks)
            if isinstance(found, NumberMark):
                return graph.length(self.library.lengths.length(variable).number, found.order)
        if isinstance(variable, self.library.classes.Constant):
            elements = [one for one in marks if isinstance(one, ElementMark) and one.vector is variable]
            if NumberMark(node, i) in marks:
                variable = graph.number(variable, node)
            elif elements:
                variable = graph.vector(variable, sorted(elements, key=lambda one: one.place))
        else:
            variable = new.get(variable, variable)
        for axis in range(ndim(variable)):
            if ShareMark(node, i, axis) in marks:
                variable = self.library.classes.TakeShare(axis)(variable)
        for mark in marks if i == 0 else ():
            if isinstance(mark, LengthsMark) and mark.node is node:
                lengths = [variable.shape[axis] for axis in range(mark.axis + 1)]
                lengths += node.inputs[1].data[mark.place + 1 :].tolist()
                variable = self.library.classes.tensor.specify_shape(variable, lengths)
        return variable

    def _keep(self, node: Any, after: Any, placed: RuleResult, new: Dict[Any, Any]) -> None:
        self.placements.update(zip(after.outputs, placed.outputs))
        if after is not node:
            for one, old in zip(after.outputs, node.outputs):
                one.name = old.name
            new.update(zip(node.outputs, after.outputs))

    def _repaired(self, k: int, after: Any, placed: RuleResult) -> Tuple[Any, RuleResult]:
        """Return a node and its placements, with replacements that make the placements known if there are any."""
        classes = self.library.classes
        if isinstance(after.op, classes.Scan):
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
                if found is not None:  # only for this operation; other operations may need its inputs as rows
                    self.marks |= share
                    return found[0], found[1]
        # Count positions over all rows; earlier operations that need the rank's positions take them from its share.
        own = [one for one in self.marks if isinstance(one, NumberMark) and isinstance(one.node.op, classes.ARange)]
        found = self._tried(k, self.marks - frozenset(own), by_shares=True)
        return (after, placed) if found is None else found[:2]

    def _other_readings(self, k: int) -> Iterator[Marks]:
        """Iterate over sets of marks to remove for one node; there are none if the node depends on random draws."""
        nodes = [self.graph.nodes[index] for index in self._before(k, 0)]
        if not any(isinstance(node.op, self.library.draws) for node in nodes):
            before = [
                mark for mark in self.marks if any(self._is_changed(node, frozenset([mark]), {}) for node in nodes)
            ]
            yield from [frozenset([mark]) for mark in before]
            if len(before) > 1:
                yield frozenset(before)

    def _shares(self, k: int) -> List[Marks]:
        """Return marks that each replace one input of the node with the rank's share of it; none in a loop step."""
        node, lengths = self.graph.nodes[k], self._lengths()
        return [
            frozenset([ShareMark(node, i, axis)])
            for i, variable in enumerate(node.inputs)
            for axis in range(ndim(variable))
            if self.graph.exact and not broadcastable(variable)[axis] and lengths.is_long(variable, axis)
        ]

    def _unwritten_inside(self, k: int, after: Any, placed: RuleResult) -> Tuple[Any, RuleResult]:
        """Replace numbers of rows in a scan's steps if operations may store them or shape assertions may use them."""
        outputs, classes = self.library.classes.steps(after.op).outputs, self.library.classes
        asserts = self.graph.rows > 1 and any(
            isinstance(node.op, classes.SpecifyShape) for node in classes.io_toposort([], outputs)
        )
        if asserts or self.library.are_properties(outputs):
            return self._read_inside(k, after, placed)
        return after, placed

    def _read_inside(self, k: int, after: Any, placed: RuleResult) -> Tuple[Any, RuleResult]:
        """Return the node of a scan, and its placements, after replacements in its inner graph."""
        placements = [self.of(one) for one in after.inputs]
        op = self.library.inside(after, placements, self.graph.rows, self._expected(k, placements))
        if op is None:
            return after, placed
        self.graph.ops[self.graph.nodes[k]] = op
        self.where.append(self._described(k))
        after = self.library.remake(op, after, after.inputs)
        return after, self._place(after)

    def _specified(self, k: int, after: Any, placed: RuleResult) -> Tuple[Any, RuleResult]:
        """Return the node of a shape assertion, and its placements, with its number of rows replaced."""
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
        """Map the positions of replicated inputs to the axis whose length may be the literal number of rows, if any."""
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
        """Iterate over sets of marks that may make a node's placement known, the likeliest first."""
        node, library = self.graph.nodes[k], self.library
        lengths = self._lengths()
        numbers, by_input = [], []
        positions = numbers_of(library.lengths, library.draws, node)
        for i in positions:
            if ndim(node.inputs[i]) == 0:
                numbers.append(lengths.number(node, i))
            else:
                numbers += [lengths.element(node.inputs[i], j) for j in range(lengths.count(node.inputs[i]))]
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
        more = [together, *several, *self._with_lengths(k, after, singles), *self._shares(k)]
        for marks in [*self._in_other_orders(singles), *more]:
            if marks and marks not in tried and len(tried) < MAX_TRIALS:
                tried.add(marks)
                yield marks

    def _with_lengths(self, k: int, after: Any, singles: Sequence[Marks]) -> Iterator[Marks]:
        """Iterate over marks for a reshape; every call then checks that the axes after the rows are preserved."""
        node, rows = self.graph.nodes[k], self.of(after.inputs[0]) if after.inputs else None
        if not isinstance(node.op, self.library.classes.Reshape) or not isinstance(rows, Shard):
            return
        for mark in [mark for marks in singles if len(marks) == 1 for mark in marks]:
            if isinstance(mark, ElementMark) and mark.vector is node.inputs[1]:
                after_rows = mark.vector.data[mark.place + 1 :]
                if ndim(node.inputs[0]) - rows.axis - 1 == len(after_rows) and (after_rows > 0).all():
                    lengths = LengthsMark(node, rows.axis, mark.place)
                    yield frozenset([self._in_order(mark, RowOrder.LAST), lengths])

    def _in_other_orders(self, singles: Sequence[Marks]) -> List[Marks]:
        """Return each set of marks in all row orders, which differ only if rows have several elements."""
        found: List[Marks] = []
        for marks in singles:
            for order in RowOrder:
                found.append(frozenset(self._in_order(mark, order) for mark in marks))
        return found

    def _in_order(self, mark: Mark, order: RowOrder) -> Mark:
        value, classes = None, self.library.classes
        if isinstance(mark, ElementMark):
            value = int(mark.vector.data[mark.place])
        elif isinstance(mark, NumberMark) and isinstance(mark.node.op, classes.ARange):
            value = self.library.lengths.length(mark.node.inputs[1]).number
        if value in (None, self.graph.rows) or not isinstance(mark, (NumberMark, ElementMark)):
            return mark
        return replace(mark, order=order)

    def unclear(self) -> str:
        """Describe an operation whose numbers cannot be interpreted, with the reason; "" if there is none."""
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
                return (
                    f"{rows} in {self._described(k)}, which may be the number of rows or some other length: {lost.why}"
                )
        return ""

    def _tried(self, k: int, marks: Marks, by_shares: bool = False) -> Optional[Tuple[Any, RuleResult, Dict[Any, Any]]]:
        """Return a node, its placements and all changed variables under these marks; None if the marks do not help.

        With ``by_shares``, the rank's share may replace inputs that make a placement unknown.
        """
        graph, changed = self.graph, marks ^ self.marks
        if not changed:
            return None
        first = min(index for mark in changed for index in self._used_at(mark))
        images: Dict[Any, Any] = {}
        new = ChainMap(images, self.new)
        for index in self._before(k, first):
            node = graph.nodes[index]
            if not self._is_changed(node, changed, images):
                continue
            for share in [NONE, *(self._shares(index) if by_shares else ())]:
                after = self._rebuilt(node, marks | share, new)
                placed = self._place(after)
                if not any(isinstance(one, Unknown) for one in placed.outputs):
                    break
            else:
                return None
            if index == k:
                return None if self._is_misread(k, placed) else (after, placed, images)
            self._keep(node, after, placed, images)
            for variable in node.outputs:
                images.setdefault(variable, variable)  # unchanged if no longer replaced
        return None

    def _used_at(self, mark: Mark) -> Sequence[int]:
        if isinstance(mark, ElementMark):
            return self.graph.users[mark.vector]
        return [self.graph.place_of[mark.node]]

    def _before(self, k: int, first: int) -> List[int]:
        """Return the sorted indices of a node and of its ancestors from ``first`` on."""
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
            mark.vector in node.inputs if isinstance(mark, ElementMark) else mark.node is node for mark in changed
        )
