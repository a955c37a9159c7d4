"""Conversion of variables with named axes, as in models of ``pymc.dims``, to and from tensors."""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor import as_tensor
from pytensor.tensor.type import TensorType
from pytensor.xtensor.basic import xtensor_from_tensor
from pytensor.xtensor.type import XTensorType

ARRAY_TYPES = (TensorType, XTensorType)


def axes_of(variable: Variable) -> Tuple[str, ...]:
    """Return the names of a variable's axes; () if the axes are unnamed."""
    return tuple(variable.type.dims) if isinstance(variable.type, XTensorType) else ()


def input_for(variable: Variable, lengths: Mapping[str, int], n_rows: Optional[int] = None) -> Variable:
    """Return a new tensor variable, to use as an input in place of ``variable``.

    ``lengths`` maps named axes to known lengths; ``n_rows`` is the length of the first axis of an array without names.
    """
    if not isinstance(variable.type, XTensorType):
        if n_rows is None:
            return variable.type(variable.name)
        return TensorType(variable.type.dtype, shape=(n_rows, *variable.type.shape[1:]))(variable.name)
    shape = [lengths.get(axis, n) for axis, n in zip(axes_of(variable), variable.type.shape)]
    return TensorType(variable.type.dtype, shape=shape)(variable.name)


def in_place_of(tensor: Variable, variable: Variable) -> Variable:
    """Return a tensor with the axis names of the variable that it replaces."""
    return xtensor_from_tensor(tensor, axes_of(variable)) if isinstance(variable.type, XTensorType) else tensor


def lowered(expression: Variable) -> Variable:
    """Return the expression as a tensor that is computed without operations on named axes."""
    if not any(isinstance(each.type, XTensorType) for each in ancestors([expression])):
        return expression
    return rewrite_graph(as_tensor(expression, allow_xtensor_conversion=True), include=("lower_xtensor",), clone=True)
