"""The lengths of axes in a Theano graph as products of symbols: enough to see what a reshape does to rows.

A symbol is a variable that is a number, or a variable and one of its axes, followed back through the operations that
keep a length to where it came from.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from theano import scalar, tensor
from theano.compile.ops import DeepCopyOp, Rebroadcast, Shape, Shape_i, SpecifyShape, ViewOp
from theano.gof import Constant
from theano.scan_module.scan_op import Scan
from theano.tensor import basic, extra_ops, opt, subtensor
from theano.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from theano.tensor.nnet import abstract_conv, nnet
from theano.tensor.signal import pool
from theano.tensor.sort import ArgSortOp, SortOp

from ...sharding import Product, product
from .indices import constant_index, how_many_less
from .operations import PutShare, Share

#: Operations whose outputs have the shape of their first input.
_SAME = (
    *(Rebroadcast, ViewOp, DeepCopyOp, SpecifyShape, opt.Assert, nnet.Softmax, nnet.LogSoftmax, nnet.SoftmaxGrad),
    *(pool.MaxPoolGrad, pool.AveragePoolGrad, subtensor.IncSubtensor, subtensor.AdvancedIncSubtensor1),
    *(subtensor.AdvancedIncSubtensor, extra_ops.CumOp, SortOp, ArgSortOp),
)
_NUMBERS = (basic.TensorFromScalar, basic.ScalarFromTensor, DimShuffle, Rebroadcast, ViewOp)


def constant(variable: Any) -> Any:
    """Return the value of a constant, also of one that was cast or got new axes; None for what is not one."""
    while variable.owner is not None and isinstance(variable.owner.op, _NUMBERS):
        variable = variable.owner.inputs[0]
    return np.asarray(variable.data) if isinstance(variable, Constant) else None


def ndim(variable: Any) -> int:
    return int(getattr(variable.type, "ndim", 0))


def _is_integer(variable: Any) -> bool:
    return getattr(variable, "dtype", "") in tensor.discrete_dtypes


class Less(NamedTuple):
    """The symbol of a length less a number: that of a slice."""

    length: Product
    number: int


def _less(length: Product, number: int) -> Product:
    if length.factors:
        return Product.of(Less(length, number)) if number else length
    return Product(max(length.number - number, 0))


def length(variable: Any) -> Product:
    """Return what is known of a whole number."""
    while variable.owner is not None:
        node = variable.owner
        op = node.op
        if isinstance(op, Elemwise) and isinstance(op.scalar_op, (scalar.Cast, scalar.Identity)):
            if not _is_integer(node.inputs[0]):
                break
        elif isinstance(op, Elemwise) and isinstance(op.scalar_op, scalar.Mul) and _is_integer(variable):
            factors = [length(one) for one in node.inputs]
            return product(factors) or Product.of(variable)
        elif isinstance(op, Elemwise) and isinstance(op.scalar_op, scalar.Sub) and _is_integer(variable):
            less = constant(node.inputs[1])
            return Product.of(variable) if less is None else _less(length(node.inputs[0]), int(less))
        elif isinstance(op, CAReduce) and isinstance(op.scalar_op, scalar.Mul) and ndim(node.inputs[0]) == 1:
            factors = elements(node.inputs[0]) or [None]  # type: ignore[list-item]
            found = product(factors)
            return Product.of(variable) if found is None else found
        elif isinstance(op, Shape_i):
            return axis_length(node.inputs[0], op.i)
        elif isinstance(op, subtensor.Subtensor) and ndim(node.inputs[0]) == 1:
            index, vector = constant_index(node), elements(node.inputs[0])
            if isinstance(index, (int, np.integer)) and vector is not None and -len(vector) <= index < len(vector):
                return vector[index]
            break
        elif not (isinstance(op, _NUMBERS) and ndim(node.inputs[0]) == 0):
            break
        variable = node.inputs[0]
    value = constant(variable)
    if value is not None and value.ndim == 0 and value.dtype.kind in "iub":
        return Product(int(value))
    return Product.of(variable)


def elements(vector: Any) -> Optional[List[Product]]:
    """Return the elements of a vector that was put together; None if it was not. A length that is free is -1."""
    if ndim(vector) != 1:
        return None
    value = constant(vector)
    if value is not None:
        return [Product(int(one)) for one in value.ravel()] if value.dtype.kind in "iub" else None
    node = vector.owner
    if node is None:
        return None
    op = node.op
    if isinstance(op, opt.MakeVector):
        return [length(one) for one in node.inputs]
    if isinstance(op, basic.Join):
        parts = [elements(one) for one in node.inputs[1:]]
        return None if any(one is None for one in parts) else [one for part in parts for one in part or ()]
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, scalar.Cast):
        return elements(node.inputs[0]) if _is_integer(node.inputs[0]) else None
    if isinstance(op, (DimShuffle, Rebroadcast)):
        return [length(node.inputs[0])] if ndim(node.inputs[0]) == 0 else elements(node.inputs[0])
    if isinstance(op, Shape):
        return [axis_length(node.inputs[0], axis) for axis in range(ndim(node.inputs[0]))]
    if isinstance(op, subtensor.Subtensor) and ndim(node.inputs[0]) == 1:
        before, index = elements(node.inputs[0]), constant_index(node)
        return None if before is None or not isinstance(index, slice) else before[index]
    return None


def axis_length(variable: Any, axis: int) -> Product:
    """Return the length of an axis."""
    while True:
        if getattr(variable, "broadcastable", ())[axis : axis + 1] == (True,):
            return Product(1)
        if isinstance(variable, Constant):
            return Product(int(np.shape(variable.data)[axis]))
        node = variable.owner
        before = None if node is None else _before(node, axis, variable)
        if before is None:
            return Product.of((variable, axis))
        if isinstance(before, Product):
            return before
        variable, axis = before


def _before(node: Any, axis: int, output: Any) -> Any:
    """Return the variable and the axis with the same length before an operation, or a product; None for neither."""
    op, first = node.op, node.inputs[0]
    if isinstance(op, Elemwise):
        return next((one, axis) for one in node.inputs if not one.broadcastable[axis])
    if isinstance(op, _SAME):
        return (first, axis) if ndim(first) == ndim(output) else None
    if isinstance(op, nnet.CrossentropyCategorical1HotGrad):
        return node.inputs[1], axis
    if isinstance(op, DimShuffle):
        return first, op.new_order[axis]
    if isinstance(op, basic.Dot):
        return (first, 0) if axis == 0 and ndim(first) == 2 else (node.inputs[1], 1)
    if isinstance(op, basic.Reshape):
        found = elements(node.inputs[1])
        return None if found is None or found[axis].number < 0 else found[axis]
    if isinstance(op, (basic.Alloc, basic.AllocEmpty)):
        return length(node.inputs[len(node.inputs) - ndim(output) + axis])
    if isinstance(op, CAReduce) and op.axis is not None:
        axes = [op.axis] if isinstance(op.axis, int) else [one % ndim(first) for one in op.axis]
        return first, [one for one in range(ndim(first)) if one not in axes][axis]
    if isinstance(op, pool.Pool) and axis < ndim(output) - op.ndim:
        return first, axis
    if isinstance(op, abstract_conv.AbstractConv) and axis < 2:
        return (node.inputs[axis], 0)
    if isinstance(op, subtensor.AdvancedSubtensor1):
        return (node.inputs[1], 0) if axis == 0 else (first, axis)
    if isinstance(op, Share):
        return (first, axis) if axis != op.axis or isinstance(op, PutShare) else None
    if isinstance(op, Scan):
        k, n_buffers = node.outputs.index(output), op.n_mit_mot + op.n_mit_sot + op.n_sit_sot
        if k < n_buffers:
            return node.inputs[1 + op.n_seqs + k], axis
        lengths = 1 + op.n_seqs + n_buffers + op.n_shared_outs - n_buffers
        is_collected = axis == 0 and k < n_buffers + op.n_nit_sot
        return length(node.inputs[lengths + k]) if is_collected else None
    if isinstance(op, subtensor.Subtensor):
        entries = subtensor.get_idx_list(node.inputs, op.idx_list)
        kept = [i for i in range(ndim(first)) if i >= len(entries) or isinstance(entries[i], slice)]
        if kept[axis] >= len(entries):
            return first, kept[axis]
        cut = how_many_less(entries[kept[axis]])
        return None if cut is None else _less(axis_length(first, kept[axis]), cut)
    return None


def value(variable: Any) -> Optional[Product]:
    """Return what is known of a whole number, or of an array all of whose elements are the same one."""
    while variable.owner is not None and ndim(variable) > 0:
        op = variable.owner.op
        if isinstance(op, (basic.Alloc, DimShuffle, Rebroadcast, basic.Reshape)) or (
            isinstance(op, Elemwise) and isinstance(op.scalar_op, scalar.Cast) and _is_integer(variable.owner.inputs[0])
        ):
            variable = variable.owner.inputs[0]
        else:
            return None
    found = constant(variable)
    if found is not None:
        same = found.size and found.dtype.kind in "iubf" and (found == found.flat[0]).all()
        return Product(int(found.flat[0])) if same and found.flat[0] == int(found.flat[0]) else None
    return length(variable) if _is_integer(variable) else None


def checked(variables: Sequence[Any], equal: Sequence[Tuple[Product, Product]]) -> List[Any]:
    """Return variables that raise an AssertionError where they are computed if lengths are not equal."""
    conditions = [tensor.eq(*map(_expression, pair)) for pair in equal]
    message = "positions in rows were computed with another size of a row than that of the array they are used in"
    results = [opt.Assert(message)(variable, *conditions) for variable in variables]
    for result, variable in zip(results, variables):
        result.name = variable.name
    return results


def counted(lengths: Any, sums: Any, position: int) -> Any:
    """Return a vector of lengths with one that was summed over ranks; or the sum if it is a number."""
    return tensor.set_subtensor(lengths[position], sums[position]) if ndim(lengths) else sums


def _expression(lengths: Product) -> Any:
    found = tensor.constant(lengths.number, dtype="int64")
    for symbol, exponent in lengths.factors:
        if isinstance(symbol, Less):
            one = tensor.maximum(_expression(symbol.length) - symbol.number, 0)
        else:
            one = symbol[0].shape[symbol[1]] if isinstance(symbol, tuple) else symbol
        found = found * one**exponent
    return found
