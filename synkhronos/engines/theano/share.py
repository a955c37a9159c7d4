"""The operations of `synkhronos.ops.shard` in Theano's graphs: a rank's rows of a value that all ranks have.

Which rows these are the call knows, at run time. Outside a call on the ranks they are all.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
from theano import tensor
from theano.gof import Apply, Op, Variable
from theano.gradient import DisconnectedType

from ... import in_graph


class Share(Op):  # type: ignore[misc]  # Theano has no types
    """What operations on the rank's rows have in common.

    Parameters
    ----------
    axis : int
        Along which the rows lie.
    """

    __props__ = ("axis",)

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def do_constant_folding(self, node: Apply) -> bool:
        return False

    def rows_of(self, array: Any) -> Tuple[Any, ...]:
        """Return the index of the rank's rows."""
        begin, end = in_graph.share(array.shape[self.axis])
        return (slice(None),) * self.axis + (slice(begin, end),)


class TakeShare(Share):
    """The rank's rows."""

    view_map = {0: [0]}

    def make_node(self, array: Variable) -> Apply:
        array = tensor.as_tensor_variable(array)
        return Apply(self, [array], [array.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        outputs[0][0] = inputs[0][self.rows_of(inputs[0])]

    def grad(self, inputs: Sequence[Variable], output_grads: Sequence[Variable]) -> List[Variable]:
        (gradient,) = output_grads
        if isinstance(gradient.type, DisconnectedType):
            return [gradient]
        return [PutShare(self.axis)(inputs[0], gradient)]

    def R_op(self, inputs: Sequence[Variable], eval_points: Sequence[Optional[Variable]]) -> List[Optional[Variable]]:
        (point,) = eval_points
        return [None if point is None else self(point)]


class PutShare(Share):
    """An array of zeros, in the shape of the first input, with the second as the rank's rows: its part of a sum."""

    def make_node(self, like: Variable, rows: Variable) -> Apply:
        like, rows = tensor.as_tensor_variable(like), tensor.as_tensor_variable(rows)
        return Apply(self, [like, rows], [tensor.TensorType(rows.dtype, like.broadcastable)()])

    def infer_shape(self, node: Apply, input_shapes: List[Any]) -> List[Any]:
        return input_shapes[:1]

    def connection_pattern(self, node: Apply) -> List[List[bool]]:
        return [[False], [True]]

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        like, rows = inputs
        result = np.zeros(like.shape, rows.dtype)
        result[self.rows_of(like)] = rows
        outputs[0][0] = result

    def grad(self, inputs: Sequence[Variable], output_grads: Sequence[Variable]) -> List[Variable]:
        (gradient,) = output_grads
        rows = gradient if isinstance(gradient.type, DisconnectedType) else TakeShare(self.axis)(gradient)
        return [DisconnectedType()(), rows]

    def R_op(self, inputs: Sequence[Variable], eval_points: Sequence[Optional[Variable]]) -> List[Optional[Variable]]:
        return [None if eval_points[1] is None else self(inputs[0], eval_points[1])]


def take_share(variable: Variable, axis: int) -> Variable:
    """Return the rank's rows of a variable."""
    return TakeShare(axis)(variable)
