"""Placement rules for elementwise operations and reductions."""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from ....sharding import Arithmetic, Axes, AxisReduction, Elementwise, Kind, Moved, PlacementRule
from ..bounds import bounds
from ..lengths import Lengths, broadcastable, ndim


def elementwise(lengths: Lengths, node: Any) -> PlacementRule:
    classes, scalar = lengths.classes, lengths.classes.scalar
    op, positions = node.op.scalar_op, range(len(node.inputs))
    linear: List[Sequence[int]] = []
    more: Dict[str, Any] = {}
    is_integer = node.outputs[0].dtype in classes.discrete_dtypes and node.outputs[0].dtype != "bool"
    if isinstance(op, scalar.Cast) and is_integer and node.inputs[0].dtype not in classes.discrete_dtypes:
        more["late"] = [positions]  # each partial would be truncated separately
    elif isinstance(op, (scalar.Add, scalar.Sub, scalar.Neg, scalar.Identity)) or _is_linear_cast(lengths, node):
        linear = [positions]
        if isinstance(op, (scalar.Add, scalar.Sub)) and is_integer:
            more["added"] = positions if isinstance(op, scalar.Add) else [0]
        more["moves"] = isinstance(op, scalar.Identity) or isinstance(op, scalar.Cast) and _keeps_positions(node)
        more["keeps_order"] = isinstance(op, scalar.Identity) or _keeps_order(lengths, node)
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
    more["reverses"] = _reversed(lengths, node)
    if ndim(node.outputs[0]) <= 1:
        more["arithmetic"] = partial(_arithmetic, lengths, node)
    return Elementwise([broadcastable(one) for one in node.inputs], len(node.outputs), linear, **more)


def _arithmetic(lengths: Lengths, node: Any) -> Arithmetic:
    values = [lengths.values(one) for one in node.inputs]
    return Arithmetic(_kind(lengths, node), values, lengths.values(node.outputs[0]))


def _kind(lengths: Lengths, node: Any) -> Kind:
    op, after = node.op.scalar_op, node.outputs[0].dtype
    # Narrow integer types cannot represent lengths, nor can half and single precision.
    if np.dtype(after).itemsize < (4 if np.dtype(after).kind in "iu" else 8) and after != "bool":
        return Kind.OTHER
    if isinstance(op, lengths.classes.scalar.Cast):
        is_whole = node.inputs[0].dtype in lengths.classes.discrete_dtypes
        return Kind.SAME if is_whole or after not in lengths.classes.discrete_dtypes else Kind.WHOLE
    return next((kind for cls, kind in lengths.kinds.items() if isinstance(op, cls)), Kind.OTHER)


def _reversed(lengths: Lengths, node: Any) -> Optional[int]:
    """Return the position of the input that an operation negates or complements, as in ``255 - x``; else None."""
    scalar, op = lengths.classes.scalar, node.op.scalar_op
    after = np.dtype(node.outputs[0].dtype)
    if isinstance(op, scalar.Invert) or isinstance(op, scalar.Neg) and after.kind != "u":
        return 0
    value = lengths.constant(node.inputs[0]) if isinstance(op, (scalar.Sub, scalar.Mul)) else None
    if isinstance(op, scalar.Mul):  # libraries' intermediate form of negation
        is_negative = value is not None and len(node.inputs) == 2 and value.size and (value == -1).all()
        return 1 if is_negative and after.kind != "u" else None
    if value is None or node.inputs[1].dtype != after:
        return None
    if after.kind in "iu":  # differences from numbers with a zero bit may wrap around
        return 1 if (value == ~np.zeros((), after)).all() else None
    return 1 if after.kind == "f" and np.isfinite(value).all() else None


def _is_linear_cast(lengths: Lengths, node: Any) -> bool:
    return isinstance(node.op.scalar_op, lengths.classes.scalar.Cast) and node.outputs[0].dtype != "bool"


