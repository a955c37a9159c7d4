"""Operations about the share of all rows that a rank has: lengths with the rows of all ranks, and the factor itself.

They need no collective: the call knows how many rows there are. Outside a call a rank has all rows.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np
from theano import tensor
from theano.gof import Apply, Op, Variable

from ... import in_graph


class WholeLength(Op):  # type: ignore[misc]  # Theano has no types
    """Divide a length, or one element of a vector of lengths, by the share of the rows that is the rank's.

    Parameters
    ----------
    position : int
        Of the element.
    """

    __props__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position

    def make_node(self, lengths: Variable) -> Apply:
        return Apply(self, [lengths], [lengths.type()])

    def do_constant_folding(self, node: Apply) -> bool:
        return False

    def infer_shape(self, node: Apply, input_shapes: List[Any]) -> List[Any]:
        return input_shapes

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        lengths = np.array(inputs[0])
        flat = lengths.reshape(-1)
        flat[self.position] = in_graph.whole_length(int(flat[self.position]))
        outputs[0][0] = lengths


class InverseShare(Op):  # type: ignore[misc]
    """How many times as many rows all ranks have as this one: a float64 of 0 dimensions.

    The input is what is computed from these rows: if they are divided inside the function, that comes first.
    """

    __props__ = ()

    def make_node(self, part: Variable) -> Apply:
        return Apply(self, [part], [tensor.dscalar()])

    def do_constant_folding(self, node: Apply) -> bool:
        return False

    def infer_shape(self, node: Apply, input_shapes: List[Any]) -> List[Any]:
        return [()]

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        outputs[0][0] = np.array(in_graph.inverse_share())


def whole_length(lengths: Variable, position: int) -> Variable:
    """Return the lengths with that of all ranks at the position."""
    return WholeLength(position)(lengths)


def as_average(part: Variable) -> Optional[Variable]:
    """Return, of parts whose sum is a value, numbers whose average over ranks, weighted by rows, is that value.

    None of integers, which have no average.
    """
    if part.dtype in tensor.discrete_dtypes:
        return None
    return part * tensor.cast(InverseShare()(part), part.dtype)
