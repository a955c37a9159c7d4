"""A shorter way for single numbers, losses above all, which every step of a training loop reduces.

In Python's floats instead of arrays: 1.4 us instead of 12 for two ranks, 1.9 instead of 25 for four, and 1 call of a
Python function instead of 15. It does only simple cases; all others are combined as arrays.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from .op import ReduceOp

_LIMITS = {np.dtype(np.float32): (1e-37, 3e38), np.dtype(np.float64): (1e-290, 1e290)}
"""By the types that Python's floats hold: the sizes between which nothing overflows or underflows on the way."""

_WEIGHT_LIMITS = (1e-15, 1e15)
"""The sizes of weights between which products with such numbers, and sums, do not underflow or overflow either."""


def combine_numbers(
    op: ReduceOp, parts: Sequence[Optional[NDArray[Any]]], weights: Optional[Sequence[Any]]
) -> Optional[NDArray[Any]]:
    """Return what `combining.combine` returns for arrays of 0 dimensions, or None if the case is not simple enough.

    Simple are ``avg`` and ``sum`` of numbers of normal size, all with weights of normal size. The steps are those of
    `mean`; numbers of single precision are combined in double precision, and rounded once.
    """
    if op.name not in ("avg", "sum") or weights is not None and len(weights) != len(parts):
        return None
    dtype: Any = None
    total = share = least = most = 0.0
    low, high = math.inf, -math.inf
    for rank, part in enumerate(parts):
        if part is None:
            continue
        if type(part) is not np.ndarray or part.ndim or part.dtype is not dtype is not None and part.dtype != dtype:
            return None
        if dtype is None:
            dtype = part.dtype
            if dtype not in _LIMITS:
                return None
            least, most = _LIMITS[dtype]
        value, weight = part.item(), 1 if weights is None else weights[rank]
        if value and not least < abs(value) < most:
            return None
        if type(weight) not in (int, float) or not _WEIGHT_LIMITS[0] < weight < _WEIGHT_LIMITS[1]:
            return None
        total += value if op.name == "sum" else value * weight
        share += weight
        low = value if value < low else low
        high = value if value > high else high
    if op.name == "avg":
        total = min(max(total / share, low), high)
    return np.array(total, dtype) if least < abs(total) < most else None  # not 0, which may be -0.0


def combine_many(
    op: ReduceOp, parts: Sequence[Optional[NDArray[Any]]], weights: Optional[Sequence[Any]]
) -> Optional[Tuple[NDArray[Any], NDArray[np.bool_]]]:
    """Do the work of `combine_numbers` for many numbers: for parts of the shape ``(n,)``, by the same steps.

    Returns
    -------
    results : ndarray, shape ``(n,)``
    simple : ndarray of bool, shape ``(n,)``
        Whether each was simple enough; the result is undefined if not. None, instead of both, if none can be.
    """
    present = [(rank, part) for rank, part in enumerate(parts) if part is not None]
    if op.name not in ("avg", "sum") or not present or weights is not None and len(weights) != len(parts):
        return None
    dtype, shape = present[0][1].dtype, present[0][1].shape
    counted = [1 if weights is None else weights[rank] for rank, _ in present]
    if dtype not in _LIMITS or any([part.dtype != dtype or part.shape != shape for _, part in present]):
        return None
    if not all([type(w) in (int, float) and _WEIGHT_LIMITS[0] < w < _WEIGHT_LIMITS[1] for w in counted]):
        return None
    least, most = _LIMITS[dtype]
    total, share, simple = np.zeros(shape), 0.0, np.ones(shape, bool)
    low, high = np.full(shape, math.inf), np.full(shape, -math.inf)
    with np.errstate(all="ignore"):
        for (_, part), weight in zip(present, counted):
            value = part.astype(np.float64)
            size = np.abs(value)
            simple &= (value == 0) | (least < size) & (size < most)
            total += value if op.name == "sum" else value * weight
            share += weight
            low, high = np.minimum(low, value), np.maximum(high, value)
        if op.name == "avg":
            total = np.minimum(np.maximum(total / share, low), high)
        simple &= (least < np.abs(total)) & (np.abs(total) < most)
        return total.astype(dtype), simple