def _keeps_positions(node: Any) -> bool:
    """Return whether a cast preserves positions, as casts from integers to sufficiently wide integers do."""
    before, after = np.dtype(node.inputs[0].dtype), np.dtype(node.outputs[0].dtype)
    return before.kind in "iu" and after.kind in "iu" and (after.itemsize >= 4 or np.can_cast(before, after))


def _keeps_order(lengths: Lengths, node: Any) -> bool:
    """Return whether an operation is a cast that preserves the order of values."""
    before, after = np.dtype(node.inputs[0].dtype), np.dtype(node.outputs[0].dtype)
    if not isinstance(node.op.scalar_op, lengths.classes.scalar.Cast) or "c" in (before.kind, after.kind):
        return False
    if after.kind == "f" or np.can_cast(before, after):
        return True
    if before.kind not in "biu" or after.kind not in "iu":
        return False
    found, info = bounds(lengths, node.inputs[0]), np.iinfo(after)
    return bool(info.min <= found.low and found.high <= info.max)


def reduction(lengths: Lengths, node: Any) -> PlacementRule:
    (one,), (result,) = node.inputs, node.outputs
    classes, scalar = lengths.classes, lengths.classes.scalar
    op: Dict[Any, Optional[str]] = {
        scalar.Add: "sum",
        scalar.Mul: "prod",
        classes.Maximum: "max",
        classes.Minimum: "min",
    }
    if one.dtype == "bool":
        op.update({scalar.AND: "min", scalar.OR: "max"})
        if result.dtype == "bool":  # whether any or all elements are nonzero
            op.update({scalar.Add: "max", scalar.Mul: "min"})
    name = op.get(type(node.op.scalar_op))
    if name in ("sum", "prod") and not _is_cast_by_parts(lengths, node, accumulator(node), name):
        name = None
    rule = AxisReduction(ndim(one), _axes(node), name, is_late=isinstance(node.op.scalar_op, (scalar.Add, scalar.Mul)))
    rule.needs_elements = type(node.op.scalar_op) in (classes.Maximum, classes.Minimum)
    rule.is_rounded = name in ("sum", "prod") and not np.can_cast(accumulator(node), result.dtype)
    return rule


def accumulator(node: Any) -> Any:
    """Return the dtype of a reduction's accumulator, which may differ from the dtype of the result."""
    return np.dtype(getattr(node.op, "acc_dtype", None) or node.outputs[0].dtype)


def _is_cast_by_parts(lengths: Lengths, node: Any, before: Any, name: str) -> bool:
    """Return whether a reduction's final cast can be applied to each partial."""
    after = np.dtype(node.outputs[0].dtype)
    if before == after or before.kind in "fc" and after.kind in "fc":
        return name == "sum" or before.kind == after.kind or after.kind == "c"  # (Re(x y) is not Re(x) Re(y))
    if before.kind not in "iu" or after.kind == "b":
        return False
    return bool(after.kind in "iu" and after.itemsize <= before.itemsize) or not bounds(lengths, node.outputs[0]).wraps


def argmax(lengths: Lengths, node: Any) -> PlacementRule:
    axes = _axes(node)
    left = [axis for axis in range(ndim(node.inputs[0])) if axis not in axes]
    n = len(node.outputs)
    rule = Axes([range(ndim(node.inputs[0]))], [left] * n, reduce=["max", None] if n == 2 else [None])
    rule.needs_elements = True
    return rule


def _axes(node: Any) -> Sequence[int]:
    axis = node.op.axis
    return range(ndim(node.inputs[0])) if axis is None else [axis] if isinstance(axis, int) else list(axis)


def moved(lengths: Lengths, node: Any) -> PlacementRule:
    return Moved(ndim(node.inputs[0]), node.op.new_order)


def same(lengths: Lengths, node: Any) -> PlacementRule:
    """Return the placement rule for an operation that returns its input unchanged."""
    return Moved(ndim(node.inputs[0]), range(ndim(node.inputs[0])))
