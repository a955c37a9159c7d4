"""Lengths of axes in PyTensor's graphs; see `graph.lengths`."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.pad import Pad
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.special import LogSoftmax, Softmax

from ...sharding import product
from ..graph.lengths import Lengths, broadcastable, less, ndim
from .classes import CLASSES


def _before(node: Any, axis: int, output: Any) -> Any:
    op, k = node.op, node.outputs.index(output)
    if isinstance(op, Blockwise):
        return _before_blockwise(node, axis, k)
    if isinstance(op, CLASSES.rows_at):
        return (node.inputs[1], 0) if axis == 0 else (node.inputs[0], axis)
    if isinstance(op, RandomVariable):
        size = LENGTHS.elements(node.inputs[1])
        return None if size is None or axis >= len(size) else size[axis]
    if isinstance(op, (JoinDims, SplitDims)):
        return _before_regrouped(node, axis)
    added = padding(node)[axis] if isinstance(op, Pad) else None
    if added is not None:
        return less(LENGTHS.axis_length(node.inputs[0], axis), -sum(added))
    if k == 0 and padded_by(node) is not None:
        return node.inputs[0], axis
    if isinstance(op, OpFromGraph):
        return _before_inner(node, axis, k)
    return None


def _before_blockwise(node: Any, axis: int, k: int) -> Any:
    """Return the origin of the length of a `Blockwise` output's axis, in the batch or in the signature."""
    op = node.op
    n = node.outputs[k].type.ndim - len(op.outputs_sig[k])
    for variable, names in zip(node.inputs, op.inputs_sig):
        if axis < n and not broadcastable(variable)[axis]:
            return variable, axis
        if axis >= n and op.outputs_sig[k][axis - n] in names:
            return variable, n + names.index(op.outputs_sig[k][axis - n])
    return None


def _before_regrouped(node: Any, axis: int) -> Any:
    """Return the origin of an axis's length after an operation that joins or splits axes."""
    array, op, n = node.inputs[0], node.op, ndim(node.outputs[0]) - ndim(node.inputs[0]) + 1
    if isinstance(op, JoinDims):
        if axis == op.start_axis:
            return product(LENGTHS.axis_length(array, one) for one in op.axis_range)
        return array, axis if axis < op.start_axis else axis + op.n_axes - 1
    if not op.axis <= axis < op.axis + n:
        return array, axis if axis < op.axis else axis - n + 1
    found = LENGTHS.elements(node.inputs[1])
    return None if found is None or found[axis - op.axis].number < 0 else found[axis - op.axis]


def padding(node: Any) -> List[Optional[Tuple[int, int]]]:
    """Return how many elements a `Pad` adds before and after each axis; None for all axes if the graph computes it."""
    widths, n = LENGTHS.constant(node.inputs[1]), ndim(node.inputs[0])
    return [None] * n if widths is None else [tuple(pair) for pair in np.broadcast_to(widths, (n, 2)).tolist()]


def padded_by(node: Any) -> Any:
    """Return the node of a `Pad` of floats if ``node`` computes its gradients, that of the padded array first."""
    output = node.inputs[-2] if len(node.inputs) > 2 else None
    pad: Any = getattr(output, "owner", None)
    is_pad = pad is not None and isinstance(pad.op, Pad) and isinstance(node.op, OpFromGraph)
    has_gradient = is_pad and pad.inputs[0].dtype in CLASSES.float_dtypes
    return pad if has_gradient and list(pad.inputs) == list(node.inputs[:-2]) else None


def _before_inner(node: Any, axis: int, k: int) -> Any:
    """Return the origin of an inner output's length: a number, or an axis of an input; None for any other origin."""
    inputs, outputs = CLASSES.inner(node.op)
    found = LENGTHS.axis_length(outputs[k], axis)
    if not found.factors:
        return found
    ((symbol, exponent),) = found.factors if len(found.factors) == 1 else ((None, 0),)
    if found.number == exponent == 1 and isinstance(symbol, tuple) and symbol[0] in inputs:
        return node.inputs[inputs.index(symbol[0])], symbol[1]
    return None


LENGTHS = Lengths(CLASSES, (Softmax, LogSoftmax, *CLASSES.inc_rows_at), _before)
