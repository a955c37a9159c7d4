"""Reductions of device arrays with pygpu, under the rules of `reductions`.

All functions support CUDA and OpenCL. Kernels are compiled on first use, once per context and element type.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import pygpu
from numpy.typing import NDArray
from pygpu._elemwise import GpuElemwise, arg
from pygpu.gpuarray import GpuArray, GpuContext

from ..errors import ArgumentValueError
from . import Accumulator, ReduceOp, compute_dtype, narrowed

#: C expressions that combine two elements; NaN propagates, as in NumPy.
_EXPRESSIONS: Dict[Optional[str], str] = {
    "sum": "{a} + b",
    "prod": "{a} * b",
    "min": "({a} != {a} || {a} < b) ? {a} : b",
    "max": "({a} != {a} || {a} > b) ? {a} : b",
}
#: The weighted mean of two values; the clamp of `mean` follows, and its comparisons with NaN are false.
_MEAN = "({a} * v + b * w) / (v + w)"
_EXPRESSIONS["avg"] = (
    "({m} < {{a}} && {m} < b) ? ({{a}} < b ? {{a}} : b) : ({m} > {{a}} && {m} > b) ? ({{a}} > b ? {{a}} : b) : {m}"
).format(m=f"({_MEAN})")
_kernels: Dict[Tuple[Any, ...], GpuElemwise] = {}


def is_on_device(array: Any) -> bool:
    return isinstance(array, GpuArray)


def upload(array: NDArray[Any], context: GpuContext) -> GpuArray:
    return pygpu.array(array, context=context)


def download(array: GpuArray, into: NDArray[Any]) -> NDArray[Any]:
    """Copy a device array into a host array of the same shape and dtype; return the host array."""
    if array.size:
        contiguous(array).read(into)
    return into


def contiguous(array: GpuArray) -> GpuArray:
    """Return the array if it is in C order, otherwise a copy in C order."""
    return array if array.flags["C_CONTIGUOUS"] else array.copy("C")


def empty(shape: Tuple[int, ...], dtype: Any, context: GpuContext) -> GpuArray:
    """Return an uninitialized array on the device."""
    return pygpu.empty(shape, dtype=dtype, context=context)


def filled(value: Any, shape: Tuple[int, ...], dtype: np.dtype[Any], context: GpuContext) -> GpuArray:
    """Return an array on the device with all elements equal to ``value``."""
    if not shape:  # pygpu cannot index 0-d arrays
        return upload(np.full(shape, value, dtype), context)
    array = empty(shape, dtype, context)
    array[...] = np.asarray(value, dtype)
    return array


def scale(array: GpuArray, weight: float, total: float = 1.0, dtype: Any = None) -> GpuArray:
    """Return ``array * weight / total`` in new memory, as a floating-point ``dtype`` (by default the array's own)."""
    dtype = np.dtype(array.dtype if dtype is None else dtype)
    out = empty(array.shape, dtype, array.context)
    operands = [_written("out", out), _read("a", array), _number("w", weight, dtype), _number("t", total, dtype)]
    _run("out = a * w / t", operands)
    return out


def clamp(array: GpuArray, low: GpuArray, high: GpuArray) -> GpuArray:
    """Clamp an array in place to the range from ``low`` to ``high``, element by element; NaN is kept."""
    operands = [_written("out", array, read=True), _read("l", low), _read("h", high)]
    _run("out = (out < l) ? l : (out > h) ? h : out", operands)
    return array


def nan_mark(array: GpuArray) -> GpuArray:
    """Return an array that is NaN where ``array`` is NaN, and 0 elsewhere."""
    out = empty(array.shape, array.dtype, array.context)
    _run("out = (a != a) ? a : 0", [_written("out", out), _read("a", array)])
    return out


def combine(
    op: ReduceOp, a: GpuArray, b: GpuArray, out: Optional[GpuArray] = None, weights: Sequence[float] = (1, 1)
) -> GpuArray:
    """Return ``op(a, b)`` element by element, in ``out`` (which may be ``a``) or in new memory.

    ``avg`` is weighted and clamped as in `mean`; weights must not be 0.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        got = f"{a.dtype}{a.shape} and {b.dtype}{b.shape}"
        raise ArgumentValueError(f"values of '{op}'", "the same shape and type on all ranks", got)
    if out is None:
        out = empty(a.shape, a.dtype, a.context)
    operands = [_written("out", out, read=out is a)] + [_read("a", a)] * (out is not a) + [_read("b", b)]
    if op.name == "avg":
        first, second = narrowed(tuple(map(float, weights)), np.dtype(_precision(a.dtype)))
        operands += [_number("v", first, a.dtype), _number("w", second, a.dtype)]
    _run("out = " + _EXPRESSIONS[op.name].format(a="out" if out is a else "a"), operands)
    return out


def concatenate(parts: Sequence[GpuArray]) -> GpuArray:
    """Concatenate arrays along axis 0; a 0-d array becomes one entry."""
    parts = [part if part.ndim else part.reshape((1,)) for part in parts]
    there = [part for part in parts if part.size] or list(parts[:1])
    return there[0].copy() if len(there) == 1 else pygpu.concatenate(there, axis=0, context=there[0].context)


def take(array: GpuArray, indices: NDArray[Any]) -> GpuArray:
    """Return rows of the array in new memory; indices must not be negative."""
    return contiguous(array).take1(upload(np.ascontiguousarray(indices, np.int64), array.context))


class DeviceAccumulator:
    """An `Accumulator` whose values may be on the device or on the host.

    Values must not be written to after they have been added. With ``keep_dtype``, sums and products of bools are bools.
    """

    def __init__(self, op: ReduceOp, keep_dtype: bool = False) -> None:
        self._op, self._keep_dtype = op, keep_dtype
        self._host: Optional[Accumulator] = None
        self._collected: List[GpuArray] = []
        self._dtype: Any = None
        self._weight: Any = 0
        self._count = 0
        self._is_own = False  # False: the value is the first slice's array, which may also be another output

    def add(self, value: Any, weight: Any = 1) -> None:
        """Add the value of the next slice."""
        if not is_on_device(value):
            self._host = self._host or Accumulator(self._op, self._keep_dtype)
            self._host.add(value, weight)
            return
        op = self._op
        if value.dtype == np.bool_ and op.name in ("sum", "prod"):
            if self._keep_dtype:
                op = ReduceOp("max" if op.name == "sum" else "min")
            else:
                value = value.astype(np.dtype(np.int_))
        if not self._collected:
            self._dtype = value.dtype
        if op.name == "gather":
            self._collected.append(value)
        elif op.name is None and self._collected:
            raise ArgumentValueError("values for op None", "one value", "several values")
        else:
            value = value.astype(compute_dtype(op, np.dtype(self._dtype)), copy=False)
            if self._collected:
                weights = (self._weight, weight) if self._weight or weight else (self._count, 1)
                before = self._collected[0]
                if op.name != "avg" or all(weights):
                    value = combine(op, before, value, before if self._is_own else None, weights)
                    self._is_own = True
                elif weights[0]:  # 0 * inf is NaN
                    value = before
            self._collected = [value]
        self._weight = self._weight + weight
        self._count += 1

    def finish(self) -> Tuple[Any, Any]:
        """Return the accumulated value, or None if there were no slices, and the sum of the weights."""
        if self._host is not None:
            return self._host.finish()
        if not self._collected:
            return None, self._weight
        if self._op.name == "gather":
            if len({(part.ndim, part.shape[1:]) for part in self._collected}) > 1:
                got = " and ".join(str(part.shape) for part in self._collected)
                raise ArgumentValueError("values of 'gather'", "shapes that differ only in the first axis", got)
            return concatenate(self._collected), self._weight
        return self._collected[0].astype(self._dtype, copy=False), self._weight


def _written(name: str, array: GpuArray, read: bool = False) -> Tuple[Any, GpuArray]:
    return arg(name, array.dtype, read=read, write=True), array


def _read(name: str, array: GpuArray) -> Tuple[Any, GpuArray]:
    return arg(name, array.dtype, read=True), array


def _number(name: str, value: float, dtype: Any) -> Tuple[Any, Any]:
    number = _precision(dtype)
    return arg(name, number, scalar=True), number(value)


def _precision(dtype: Any) -> Any:
    """Return the type of numbers that are combined with elements of a dtype."""
    return np.float64 if dtype == np.float64 else np.float32


def _run(expression: str, operands: Sequence[Tuple[Any, Any]]) -> None:
    arrays = [value for _, value in operands if is_on_device(value)]
    if not arrays[0].size:
        return
    context = arrays[0].context
    key = (context.ptr, expression, tuple((each.name, each.type) for each, _ in operands))
    if key not in _kernels:
        _kernels[key] = GpuElemwise(context, expression, [each for each, _ in operands], convert_f16=True)
    _kernels[key](*[value for _, value in operands])
