"""Operations of `synkhronos.ops` for PyTensor's graphs."""

from __future__ import annotations

from typing import Any, List, Sequence

from pytensor import config, tensor
from pytensor.gradient import DisconnectedType, disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType, discrete_dtypes

from ..graph import operations
from ..graph.operations import Names

NAMES = Names(Apply, tensor, discrete_dtypes, DisconnectedType, grad_not_implemented, lambda: str(config.floatX))
Share = operations.ShareOp


class AllReduce(operations.AllReduceOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> List[Variable]:
        return self.gradients(inputs, cotangents)

    def pushforward(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], tangents: Sequence[Variable]
    ) -> List[Variable]:
        return self.tangents(tangents)


class TakeShare(operations.TakeShareOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES

    def make_node(self, array: Any) -> Apply:
        array = tensor.as_tensor_variable(array)
        shape = [None if axis == self.axis else length for axis, length in enumerate(array.type.shape)]
        return Apply(self, [array], [TensorType(array.dtype, shape=tuple(shape))()])

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> List[Variable]:
        return self.gradients(inputs, cotangents)

    def pushforward(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], tangents: Sequence[Variable]
    ) -> List[Variable]:
        return self.tangents(tangents)


class PutShare(operations.PutShareOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES
    take = TakeShare

    def make_node(self, like: Any, rows: Any) -> Apply:
        like, rows = tensor.as_tensor_variable(like), tensor.as_tensor_variable(rows)
        return Apply(self, [like, rows], [TensorType(rows.dtype, shape=like.type.shape)()])

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> List[Variable]:
        return [disconnected_type(), *self.gradients(inputs, cotangents)[1:]]

    def pushforward(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], tangents: Sequence[Variable]
    ) -> List[Variable]:
        return self.tangents(inputs, tangents)


TakeShare.put = PutShare


class WholeLength(operations.WholeLengthOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES


class InverseShare(operations.InverseShareOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES


class Draft(operations.DraftOp, Op):  # type: ignore[misc]  # no types without PyTensor
    names = NAMES
