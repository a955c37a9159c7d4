"""Lengths of axes as products of symbols: integer variables, axes of variables, and lengths derived from them."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np

from ...sharding import Kind, NoRemainder, Product, Quotient, WithinRows, product
from .classes import Classes, Kinds
from .equalities import Equalities
from .indices import constant_index, how_many_less
from .operations import PutShareOp, ShareOp

_OUTSIDE = (
    "a position that was computed from a row's position is negative or too large: it is outside the rank's rows. "
    "Index the row itself, or list the array in bcast_inputs"
)
_NOT_EQUAL = (
    "lengths that must be equal differ: positions in rows were computed with a wrong row size, rows of different sizes "
    "were combined, or a quotient has a remainder. Compute each length from the shape of its own array"
)
_LEFT_OVER = (
    "a rank's elements do not fill whole rows of a reshape with -1: pass a number of rows that lets each rank's share "
    "fill whole rows, or keep the number of rows in the reshape, as in x.reshape((x.shape[0], -1))"
)
#: Length of the longest vector that is examined as a shape, or as positions in a shape; no array has more axes.
MAX_ELEMENTS = 64
#: The factors of a length that is a plain number.
NONE: FrozenSet[Any] = frozenset()


class ShiftedLength(NamedTuple):
    """Symbol for ``max(length - number, 0)``, such as the length of a slice; ``number`` may be negative."""

    length: Product
    number: int


class Lengths:
    """Tracer of axis lengths in a graph; ``same`` adds shape-preserving operations, and ``before`` traces others."""

    def __init__(
        self, classes: Classes, same: Kinds = (), before: Callable[[Any, int, Any], Any] = lambda *_: None
    ) -> None:
        self.classes, self._before_of_own = classes, before
        self._same = (
            *(*classes.rebroadcasts, *classes.views, *classes.sorts, *same),
            *(classes.SpecifyShape, classes.Assert, classes.CumOp, classes.DeepCopyOp),
            *(classes.IncSubtensor, classes.AdvancedIncSubtensor),
        )
        self._numbers = (
            *(classes.TensorFromScalar, classes.ScalarFromTensor, classes.DimShuffle),
            *(classes.Assert, classes.SpecifyShape, classes.DeepCopyOp, *classes.rebroadcasts),
        )
        self._equalities: Optional[Equalities] = None
        scalar = classes.scalar
        self._whole = (*classes.rounds, scalar.Identity)
        #: The effect of scalar operations, other than casts, on lengths.
        self.kinds: Dict[Type[Any], Kind] = {
            scalar.Add: Kind.SUM,
            scalar.Sub: Kind.DIFFERENCE,
            scalar.Mul: Kind.PRODUCT,
            scalar.TrueDiv: Kind.QUOTIENT,
            scalar.IntDiv: Kind.FLOOR,
            scalar.Identity: Kind.SAME,
            scalar.Second: Kind.SECOND,
            scalar.Switch: Kind.CHOICE,
            **dict.fromkeys((classes.Maximum, classes.Minimum), Kind.ONE_OF),
            **dict.fromkeys(classes.rounds, Kind.WHOLE),
        }

    @contextlib.contextmanager
    def among(self, nodes: Sequence[Any]) -> Iterator[None]:
        """Return a context for deriving the rules of one graph's nodes, with a search for equal lengths; see `same`."""
        before, self._equalities = self._equalities, Equalities(self, nodes)
        try:
            yield
        finally:
            self._equalities = before

    def same(self) -> Optional[Equalities]:
        """Return the search for equal lengths in the current graph; None outside `among`."""
        return self._equalities

    def constant(self, variable: Any) -> Any:
        """Return a variable's constant value, even after copies, assertions or dimshuffles; None if it has none."""
        while variable.owner is not None and isinstance(variable.owner.op, self._numbers):
            variable = variable.owner.inputs[0]
        return np.asarray(variable.data) if isinstance(variable, self.classes.Constant) else None

    def length(self, variable: Any) -> Product:
        """Return an integer variable as a product of symbols."""
        classes = self.classes
        while variable.owner is not None:
            op, inputs = variable.owner.op, variable.owner.inputs
            first = inputs[0] if inputs else None
            if isinstance(op, classes.Elemwise):
                if isinstance(op.scalar_op, (classes.scalar.Cast, classes.scalar.Identity)) and self._is_integer(first):
                    variable = first
                    continue
                return self._computed(op.scalar_op, inputs) or Product.of(variable)
            if isinstance(op, classes.CAReduce) and isinstance(op.scalar_op, classes.scalar.Mul) and ndim(first) == 1:
                elements = self.elements(first)
                return (None if elements is None else product(elements)) or Product.of(variable)
            if isinstance(op, classes.Shape_i):
                return self.axis_length(first, op.i)
            if isinstance(op, classes.Subtensor) and ndim(first) == 1:
                index = constant_index(self, variable.owner, 0)
                found = self._element(first, int(index)) if isinstance(index, (int, np.integer)) else None
                if found is None:
                    break
                return found
            if isinstance(op, classes.DimShuffle) and ndim(first) == 1:  # one element
                return self._element(first, 0) or Product.of(variable)
            if not (isinstance(op, self._numbers) and ndim(first) == 0):
                break
            variable = first
        value = self.constant(variable)
        if value is not None and value.ndim == 0 and value.dtype.kind in "iub":
            return Product(int(value))
        return Product.of(variable)

    def _element(self, vector: Any, index: int) -> Optional[Product]:
        """Return an element of a vector, or None if unknown; deriving all elements would trace lengths repeatedly."""
        node = vector.owner
        if node is not None and isinstance(node.op, self.classes.Shape):
            n = ndim(node.inputs[0])
            return self.axis_length(node.inputs[0], index % n) if -n <= index < n else None
        if node is not None and isinstance(node.op, self.classes.MakeVector):
            n = len(node.inputs)
            return self.length(node.inputs[index]) if -n <= index < n else None
        found = self.elements(vector)
        return found[index] if found is not None and -len(found) <= index < len(found) else None

    def _computed(self, op: Any, inputs: Sequence[Any]) -> Optional[Product]:
        """Return the result of an operation on numbers; None if the result might not be an integer."""
        scalar = self.classes.scalar
        if isinstance(op, (scalar.Cast, *self._whole)):
            return self._whole_number(inputs[0])
        if not all(map(self._is_integer, inputs)):
            return None
        return self._combined(op, [self.length(one) for one in inputs])

    def _whole_number(self, variable: Any) -> Optional[Product]:
        """Return the value of a real scalar; None if the value might not be an integer."""
        if self._is_integer(variable):
            return self.length(variable)
        op = getattr(variable.owner, "op", None)
        if isinstance(op, self.classes.Elemwise) and variable.dtype == "float64":
            if isinstance(op.scalar_op, (self.classes.scalar.Cast, *self._whole)):
                return self._whole_number(variable.owner.inputs[0])
            if isinstance(op.scalar_op, self.classes.scalar.TrueDiv):
                one, other = map(self._whole_number, variable.owner.inputs)
                return None if one is None or other is None else one.over(other)
        if op is not None and isinstance(op, self._numbers) and ndim(variable.owner.inputs[0]) == 0:
            return self._whole_number(variable.owner.inputs[0])
        value = self.constant(variable)
        return Product(int(value)) if value is not None and value.ndim == 0 and value == np.floor(value) else None

    def _combined(self, op: Any, lengths: Sequence[Product]) -> Optional[Product]:
        scalar = self.classes.scalar
        if isinstance(op, scalar.Second):
            return lengths[1]
        if isinstance(op, scalar.Switch) and (not lengths[0].factors or lengths[1] == lengths[2]):
            return lengths[1 if lengths[0].number else 2]
        if not any(one.factors for one in lengths):
            return self._evaluated(op, [one.number for one in lengths])
        if isinstance(op, scalar.Mul):
            return product(lengths)
        if isinstance(op, scalar.IntDiv):
            return lengths[0].over(lengths[1])
        if isinstance(op, (self.classes.Maximum, self.classes.Minimum)) and len(set(lengths)) == 1:
            return lengths[0]
        if isinstance(op, (scalar.Add, scalar.Sub)) and len({one.factors for one in lengths}) == 1:
            number = self._evaluated(op, [one.number for one in lengths])
            return number if number is None else Product(number.number, lengths[0].factors if number.number else NONE)
        if isinstance(op, scalar.Sub):
            return None if lengths[1].factors else less(lengths[0], lengths[1].number)
        if isinstance(op, scalar.Add):
            others = [one for one in lengths if one.factors]
            more = sum(one.number for one in lengths if not one.factors)
            return less(others[0], -more) if len(others) == 1 else None
        return None

    def _evaluated(self, op: Any, numbers: Sequence[int]) -> Optional[Product]:
        scalar = self.classes.scalar
        known = (scalar.Add, scalar.Sub, scalar.Mul, scalar.IntDiv, self.classes.Maximum, self.classes.Minimum)
        compared = (scalar.LT, scalar.GT, scalar.LE, scalar.GE, scalar.EQ, scalar.NEQ)
        if not isinstance(op, (*known, *compared)) or isinstance(op, scalar.IntDiv) and numbers[1] == 0:
            return None
        return Product(int(op.impl(*numbers)))

    def elements(self, vector: Any) -> Optional[List[Product]]:
        """Return a vector's elements, with -1 for an inferred length; None if the graph does not determine them."""
        classes = self.classes
        if ndim(vector) != 1:
            return None
        value = self.constant(vector)
        if value is not None:
            is_short = value.dtype.kind in "iub" and value.size <= MAX_ELEMENTS
            return [Product(int(one)) for one in value.ravel()] if is_short else None
        node = vector.owner
        if node is None:
            return None
        op, first = node.op, node.inputs[0] if node.inputs else None
        if isinstance(op, classes.MakeVector):
            return [self.length(one) for one in node.inputs]
        if isinstance(op, classes.Join):
            parts = [self.elements(one) for one in classes.joined(node)[1]]
            return None if any(one is None for one in parts) else [one for part in parts for one in part or ()]
        if isinstance(op, classes.Elemwise):
            return self._by_element(op.scalar_op, node)
        if isinstance(op, (classes.DimShuffle, classes.SpecifyShape, classes.Assert, *classes.rebroadcasts)):
            return [self.length(first)] if ndim(first) == 0 else self.elements(first)
        if isinstance(op, classes.Shape):
            return [self.axis_length(first, axis) for axis in range(ndim(first))]
        if isinstance(op, classes.ARange):
            ends = [self.length(one) for one in node.inputs]
            if not self._is_integer(vector) or any(one.factors for one in ends) or not ends[2].number:
                return None
            numbers = range(*[one.number for one in ends])
            return [Product(k) for k in numbers] if len(numbers) <= MAX_ELEMENTS else None
        if isinstance(op, classes.Alloc):
            count = self.length(node.inputs[1])
            is_short = not count.factors and count.number <= MAX_ELEMENTS
            return [self.length(first)] * count.number if is_short and ndim(first) == 0 else None
        if isinstance(op, (classes.Subtensor, *classes.rows_at, classes.AdvancedSubtensor)) and ndim(first) == 1:
            before = self.elements(first)
            index = self._index(node, 0)
            if before is None or index is None or isinstance(index, int):
                return None
            return [before[k] for k in index] if isinstance(index, list) else before[index]
        if isinstance(op, (classes.IncSubtensor, *classes.inc_rows_at, classes.AdvancedIncSubtensor)):
            return self._changed(node)
        return None

    def _by_element(self, op: Any, node: Any) -> Optional[List[Product]]:
        if isinstance(op, self.classes.scalar.Cast):
            return self.elements(node.inputs[0]) if self._is_integer(node.inputs[0]) else None
        if not all(map(self._is_integer, node.inputs)):
            return None
        vectors = [self.elements(one) for one in node.inputs]
        if any(one is None or len(one) == 0 for one in vectors):
            return None
        known = [one for one in vectors if one]
        found = [
            self._combined(op, [one[k % len(one)] for one in known]) for k in range(max(len(one) for one in known))
        ]
        return None if None in found else [one for one in found if one is not None]

    def _index(self, node: Any, first: int) -> Any:
        if isinstance(node.op, (self.classes.Subtensor, self.classes.IncSubtensor)):
            return constant_index(self, node, first)
        return self.positions(node.inputs[first + 1]) if len(node.inputs) == first + 2 else None

    def positions(self, index: Any) -> Optional[List[int]]:
        if ndim(index) != 1 or not self._is_integer(index) or index.dtype == "bool":
            return None
        found = self.elements(index)
        return None if found is None or any(one.factors for one in found) else [one.number for one in found]

    def _changed(self, node: Any) -> Optional[List[Product]]:
        """Return the elements of a vector after some elements were set or incremented; None if unknown."""
        before, index = self.elements(node.inputs[0]), self._index(node, 1)
        new = [self.length(node.inputs[1])] if ndim(node.inputs[1]) == 0 else self.elements(node.inputs[1])
        if before is None or index is None or not new:
            return None
        after: List[Optional[Product]] = list(before)
        chosen = index if isinstance(index, list) else list(range(len(before)))[index]
        for i, k in enumerate(chosen if isinstance(chosen, list) else [chosen]):
            one = new[i % len(new)]
            old = after[k]
            after[k] = (
                one
                if node.op.set_instead_of_inc
                else old and self._combined(self.classes.tensor.add.scalar_op, [old, one])
            )
        return None if None in after else [one for one in after if one is not None]

    def values(self, variable: Any) -> Optional[List[Optional[Product]]]:
        """Return a scalar's or vector's elements, with None for unknown elements; None if a vector cannot be traced."""
        if ndim(variable) == 0:
            return [self._whole_number(variable)]
        found = self.elements(variable) if self._is_integer(variable) else None
        if found is not None:
            return list(found)
        if broadcastable(variable) != (True,):
            return None
        is_number = variable.owner is not None and isinstance(variable.owner.op, self.classes.DimShuffle)
        return [self._whole_number(variable) if is_number and ndim(variable.owner.inputs[0]) == 0 else None]

    def axis_length(self, variable: Any, axis: int) -> Product:
        while True:
            static = getattr(variable.type, "shape", broadcastable(variable))[axis]
            if static:  # a number, or True for length 1
                return Product(int(static))
            if isinstance(variable, self.classes.Constant):
                return Product(int(np.shape(variable.data)[axis]))
            node = variable.owner
            before = None if node is None else self.before(node, axis, variable)
            if before is None:
                return Product.of((variable, axis))
            if isinstance(before, Product):
                return before
            variable, axis = before

    def before(self, node: Any, axis: int, output: Any) -> Any:
        """Return the origin of an axis's length: an input and an axis of it, or a product; None if unknown."""
        classes, op = self.classes, node.op
        first = node.inputs[0] if node.inputs else None
        if isinstance(op, classes.Elemwise):
            # (None if the inputs' types have length 1 on the axis but the output's type, inferred earlier, does not.)
            return next(((one, axis) for one in node.inputs if not broadcastable(one)[axis]), None)
        if isinstance(op, classes.SpecifyShape) and len(node.inputs) == 2 and ndim(node.inputs[1]) == 1:
            given = self.elements(node.inputs[1])
            if given is not None and not given[axis].factors:
                return given[axis]
        if isinstance(op, self._same):
            return (first, axis) if ndim(first) == ndim(output) else None
        if isinstance(op, classes.DimShuffle):
            return first, op.new_order[axis]
        if isinstance(op, classes.Join):
            return self._before_join(node, axis)
        if isinstance(op, classes.MakeVector):
            return Product(len(node.inputs))
        if isinstance(op, classes.Dot):
            return (first, 0) if axis == 0 and ndim(first) == 2 else (node.inputs[1], 1)
        if isinstance(op, classes.Reshape):
            found = self._element(node.inputs[1], axis)
            return self._left_over(node) if found is None or found.number < 0 else found
        if isinstance(op, classes.ARange):
            start, stop, step = map(self.length, node.inputs)
            return stop.over(step) if start == Product(0) and step.number > 0 else None
        if isinstance(op, (classes.Alloc, classes.AllocEmpty)):
            return self.length(node.inputs[len(node.inputs) - ndim(output) + axis])
        if isinstance(op, classes.CAReduce) and op.axis is not None:
            axes = [op.axis] if isinstance(op.axis, int) else [one % ndim(first) for one in op.axis]
            return first, [one for one in range(ndim(first)) if one not in axes][axis]
        if isinstance(op, ShareOp):
            return (first, axis) if axis != op.axis or isinstance(op, PutShareOp) else None
        if isinstance(op, classes.Scan):
            return self._before_scan(node, axis, output)
        if isinstance(op, classes.Subtensor):
            entries = classes.get_idx_list(node.inputs, op.idx_list)
            kept = [i for i in range(ndim(first)) if i >= len(entries) or isinstance(entries[i], slice)]
            if kept[axis] >= len(entries):
                return first, kept[axis]
            cut = how_many_less(self, entries[kept[axis]])
            return None if cut is None else less(self.axis_length(first, kept[axis]), cut)
        if isinstance(op, classes.AdvancedSubtensor):
            return self._before_rows_at(node, axis)
        return self._before_of_own(node, axis, output)

    def _left_over(self, node: Any) -> Optional[Product]:
        """Return the length that a reshape with -1 infers, if all other lengths are plain numbers; else None."""
        array, elements = node.inputs[0], self.elements(node.inputs[1])
        size = product(self.axis_length(array, axis) for axis in range(ndim(array)))
        rest = product(one for one in elements if one != Product(-1)) if elements else None
        return None if size is None or rest is None or size.factors or rest.factors else size.over(rest)

    def _before_join(self, node: Any, axis: int) -> Any:
        along, arrays = self.classes.joined(node)
        if along is None or not arrays:
            return None
        if along % ndim(arrays[0]) != axis:
            return arrays[0], axis
        vectors = [self.elements(one) for one in arrays]
        lengths = [
            self.axis_length(one, axis) if known is None else Product(len(known)) for one, known in zip(arrays, vectors)
        ]
        if len({one.factors for one in lengths}) > 1:
            return None
        return Product(sum(one.number for one in lengths), lengths[0].factors)

    def _before_scan(self, node: Any, axis: int, output: Any) -> Any:
        steps, k = self.classes.steps(node.op), node.outputs.index(output)
        first = 1 + steps.n_seqs
        if k < steps.n_buffers:
            return node.inputs[first + k], axis
        is_collected = axis == 0 and k < steps.n_buffers + steps.n_nit_sot
        return self.length(node.inputs[first + steps.n_shared_outs + k]) if is_collected else None

    def _before_rows_at(self, node: Any, axis: int) -> Any:
        """Return the origin of a length if one array of integers indexes the first axis; None for any other index."""
        entries = self.classes.advanced_entries(node, 1)
        if entries is None or len(entries) != 1 or not isinstance(entries[0], int):
            return None
        index = node.inputs[entries[0]]
        if index.dtype == "bool":
            return None
        return (index, axis) if axis < ndim(index) else (node.inputs[0], axis - ndim(index) + 1)

    def value(self, variable: Any) -> Optional[Product]:
        """Return the value of an integer variable, or the common value of an array's elements; None if unknown."""
        classes = self.classes
        while variable.owner is not None and ndim(variable) > 0:
            op, first = variable.owner.op, variable.owner.inputs[0] if variable.owner.inputs else None
            if isinstance(op, (classes.Alloc, classes.DimShuffle, classes.Reshape, *classes.rebroadcasts)) or (
                isinstance(op, classes.Elemwise)
                and isinstance(op.scalar_op, classes.scalar.Cast)
                and self._is_integer(first)
            ):
                variable = first
            elif isinstance(op, classes.Elemwise) and isinstance(op.scalar_op, classes.scalar.Mul):
                return product(self.value(one) for one in variable.owner.inputs)
            else:
                return None
        found = self.constant(variable)
        if found is not None:
            same = found.size and found.dtype.kind in "iubf" and (found == found.flat[0]).all()
            return Product(int(found.flat[0])) if same and found.flat[0] == int(found.flat[0]) else None
        return self.length(variable) if self._is_integer(variable) else None

    def checked(self, variables: Sequence[Any], conditions: Sequence[Any]) -> List[Any]:
        """Return the outputs of a node, with assertions of these conditions."""
        results, tensor = list(variables), self.classes.tensor
        positions = [one for one in conditions if isinstance(one, WithinRows)]
        if positions:
            results = self._indexed_within(results[0].owner, positions)
        for one in conditions:
            if isinstance(one, NoRemainder):
                results = self._reshaped(results[0])
            elif not isinstance(one, WithinRows):
                condition = tensor.eq(*map(self._expression, one))
                results = [self.classes.Assert(_NOT_EQUAL)(result, condition) for result in results]
        for result, variable in zip(results, variables):
            result.name = variable.name
        return results

    def counted(self, lengths: Any, sums: Any, position: int) -> Any:
        """Replace one element of a vector of lengths, or a scalar, with its sum over the ranks."""
        return self.classes.tensor.set_subtensor(lengths[position], sums[position]) if ndim(lengths) else sums

    def _indexed_within(self, node: Any, conditions: Sequence[WithinRows]) -> List[Any]:
        """Return the outputs of a node that asserts that its positions are within the rank's rows."""
        inputs, tensor = list(node.inputs), self.classes.tensor
        for one in conditions:
            at, length = inputs[one.input], inputs[0].shape[one.axis]
            condition = tensor.and_(tensor.ge(at, 0), tensor.lt(at, length)).all()
            inputs[one.input] = self.classes.Assert(_OUTSIDE)(at, condition)
        return list(node.clone_with_new_inputs(inputs).outputs)

    def _reshaped(self, variable: Any) -> List[Any]:
        """Return a reshape that asserts that the new shape uses all elements."""
        array, shape = variable.owner.inputs
        condition = self.classes.tensor.eq(array.shape.prod(), variable.shape.prod())
        checked = self.classes.Assert(_LEFT_OVER)(shape, condition)
        return list(variable.owner.clone_with_new_inputs([array, checked]).outputs)

    def _expression(self, lengths: Product) -> Any:
        tensor = self.classes.tensor
        found = tensor.constant(lengths.number, dtype="int64")
        for symbol, exponent in lengths.factors:
            if isinstance(symbol, ShiftedLength):
                one = tensor.maximum(self._expression(symbol.length) - symbol.number, 0)
            elif isinstance(symbol, Quotient):
                one = self._expression(symbol.length) // self._expression(symbol.divisor)
            else:
                one = symbol[0].shape[symbol[1]] if isinstance(symbol, tuple) else symbol
            found = found * one**exponent
        return found

    def _is_integer(self, variable: Any) -> bool:
        return getattr(variable, "dtype", "") in self.classes.discrete_dtypes


def ndim(variable: Any) -> int:
    """Return the number of dimensions of a variable; 0 if it is not an array."""
    return int(getattr(variable.type, "ndim", 0))


def broadcastable(variable: Any) -> Tuple[bool, ...]:
    """Return which axes have length 1 according to the variable's type; () if it is not an array."""
    return tuple(getattr(variable.type, "broadcastable", ()))


def less(length: Product, number: int) -> Product:
    """Return ``max(length - number, 0)``."""
    if not length.factors:
        return Product(max(length.number - number, 0))
    ((symbol, exponent),) = length.factors if len(length.factors) == 1 else ((None, 0),)
    if isinstance(symbol, ShiftedLength) and length.number == exponent == 1 and number > 0:
        return less(symbol.length, symbol.number + number)
    return Product.of(ShiftedLength(length, number)) if number else length
