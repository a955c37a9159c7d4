"""Lengths of axes in Theano's graphs; see `graph.lengths`."""

from __future__ import annotations

from typing import Any

from theano.sandbox.rng_mrg import mrg_uniform_base
from theano.tensor import raw_random
from theano.tensor.nnet import abstract_conv, nnet
from theano.tensor.signal import pool

from ..graph.lengths import Lengths, ndim
from .classes import CLASSES

_SAME = (nnet.Softmax, nnet.LogSoftmax, nnet.SoftmaxGrad, pool.MaxPoolGrad, pool.AveragePoolGrad, *CLASSES.inc_rows_at)


def _before(node: Any, axis: int, output: Any) -> Any:
    op, first = node.op, node.inputs[0] if node.inputs else None
    if isinstance(op, nnet.CrossentropyCategorical1HotGrad):
        return node.inputs[1], axis
    if isinstance(op, pool.Pool) and axis < ndim(output) - op.ndim:
        return first, axis
    if isinstance(op, abstract_conv.AbstractConv) and axis < 2:
        return (node.inputs[axis], 0)
    if isinstance(op, (mrg_uniform_base, raw_random.RandomFunction)) and output is node.outputs[1]:
        shape = LENGTHS.elements(node.inputs[1])
        return None if shape is None or axis >= len(shape) or shape[axis].number < 0 else shape[axis]
    if isinstance(op, CLASSES.rows_at):
        return (node.inputs[1], 0) if axis == 0 else (first, axis)
    return None


LENGTHS = Lengths(CLASSES, _SAME, _before)
