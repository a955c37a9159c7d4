"""Which of Theano's operations are affine, and in which of their inputs."""

from __future__ import annotations

from typing import Any, List, Sequence

from theano import scalar, tensor
from theano.compile.ops import DeepCopyOp, Rebroadcast, SpecifyShape, ViewOp
from theano.ifelse import IfElse
from theano.tensor import basic, blas, opt, subtensor
from theano.tensor.elemwise import DimShuffle, Elemwise, Sum

#: Affine in all inputs together.
_ALL = (
    *(scalar.Add, scalar.Sub, scalar.Neg, scalar.Identity, scalar.Second),
    *(DimShuffle, Sum, Rebroadcast, ViewOp, DeepCopyOp),
    *(basic.ScalarFromTensor, basic.TensorFromScalar, opt.MakeVector),
)
#: Affine in each of the inputs, if the others are fixed.
_EACH = (scalar.Mul, basic.Dot, blas.BatchedDot)
#: Affine in the first inputs together, as many as said here.
_FIRST = {
    scalar.TrueDiv: 1,
    basic.Alloc: 1,
    basic.Reshape: 1,
    basic.Split: 1,
    SpecifyShape: 1,
    subtensor.Subtensor: 1,
    subtensor.AdvancedSubtensor: 1,
    subtensor.AdvancedSubtensor1: 1,
    subtensor.IncSubtensor: 2,
    subtensor.AdvancedIncSubtensor: 2,
    subtensor.AdvancedIncSubtensor1: 2,
}
#: Affine in all inputs but the first.
_REST = (scalar.Switch, basic.Join, IfElse)


def affine_inputs(node: Any) -> List[Sequence[int]]:
    """Return groups of positions: the node is affine in the inputs of each group, if the others are fixed.

    Only of operations that are common in update rules; no groups for all others.
    """
    op, positions = node.op, range(len(node.inputs))
    if isinstance(op, Elemwise):
        op = op.scalar_op
    if isinstance(op, scalar.Cast):
        return [positions] if node.outputs[0].dtype in tensor.float_dtypes else []
    if isinstance(op, _ALL):
        return [positions]
    if isinstance(op, _EACH):
        return [[position] for position in positions]
    if isinstance(op, _REST):
        return [positions[1:]]
    return [positions[:first] for cls, first in _FIRST.items() if isinstance(op, cls)]
