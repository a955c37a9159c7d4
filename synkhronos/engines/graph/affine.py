"""Affine operations, and the groups of inputs that they depend on affinely."""

from __future__ import annotations

from typing import Any, List, Sequence

from .classes import Classes


class Affine:
    """Finder of groups of inputs that a node depends on affinely, for operations that are common in update rules."""

    def __init__(self, classes: Classes) -> None:
        scalar = classes.scalar
        self.classes = classes
        #: Operations that are affine in all inputs jointly.
        self._all = (
            *(scalar.Add, scalar.Sub, scalar.Neg, scalar.Identity, scalar.Second),
            *(classes.DimShuffle, *classes.rebroadcasts, classes.DeepCopyOp),
            *(classes.ScalarFromTensor, classes.TensorFromScalar, classes.MakeVector),
        )
        #: Operations that are affine in each input, if the other inputs are fixed.
        self._each = (scalar.Mul, classes.Dot, *classes.batched_dots)
        #: Operations that are jointly affine in their leading inputs, and the number of these inputs (1 or 2).
        self._first = {
            **dict.fromkeys((scalar.TrueDiv, classes.Alloc, classes.Reshape, classes.Split, classes.SpecifyShape), 1),
            **dict.fromkeys((classes.Subtensor, classes.AdvancedSubtensor, *classes.rows_at), 1),
            **dict.fromkeys((classes.IncSubtensor, classes.AdvancedIncSubtensor, *classes.inc_rows_at), 2),
        }

    def __call__(self, node: Any) -> List[Sequence[int]]:
        """Return groups of inputs: the node is affine in the inputs of each group if the other inputs are fixed."""
        classes, scalar = self.classes, self.classes.scalar
        op, positions = node.op, range(len(node.inputs))
        if isinstance(op, classes.CAReduce):
            return [positions] if isinstance(op.scalar_op, scalar.Add) else []
        if isinstance(op, classes.Join):
            return [range(len(node.inputs) - len(classes.joined(node)[1]), len(node.inputs))]
        if isinstance(op, classes.Elemwise):
            op = op.scalar_op
        if isinstance(op, scalar.Cast):
            return [positions] if node.outputs[0].dtype in classes.float_dtypes else []
        if isinstance(op, self._all):
            return [positions]
        if isinstance(op, self._each):
            return [[position] for position in positions]
        if isinstance(op, (scalar.Switch, classes.IfElse)):
            return [positions[1:]]
        return [positions[:first] for cls, first in self._first.items() if isinstance(op, cls)]
