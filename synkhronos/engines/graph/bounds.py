"""Bounds on integers in a graph, to determine whether a partial sum may wrap around.

Integers are added modulo ``2 ** bits``. If a sum wraps, its partials add up to the serial value in their own type, but
not in a wider type or as floats::

    int32:      2 ** 30 + 2 ** 30 + 2 ** 30 + 2 ** 30    ->  0           by modular arithmetic
    float64:    2 ** 30 + 2 ** 30 | 2 ** 30 + 2 ** 30    ->  -2 ** 32    on two ranks, whose partials wrap to -2 ** 31

A count of rows cannot wrap in int64, so its partials may be divided, cast and averaged.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple

import numpy as np

from .lengths import Lengths

#: Assumed upper bound on lengths and element counts.
MAX_ELEMENTS = 2**31 - 1

MAX_DEPTH = 12


class Bounds(NamedTuple):
    """Lower and upper bounds on a variable's values, and on every rank's partial of it."""

    low: int
    high: int
    wraps: bool = False  # a partial may have wrapped, so the sum of partials may differ from the value


def bounds(lengths: Lengths, variable: Any) -> Bounds:
    return _found(lengths, variable, 0, {})


def _found(lengths: Lengths, variable: Any, depth: int, known: Dict[Any, Bounds]) -> Bounds:
    if variable not in known:
        known[variable] = _within_limits(lengths, variable, depth, known)
    return known[variable]


def _within_limits(lengths: Lengths, variable: Any, depth: int, known: Dict[Any, Bounds]) -> Bounds:
    info = _limits(variable.dtype)
    value = lengths.constant(variable)
    if value is not None:
        return Bounds(int(value.min()), int(value.max())) if value.size and value.dtype.kind in "biu" else info
    if variable.owner is None:
        return info
    found = info._replace(wraps=True) if depth == MAX_DEPTH else _of_node(lengths, variable, depth + 1, known)
    if info.low <= found.low and found.high <= info.high:
        return found
    return info._replace(wraps=True)


def _of_node(lengths: Lengths, variable: Any, depth: int, known: Dict[Any, Bounds]) -> Bounds:
    classes, node = lengths.classes, variable.owner
    op: Any = node.op
    info = _limits(variable.dtype)

    def of(i: int) -> Bounds:
        return _found(lengths, node.inputs[i], depth, known) if _is_whole(node.inputs[i]) else info

    if isinstance(op, classes.Elemwise):
        return _of_scalars(lengths, node, of, info)
    if isinstance(op, classes.CAReduce):
        scalar_op, one = op.scalar_op, of(0)
        if isinstance(scalar_op, classes.scalar.Add):
            acc = _limits(getattr(op, "acc_dtype", None) or variable.dtype)
            total = Bounds(min(0, one.low * MAX_ELEMENTS), max(0, one.high * MAX_ELEMENTS))
            is_wider = acc.high > _limits(node.inputs[0].dtype).high
            wraps = total.low < acc.low or total.high > acc.high or one.wraps and not is_wider
            return total._replace(wraps=wraps)
        is_size = lengths.elements(node.inputs[0]) is not None
        return info._replace(wraps=isinstance(scalar_op, classes.scalar.Mul) and not is_size)
    if isinstance(op, (classes.Shape, classes.Shape_i)):
        return Bounds(0, MAX_ELEMENTS)
    if isinstance(op, classes.argmaxes):  # Theano's operation returns the extreme, then its position
        return Bounds(0, MAX_ELEMENTS) if variable is node.outputs[-1] else of(0)._replace(wraps=False)
    if isinstance(op, classes.ARange):
        start, _, step = map(lengths.constant, node.inputs)
        is_upwards = start is not None and start >= 0 and step is not None and step > 0
        return Bounds(0, MAX_ELEMENTS) if is_upwards else info
    if isinstance(op, (classes.Dot, *classes.batched_dots)):
        low, high = _product(of(0), of(1))
        return Bounds(min(0, low * MAX_ELEMENTS), max(0, high * MAX_ELEMENTS), of(0).wraps or of(1).wraps)
    if isinstance(op, (classes.IncSubtensor, classes.AdvancedIncSubtensor, *classes.inc_rows_at)):
        array, value = of(0), of(1)
        if node.op.set_instead_of_inc:
            return _hull([array, value])
        low, high = min(0, value.low * MAX_ELEMENTS), max(0, value.high * MAX_ELEMENTS)
        return Bounds(array.low + low, array.high + high, array.wraps or value.wraps)
    if isinstance(op, (classes.Join, classes.MakeVector)):
        joined = classes.joined(node)[1] if isinstance(op, classes.Join) else node.inputs
        return _hull([of(node.inputs.index(one)) for one in joined])
    moving = (classes.DimShuffle, classes.Reshape, classes.Subtensor, classes.AdvancedSubtensor, classes.SpecifyShape)
    more = (classes.Alloc, classes.DeepCopyOp, classes.TensorFromScalar, classes.ScalarFromTensor, classes.Split)
    if isinstance(op, (*moving, *more, *classes.rebroadcasts, *classes.views, *classes.rows_at, classes.Assert)):
        return of(0)
    return info._replace(wraps=True)


def _of_scalars(lengths: Lengths, node: Any, of: Callable[[int], Bounds], info: Bounds) -> Bounds:
    classes, scalar = lengths.classes, lengths.classes.scalar
    op, n = node.op.scalar_op, len(node.inputs)
    if isinstance(op, (scalar.Cast, scalar.Identity)):
        return of(0)
    if isinstance(op, scalar.Second):
        return of(1)
    if isinstance(op, scalar.Switch):
        return _hull([of(1), of(2)])
    if isinstance(op, (classes.Maximum, classes.Minimum)):
        return _hull([of(0), of(1)])._replace(wraps=False)
    if isinstance(op, scalar.Add):
        terms = [of(i) for i in range(n)]
        wraps = any(one.wraps for one in terms)
        return Bounds(sum(one.low for one in terms), sum(one.high for one in terms), wraps)
    if isinstance(op, scalar.Sub):
        one, other = of(0), of(1)
        return Bounds(one.low - other.high, one.high - other.low, one.wraps or other.wraps)
    if isinstance(op, scalar.Neg):
        one = of(0)
        return Bounds(-one.high, -one.low, one.wraps)
    if isinstance(op, scalar.Mul):
        total = Bounds(1, 1)
        for i in range(n):
            low, high = _product(total, of(i))
            total = Bounds(low, high, total.wraps or of(i).wraps)
        return total
    return info  # not linear, so it is never computed from partials


def _product(one: Bounds, other: Bounds) -> Tuple[int, int]:
    corners = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
    return min(corners), max(corners)


def _hull(several: Sequence[Bounds]) -> Bounds:
    wraps = any(one.wraps for one in several)
    return Bounds(min(one.low for one in several), max(one.high for one in several), wraps)


def _is_whole(variable: Any) -> bool:
    return getattr(variable, "dtype", "") != "" and np.dtype(variable.dtype).kind in "biu"


def _limits(dtype: Any) -> Bounds:
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return Bounds(0, 1)
    if dtype.kind not in "iu":
        return Bounds(-(2**63), 2**64)  # for values cast from floats
    info = np.iinfo(dtype)
    return Bounds(int(info.min), int(info.max))
