"""Operations on single elements, and reductions."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from ....sharding import Arithmetic, Axes, Elementwise, Kind, Moved, Reduction, Rule
from ..lengths import Lengths, broadcastable, ndim


def elementwise(lengths: Lengths, node: Any) -> Rule:
    classes, scalar = lengths.classes, lengths.classes.scalar
    op, positions = node.op.scalar_op, range(len(node.inputs))
    linear: List[Sequence[int]] = []
    more: Dict[str, Any] = {}
    is_integer = node.outputs[0].dtype in classes.discrete_dtypes and node.outputs[0].dtype != "bool"
    if is_integer and _is_unsigned(node.outputs[0]) and isinstance(op, (scalar.Sub, scalar.Neg)):
        pass  # a part may be negative where the whole is not, and becomes a huge number
    elif isinstance(op, (scalar.Add, scalar.Sub, scalar.Neg, scalar.Identity)) or _is_linear_cast(lengths, node):
        linear = [positions]
        if isinstance(op, (scalar.Add, scalar.Sub)) and is_integer:
            more["added"] = positions if isinstance(op, scalar.Add) else [0]
        more["negates"] = isinstance(op, scalar.Neg)
        more["moves"] = isinstance(op, scalar.Identity) or is_integer and _casts_in_order(lengths, node)
    elif isinstance(op, scalar.Mul):
        linear = [[i] for i in positions]
        more["factors"] = [lengths.value(one) for one in node.inputs] if is_integer else None
    elif isinstance(op, scalar.TrueDiv):
        linear, more["powers"] = [[0]], {1: -1}
    elif isinstance(op, scalar.Second):
        linear, more["shapes_only"] = [[1]], [0]
    elif isinstance(op, scalar.Switch):
        linear = [[1, 2]]
    elif isinstance(op, scalar.Pow):
        exponent = lengths.constant(node.inputs[1])
        more["powers"] = {} if exponent is None or exponent.size != 1 else {0: exponent.item()}
    elif isinstance(op, (scalar.LT, scalar.GT, scalar.LE, scalar.GE, scalar.EQ, scalar.NEQ)):
        more["degree"] = 0
    elif isinstance(op, (classes.Maximum, classes.Minimum)):
        more["degree"] = 1
    elif type(op) in classes.powers:
        more["powers"] = {0: classes.powers[type(op)]}
    if ndim(node.outputs[0]) <= 1:
        more["arithmetic"] = partial(_arithmetic, lengths, node)
    return Elementwise([broadcastable(one) for one in node.inputs], len(node.outputs), linear, **more)


def _arithmetic(lengths: Lengths, node: Any) -> Arithmetic:
    """Return what an operation does with lengths."""
    values = [lengths.values(one) for one in node.inputs]
    return Arithmetic(_kind(lengths, node), values, lengths.values(node.outputs[0]))


def _kind(lengths: Lengths, node: Any) -> Kind:
    op, after = node.op.scalar_op, node.outputs[0].dtype
    # Small numbers have no room for lengths, nor have the digits of half and single precision.
    if np.dtype(after).itemsize < (4 if np.dtype(after).kind in "iu" else 8) and after != "bool":
        return Kind.OTHER
    if isinstance(op, lengths.classes.scalar.Cast):
        is_whole = node.inputs[0].dtype in lengths.classes.discrete_dtypes
        return Kind.SAME if is_whole or after not in lengths.classes.discrete_dtypes else Kind.WHOLE
    return next((kind for cls, kind in lengths.kinds.items() if isinstance(op, cls)), Kind.OTHER)


def _is_linear_cast(lengths: Lengths, node: Any) -> bool:
    if not isinstance(node.op.scalar_op, lengths.classes.scalar.Cast):
        return False
    before, after = node.inputs[0].dtype, node.outputs[0].dtype
    if _is_unsigned(node.outputs[0]) and not _is_unsigned(node.inputs[0]) and before != "bool":
        return False  # likewise
    discrete = lengths.classes.discrete_dtypes
    return after not in discrete or before in discrete and after != "bool"


def _casts_in_order(lengths: Lengths, node: Any) -> bool:
    """Return whether an operation is a cast that leaves the largest the largest."""
    before, after = node.inputs[0].dtype, node.outputs[0].dtype
    is_cast = isinstance(node.op.scalar_op, lengths.classes.scalar.Cast)
    return is_cast and (before == "int64" and after == "int32" or np.can_cast(before, after))


def _is_unsigned(variable: Any) -> bool:
    return str(variable.dtype).startswith("uint")


def reduction(lengths: Lengths, node: Any) -> Rule:
    (one,) = node.inputs
    classes, scalar = lengths.classes, lengths.classes.scalar
    op: Dict[Any, Optional[str]] = {
        scalar.Add: "sum",
        scalar.Mul: "prod",
        classes.Maximum: "max",
        classes.Minimum: "min",
    }
    if one.dtype == "bool":
        op.update({scalar.AND: "min", scalar.OR: "max"})
    if node.outputs[0].dtype == "bool":
        op.update({scalar.Add: None, scalar.Mul: None})  # whether any, or all, are not 0
    is_linear = one.dtype in classes.discrete_dtypes or node.outputs[0].dtype not in classes.discrete_dtypes
    return Reduction(ndim(one), _axes(node), op.get(type(node.op.scalar_op)), is_linear)


def argmax(lengths: Lengths, node: Any) -> Rule:
    axes = _axes(node)
    left = [axis for axis in range(ndim(node.inputs[0])) if axis not in axes]
    n = len(node.outputs)
    return Axes([range(ndim(node.inputs[0]))], [left] * n, reduce=["max", None] if n == 2 else [None])


def _axes(node: Any) -> Sequence[int]:
    axis = node.op.axis
    return range(ndim(node.inputs[0])) if axis is None else [axis] if isinstance(axis, int) else list(axis)


def moved(lengths: Lengths, node: Any) -> Rule:
    return Moved(ndim(node.inputs[0]), node.op.new_order)


def same(lengths: Lengths, node: Any) -> Rule:
    """What an operation does that gives its input as it is."""
    return Moved(ndim(node.inputs[0]), range(ndim(node.inputs[0])))
