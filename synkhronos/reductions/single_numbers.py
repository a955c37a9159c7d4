"""A shorter way for single numbers, losses above all, which every step of a training loop reduces.

In Python's floats instead of arrays: 1.4 us instead of 12 for two ranks, 1.9 instead of 25 for four, and 1 call of a
Python function instead of 15. It does only simple cases; all others are combined as arrays.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

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
        if type(part) is not np.ndarray or part.ndim or part.dtype is not dtype is not None:
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
