"""Operations of `synkhronos.ops` for Theano's graphs."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from theano import config, tensor
from theano.gof import Apply, Op, Variable
from theano.gradient import DisconnectedType, grad_not_implemented
from theano.tensor.basic import ShapeError

from ..graph import operations
from ..graph.operations import Names

NAMES = Names(
    Apply, tensor, tensor.discrete_dtypes, DisconnectedType(), grad_not_implemented, lambda: str(config.floatX)
)
Share = operations.ShareOp


class Differentiable(operations.GraphOperation, Op):  # type: ignore[misc]  # Theano has no types
    names = NAMES

    def grad(self, inputs: Sequence[Variable], output_grads: Sequence[Variable]) -> Any:
        return self.gradients(inputs, output_grads)

    def R_op(self, inputs: Sequence[Variable], eval_points: Sequence[Optional[Variable]]) -> Any:
        return self.tangents(inputs, eval_points)


class AllReduce(operations.AllReduceOp, Differentiable):
    _f16_ok = True


class ReduceParts(operations.ReducePartsOp, AllReduce):
    shape_error = ShapeError


class CombineParts(operations.CombinePartsOp, AllReduce):
    pass


class TakePart(operations.TakePartOp, Op):  # type: ignore[misc]
    names = NAMES


class CheckShapes(operations.CheckShapesOp, Op):  # type: ignore[misc]
    names = NAMES


class TakeShare(operations.TakeShareOp, Differentiable):
    def make_node(self, array: Any) -> Apply:
        array = tensor.as_tensor_variable(array)
        return Apply(self, [array], [array.type()])


class PutShare(operations.PutShareOp, Differentiable):
    take = TakeShare

    def make_node(self, like: Any, rows: Any) -> Apply:
        like, rows = tensor.as_tensor_variable(like), tensor.as_tensor_variable(rows)
        return Apply(self, [like, rows], [tensor.TensorType(rows.dtype, like.broadcastable)()])


TakeShare.put = PutShare


class WholeLength(operations.WholeLengthOp, Op):  # type: ignore[misc]
    names = NAMES


class InverseShare(operations.InverseShareOp, Op):  # type: ignore[misc]
    names = NAMES


class Draft(operations.DraftOp, Op):  # type: ignore[misc]
    names = NAMES
