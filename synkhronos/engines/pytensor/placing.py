"""Placement rules for PyTensor's operations; to add a rule, extend the table at the end."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Dict, List, Optional, Type

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.op import Op
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor import basic, extra_ops
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.pad import Pad
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.signal.conv import Convolve1d, Convolve2d
from pytensor.tensor.type import TensorType
from pytensor.tensor.type_other import NoneTypeT

from ...sharding import MIXED, ONE, Axes, Coordinates, Drawn, Inner, PlacementRule
from ..graph.lengths import broadcastable, ndim
from ..graph.placing import Make, Placing
from ..graph.rules import indices, nested, shapes
from ..graph.rules.along import along, by_rows, own_axis, solve
from .classes import CLASSES
from .lengths import LENGTHS, padded_by, padding

try:
    from pytensor.tensor.linalg import SolveBase
except ImportError:  # in earlier versions of PyTensor
    from pytensor.tensor.slinalg import SolveBase


def _batch(variable: Any, n_core: int, n_batch: int) -> List[Any]:
    axes = range(n_batch - (ndim(variable) - n_core), n_batch)
    return [ONE if one else ("batch", axis) for axis, one in zip(axes, broadcastable(variable))]


def _blockwise(node: Any) -> PlacementRule:
    """Return the rule for a core operation on each element of a batch, based on the core's rule if it is an `Axes`."""
    op = node.op
    n_batch = ndim(node.outputs[0]) - len(op.outputs_sig[0])
    dummies = [
        TensorType(one.dtype, shape=one.type.shape[ndim(one) - len(names) :])()
        for one, names in zip(node.inputs, op.inputs_sig)
    ]
    core = PLACING.rule_of(op.core_op.make_node(*dummies))
    if type(core) is not Axes:
        of_inputs, of_outputs = ([[MIXED] * len(names) for names in sig] for sig in (op.inputs_sig, op.outputs_sig))
        core = Axes(of_inputs, of_outputs, reduce=[None] * len(node.outputs))
    inputs = [
        _batch(one, len(names), n_batch) + labels for one, names, labels in zip(node.inputs, op.inputs_sig, core.inputs)
    ]
    outputs = [[("batch", axis) for axis in range(n_batch)] + labels for labels in core.outputs]
    return Axes(inputs, outputs, core.linear, core.powers, core.reduce)


def _drawn(node: Any) -> PlacementRule:
    op, (_, size, *parameters), drawn = node.op, node.inputs, node.outputs[1]
    n_batch = ndim(drawn) - op.ndim_supp
    shape = [] if isinstance(size.type, NoneTypeT) else [1]
    labels: List[List[Any]] = [[]] * (2 - len(shape))
    for one, n_core in zip(parameters, op.ndims_params):
        axes = range(n_batch - (ndim(one) - n_core), n_batch)
        labels.append([ONE if flag else axis for axis, flag in zip(axes, broadcastable(one))] + [MIXED] * n_core)
    return Drawn.of_labels(labels, ndim(drawn), shape, is_single=op.ndim_supp == 0)


def _regrouped(node: Any) -> PlacementRule:
    """Return the rule for joining or splitting axes, which is the rule for an equivalent reshape."""
    array, (new,) = node.inputs[0], node.outputs
    lengths = [array.shape[axis] for axis in range(ndim(array))]
    if isinstance(node.op, JoinDims):
        begin, end = node.op.start_axis, node.op.start_axis + node.op.n_axes
        lengths[begin:end] = [math.prod(lengths[begin:end])]
    else:
        begin, n = node.op.axis, ndim(new) - ndim(array) + 1
        lengths[begin : begin + 1] = [node.inputs[1][i] for i in range(n)]
    # The reshape uses the node's inputs, so that rules can trace their lengths.
    return Inner(PLACING.graph_of(node.inputs, [array.reshape(lengths)]), is_here=True)


def _padded(node: Any) -> PlacementRule:
    names = [axis if added == (0, 0) else MIXED for axis, added in enumerate(padding(node))]
    return Axes([names, *[[MIXED] * ndim(one) for one in node.inputs[1:]]], [names], reduce=[None])


def _from_graph(node: Any) -> PlacementRule:
    pad = padded_by(node)
    if pad is None:
        return nested.inner(LENGTHS, PLACING.graph_of, node)
    rule: Any = _padded(pad)  # rows that are independent have independent gradients
    outputs = [rule.inputs[0], *[[MIXED] * ndim(one) for one in node.outputs[1:]]]
    return Axes([*rule.inputs, rule.outputs[0], rule.outputs[0]], outputs, [[len(node.inputs) - 1]])


def _convolved(node: Any) -> PlacementRule:
    """Return the rule for a convolution of two arrays; the third input is its border mode."""
    labels: List[List[Any]] = [[MIXED] * ndim(one) for one in node.inputs]
    return Axes(labels, [[MIXED] * ndim(node.outputs[0])], [[0], [1]], reduce=[None])


def _where(node: Any) -> PlacementRule:
    return Coordinates(ndim(node.inputs[0]), node.inputs[0])


def _advanced_subtensor(node: Any) -> Optional[PlacementRule]:
    return _masked(node, 1) or indices.advanced_subtensor(LENGTHS, node)


def _advanced_inc_subtensor(node: Any) -> Optional[PlacementRule]:
    return _masked(node, 2) or indices.advanced_inc_subtensor(LENGTHS, node)


def _masked(node: Any, first: int) -> Optional[PlacementRule]:
    entries = CLASSES.advanced_entries(node, first) or [None]
    return indices.masked(node, first) if entries[0] == first else None


def _diagonal(node: Any) -> PlacementRule:
    op, n = node.op, ndim(node.inputs[0])
    names = [MIXED if axis in (op.axis1, op.axis2) else axis for axis in range(n)]
    return Axes([names], [[*[name for name in names if name != MIXED], MIXED]], [[0]])


def _sorted_in(node: Any) -> PlacementRule:
    vector, values, *rest = node.inputs
    names = range(ndim(values))
    return Axes([[MIXED], names, *[[MIXED] for _ in rest]], [names], reduce=[None])


_OWN: Dict[Type[Op], Make] = {
    Blockwise: _blockwise,
    JoinDims: _regrouped,
    SplitDims: _regrouped,
    RandomVariable: _drawn,
    Pad: _padded,
    OpFromGraph: _from_graph,
    Convolve1d: _convolved,
    Convolve2d: _convolved,
    CLASSES.Nonzero: _where,
    CLASSES.AdvancedSubtensor: _advanced_subtensor,
    CLASSES.AdvancedIncSubtensor: _advanced_inc_subtensor,
    CheckAndRaise: partial(shapes.checked, LENGTHS),
    basic.ExtractDiag: _diagonal,
    extra_ops.Repeat: along(own_axis, linear=True),
    extra_ops.SearchsortedOp: _sorted_in,
    SolveBase: solve,
}

_OTHERS: Dict[str, Make] = {
    "pytensor_ml.layers.conv.Im2Col": by_rows([0]),
    "pytensor_ml.layers.conv.Col2Im": by_rows([0]),
}

PLACING = Placing(LENGTHS, _OWN, _OTHERS)
RULES = PLACING.rules
