"""Fast reduction of scalars, such as the loss in every step of a training loop.

Python floats replace arrays, and one Python call replaces 15. So a reduction takes 1.4 us instead of 12 us over two
ranks, and 1.9 us instead of 25 us over four ranks. Cases that are not simple (see `combine_numbers`) use arrays.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from .op import Parts, ReduceOp, Weights

_LIMITS = {np.dtype(np.float32): (1e-37, 3e38), np.dtype(np.float64): (1e-290, 1e290)}
"""By dtype: least and greatest magnitude of numbers whose intermediate results neither overflow nor underflow."""

_WEIGHT_LIMITS = (1e-15, 1e15)
"""Range of weights whose sums, and products with numbers in `_LIMITS`, cannot underflow or overflow either."""


def combine_numbers(op: ReduceOp, parts: Parts, weights: Weights) -> Optional[NDArray[Any]]:
    """Return the result of `combining.combine` for 0-d arrays, or None if the case is not simple.

    Simple cases are ``avg`` and ``sum`` of numbers of normal magnitude with weights of normal magnitude. The steps are
    those of `mean`, but float32 numbers are combined in double precision and rounded once.
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
    return np.array(total, dtype) if least < abs(total) < most else None  # not for 0, which might be -0.0


def combine_many(op: ReduceOp, parts: Parts, weights: Weights) -> Optional[Tuple[NDArray[Any], NDArray[np.bool_]]]:
    """Combine parts of shape ``(n,)`` like `combine_numbers`.

    Return the results and a mask of the simple cases (other results are undefined), or None if no case can be simple.
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
