"""Incremental reduction of the values of a rank's slices."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from .combining import combine, gather_outputs
from .op import ReduceOp, compute_dtype


class Accumulator:
    """Accumulates the values of one rank's slices one by one. Only ``gather`` needs memory for more than one value.

    Combining the ranks' accumulated values, with their total weights, gives the same result as combining the values of
    all slices directly, up to rounding. The op None allows only one slice.

    >>> mean = Accumulator(ReduceOp("avg"))
    >>> mean.add(np.array(1.0), weight=3)
    >>> mean.add(np.array(5.0), weight=1)
    >>> mean.finish()
    (array(2.), 4)
    """

    def __init__(self, op: ReduceOp, keep_dtype: bool = False) -> None:
        self._op = op
        self._keep_dtype = keep_dtype
        self._collected: List[NDArray[Any]] = []
        self._value: Optional[NDArray[Any]] = None
        self._given: Optional[np.dtype[Any]] = None
        self._dtype: Optional[np.dtype[Any]] = None
        self._weight: Any = 0
        self._count = 0

    def add(self, value: NDArray[Any], weight: Any = 1) -> None:
        """Add a copy of the next slice's value, raising the errors of `combine`; the op None allows only one value."""
        value = np.asarray(value)
        if self._op.name == "gather":
            self._collected.append(value.copy())
        elif self._value is None:
            one = self._op.name is None
            first = value.copy() if one else combine(self._op, [value], [weight], keep_dtype=self._keep_dtype)
            self._given, self._dtype = value.dtype, first.dtype
            self._value = first.astype(compute_dtype(self._op, first.dtype), copy=False)
        else:
            if value.dtype == self._given:
                value = value.astype(self._value.dtype, copy=False)
            # Slices with weight 0 are ignored if any slice has a positive weight; otherwise all are weighted equally.
            weights = (self._weight, weight) if self._weight or weight else (self._count, 1)
            combine(self._op, [self._value, value], weights, out=self._value, keep_dtype=self._keep_dtype)
        self._weight = self._weight + weight
        self._count += 1

    def finish(self) -> Tuple[Optional[NDArray[Any]], Any]:
        """Return the accumulated value, or None if there were no slices, and the sum of the weights."""
        if self._collected:
            return gather_outputs(self._collected), self._weight
        if self._value is None:
            return None, self._weight
        with np.errstate(all="ignore"):
            return self._value.astype(self._dtype, copy=False), self._weight
