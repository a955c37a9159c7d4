"""Operations of `synkhronos.ops` for PyTensor's graphs."""

from __future__ import annotations

from typing import Any, Sequence

from pytensor import config, tensor
from pytensor.gradient import disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.exceptions import ShapeError
from pytensor.tensor.type import TensorType, discrete_dtypes

from ..graph import operations
from ..graph.operations import Names

NAMES = Names(Apply, tensor, discrete_dtypes, disconnected_type, grad_not_implemented, lambda: str(config.floatX))
Share = operations.ShareOp


class Differentiable(operations.GraphOperation, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES

    def pullback(self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]) -> Any:
        return self.gradients(inputs, cotangents)

    def pushforward(self, inputs: Sequence[Variable], outputs: Sequence[Variable], tangents: Sequence[Variable]) -> Any:
        return self.tangents(inputs, tangents)


class AllReduce(operations.AllReduceOp, Differentiable):
    names = NAMES


class ReduceParts(operations.ReducePartsOp, AllReduce):
    shape_error = ShapeError


class CombineParts(operations.CombinePartsOp, AllReduce):
    pass


class TakePart(operations.TakePartOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES


class CheckShapes(operations.CheckShapesOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES


class TakeShare(operations.TakeShareOp, Differentiable):
    def make_node(self, array: Any) -> Apply:
        array = tensor.as_tensor_variable(array)
        shape = [None if axis == self.axis else length for axis, length in enumerate(array.type.shape)]
        return Apply(self, [array], [TensorType(array.dtype, shape=tuple(shape))()])


class PutShare(operations.PutShareOp, Differentiable):
    take = TakeShare

    def make_node(self, like: Any, rows: Any) -> Apply:
        like, rows = tensor.as_tensor_variable(like), tensor.as_tensor_variable(rows)
        return Apply(self, [like, rows], [TensorType(rows.dtype, shape=like.type.shape)()])


TakeShare.put = PutShare


class WholeLength(operations.WholeLengthOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES


class InverseShare(operations.InverseShareOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES


class Draft(operations.DraftOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES
