"""The lengths of axes in a graph as products of symbols: enough to see what a reshape does to rows.

A symbol is a variable that is a number, or a variable and one of its axes, followed back through the operations that
keep a length to where it came from.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...sharding import NotNegative, Product, product
from .classes import Classes, Kinds
from .indices import constant_index, how_many_less
from .operations import PutShareOp, ShareOp

_OTHER_SIZE = "positions in rows were computed with another size of a row than that of the array they are used in"
_NEGATIVE = (
    "a position that was computed from that of a row is negative: it would be one in the rows of another rank. Take "
    "elements of the row itself, or list the array in bcast_inputs"
)


class Less(NamedTuple):
    """The symbol of a length less a number, that of a slice; or more, if the number is negative."""

    length: Product
    number: int


class Lengths:
    """What is known of lengths in the graphs of a library.

    Parameters
    ----------
    classes : Classes
    same : sequence of classes
        Operations of this library alone whose outputs have the shape of their first input.
    before : callable, optional
        As `before`, for operations of this library alone.
    """

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
            *classes.rebroadcasts,
        )

    def constant(self, variable: Any) -> Any:
        """Return the value of a constant, also of one that was cast or got new axes; None for what is not one."""
        while variable.owner is not None and isinstance(variable.owner.op, self._numbers):
            variable = variable.owner.inputs[0]
        return np.asarray(variable.data) if isinstance(variable, self.classes.Constant) else None

    def length(self, variable: Any) -> Product:
        """Return what is known of a whole number."""
        classes, scalar = self.classes, self.classes.scalar
        while variable.owner is not None:
            node = variable.owner
            op = node.op
            if isinstance(op, classes.Elemwise) and isinstance(op.scalar_op, (scalar.Cast, scalar.Identity)):
                if not self._is_integer(node.inputs[0]):
                    break
            elif (
                isinstance(op, classes.Elemwise) and isinstance(op.scalar_op, scalar.Mul) and self._is_integer(variable)
            ):
                factors = [self.length(one) for one in node.inputs]
                return product(factors) or Product.of(variable)
            elif (
                isinstance(op, classes.Elemwise) and isinstance(op.scalar_op, scalar.Sub) and self._is_integer(variable)
            ):
                less = self.constant(node.inputs[1])
                return Product.of(variable) if less is None else _less(self.length(node.inputs[0]), int(less))
            elif (
                isinstance(op, classes.Elemwise) and isinstance(op.scalar_op, scalar.Add) and self._is_integer(variable)
            ):
                terms = [self.length(one) for one in node.inputs]
                numbers, others = ([one for one in terms if not one.factors], [one for one in terms if one.factors])
                more = sum(one.number for one in numbers)
                return _less(others[0], -more) if len(others) == 1 and more >= 0 else Product.of(variable)
            elif (
                isinstance(op, classes.CAReduce) and isinstance(op.scalar_op, scalar.Mul) and ndim(node.inputs[0]) == 1
            ):
                factors = self.elements(node.inputs[0]) or [None]  # type: ignore[list-item]
                found = product(factors)
                return Product.of(variable) if found is None else found
            elif isinstance(op, classes.Shape_i):
                return self.axis_length(node.inputs[0], op.i)
            elif isinstance(op, classes.Subtensor) and ndim(node.inputs[0]) == 1:
                index, vector = constant_index(classes, node), self.elements(node.inputs[0])
                if isinstance(index, (int, np.integer)) and vector is not None and -len(vector) <= index < len(vector):
                    return vector[index]
                break
            elif not (isinstance(op, self._numbers) and ndim(node.inputs[0]) == 0):
                break
            variable = node.inputs[0]
        value = self.constant(variable)
        if value is not None and value.ndim == 0 and value.dtype.kind in "iub":
            return Product(int(value))
        return Product.of(variable)

    def elements(self, vector: Any) -> Optional[List[Product]]:
        """Return the elements of a vector that was put together; None if it was not. A length that is free is -1."""
        classes = self.classes
        if ndim(vector) != 1:
            return None
        value = self.constant(vector)
        if value is not None:
            return [Product(int(one)) for one in value.ravel()] if value.dtype.kind in "iub" else None
        node = vector.owner
        if node is None:
            return None
        op, first = node.op, node.inputs[0] if node.inputs else None
        if isinstance(op, classes.MakeVector):
            return [self.length(one) for one in node.inputs]
        if isinstance(op, classes.Join):
            parts = [self.elements(one) for one in classes.joined(node)[1]]
            return None if any(one is None for one in parts) else [one for part in parts for one in part or ()]
        if isinstance(op, classes.Elemwise) and isinstance(op.scalar_op, classes.scalar.Cast):
            return self.elements(first) if self._is_integer(first) else None
        if isinstance(op, (classes.DimShuffle, classes.SpecifyShape, *classes.rebroadcasts)):
            return [self.length(first)] if ndim(first) == 0 else self.elements(first)
        if isinstance(op, classes.Shape):
            return [self.axis_length(first, axis) for axis in range(ndim(first))]
        if isinstance(op, classes.Subtensor) and ndim(first) == 1:
            before, index = self.elements(first), constant_index(classes, node)
            return None if before is None or not isinstance(index, slice) else before[index]
        return None

    def axis_length(self, variable: Any, axis: int) -> Product:
        """Return the length of an axis."""
        while True:
            static = getattr(variable.type, "shape", broadcastable(variable))[axis]
            if static:  # a number, or that it is 1
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
        """Return the variable and the axis with the same length before an operation, or a product; None for neither."""
        classes, op = self.classes, node.op
        first = node.inputs[0] if node.inputs else None
        if isinstance(op, classes.Elemwise):
            return next((one, axis) for one in node.inputs if not broadcastable(one)[axis])
        if isinstance(op, classes.SpecifyShape) and len(node.inputs) == 2 and ndim(node.inputs[1]) == 1:
            found = self.elements(node.inputs[1])
            if found is not None and not found[axis].factors:
                return found[axis]
        if isinstance(op, self._same):
            return (first, axis) if ndim(first) == ndim(output) else None
        if isinstance(op, classes.DimShuffle):
            return first, op.new_order[axis]
        if isinstance(op, classes.Dot):
            return (first, 0) if axis == 0 and ndim(first) == 2 else (node.inputs[1], 1)
        if isinstance(op, classes.Reshape):
            found = self.elements(node.inputs[1])
            return None if found is None or found[axis].number < 0 else found[axis]
        if isinstance(op, (classes.Alloc, classes.AllocEmpty)):
            return self.length(node.inputs[len(node.inputs) - ndim(output) + axis])
        if isinstance(op, classes.ARange):
            start, step = (self.constant(node.inputs[i]) for i in (0, 2))
            is_end = start is not None and start == 0 and step is not None and step == 1
            return self.length(node.inputs[1]) if is_end else None
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
            cut = how_many_less(classes, entries[kept[axis]])
            return None if cut is None else _less(self.axis_length(first, kept[axis]), cut)
        if isinstance(op, classes.AdvancedSubtensor):
            return self._before_rows_at(node, axis)
        return self._before_of_own(node, axis, output)

    def _before_scan(self, node: Any, axis: int, output: Any) -> Any:
        steps, k = self.classes.steps(node.op), node.outputs.index(output)
        first = 1 + steps.n_seqs
        if k < steps.n_buffers:
            return node.inputs[first + k], axis
        is_collected = axis == 0 and k < steps.n_buffers + steps.n_nit_sot
        return self.length(node.inputs[first + steps.n_shared_outs + k]) if is_collected else None

    def _before_rows_at(self, node: Any, axis: int) -> Any:
        """Return what an index of one array of numbers along the first axis takes its lengths from."""
        entries = self.classes.advanced_entries(node, 1)
        if entries is None or len(entries) != 1 or not isinstance(entries[0], int):
            return None
        index = node.inputs[entries[0]]
        if index.dtype == "bool":
            return None
        return (index, axis) if axis < ndim(index) else (node.inputs[0], axis - ndim(index) + 1)

    def value(self, variable: Any) -> Optional[Product]:
        """Return what is known of a whole number, or of an array all of whose elements are the same one."""
        classes = self.classes
        while variable.owner is not None and ndim(variable) > 0:
            op, first = variable.owner.op, variable.owner.inputs[0] if variable.owner.inputs else None
            if isinstance(op, (classes.Alloc, classes.DimShuffle, classes.Reshape, *classes.rebroadcasts)) or (
                isinstance(op, classes.Elemwise)
                and isinstance(op.scalar_op, classes.scalar.Cast)
                and self._is_integer(first)
            ):
                variable = first
            else:
                return None
        found = self.constant(variable)
        if found is not None:
            same = found.size and found.dtype.kind in "iubf" and (found == found.flat[0]).all()
            return Product(int(found.flat[0])) if same and found.flat[0] == int(found.flat[0]) else None
        return self.length(variable) if self._is_integer(variable) else None

    def checked(self, variables: Sequence[Any], conditions: Sequence[Any]) -> List[Any]:
        """Return the outputs of a node; computing them raises an AssertionError if conditions do not hold."""
        results, tensor = list(variables), self.classes.tensor
        for one in conditions:
            if isinstance(one, NotNegative):
                message, condition = _NEGATIVE, tensor.ge(variables[0].owner.inputs[one.input], 0).all()
            else:
                message, condition = _OTHER_SIZE, tensor.eq(*map(self._expression, one))
            results = [self.classes.Assert(message)(result, condition) for result in results]
        for result, variable in zip(results, variables):
            result.name = variable.name
        return results

    def counted(self, lengths: Any, sums: Any, position: int) -> Any:
        """Return a vector of lengths with one that was summed over ranks; or the sum if it is a number."""
        return self.classes.tensor.set_subtensor(lengths[position], sums[position]) if ndim(lengths) else sums

    def _expression(self, lengths: Product) -> Any:
        tensor = self.classes.tensor
        found = tensor.constant(lengths.number, dtype="int64")
        for symbol, exponent in lengths.factors:
            if isinstance(symbol, Less):
                one = tensor.maximum(self._expression(symbol.length) - symbol.number, 0)
            else:
                one = symbol[0].shape[symbol[1]] if isinstance(symbol, tuple) else symbol
            found = found * one**exponent
        return found

    def _is_integer(self, variable: Any) -> bool:
        return getattr(variable, "dtype", "") in self.classes.discrete_dtypes


def ndim(variable: Any) -> int:
    """Return the number of dimensions of a variable, 0 for what is not an array."""
    return int(getattr(variable.type, "ndim", 0))


def broadcastable(variable: Any) -> Tuple[bool, ...]:
    """Return along which axes a variable is known to be of length 1; nothing for what is not an array."""
    return tuple(getattr(variable.type, "broadcastable", ()))


def _less(length: Product, number: int) -> Product:
    if not length.factors:
        return Product(max(length.number - number, 0))
    ((symbol, exponent),) = length.factors if len(length.factors) == 1 else ((None, 0),)
    if isinstance(symbol, Less) and length.number == exponent == 1 and number > 0:
        return _less(symbol.length, symbol.number + number)
    return Product.of(Less(length, number)) if number else length
