"""The weights of an average: what may be one, who counts, and how they are scaled so that no sum overflows."""

from __future__ import annotations

import math
import numbers
from functools import lru_cache
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from .errstate import silent


def checked_weights(weights: Sequence[Any]) -> NDArray[np.float64]:
    """Return weights as float64, where all are real numbers, finite and 0 or more.

    Raises
    ------
    TypeError, ValueError
        Where one is not; it is named.
    """
    if all([type(weight) is int or type(weight) is float for weight in weights]):
        try:
            checked = np.array(weights, np.float64)
        except OverflowError:
            pass
        else:
            if 0 <= checked.min(initial=0.0) and checked.max(initial=0.0) < math.inf:  # neither where one is nan
                return checked
    checked = np.empty(len(weights))
    for position, weight in enumerate(weights):
        if isinstance(weight, np.ndarray) and weight.ndim == 0:
            weight = weight[()]
        if not isinstance(weight, numbers.Real):
            raise TypeError(
                f"weights must be real numbers, got {weight!r} of type {type(weight).__name__} at position {position}"
            )
        try:
            number = float(weight)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"weights must be finite and 0 or more, got {weight!r} at position {position}")
        checked[position] = number
    return checked


def scaled_weights(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply weights by the power of 2 that brings their sum into [0.5, 1); ones if all are 0.

    This is exact (whole numbers of rows give the average that dividing by
    their sum gives), and no sum weighted so overflows.
    """
    if not weights.any():
        weights = np.ones_like(weights)
    for size in (np.max, np.sum):  # the largest first: the sum of huge weights would overflow
        weights = np.ldexp(weights, -np.frexp(size(weights))[1])
    return weights


def counting(present: Sequence[bool], weights: Optional[Sequence[float]]) -> Tuple[List[int], Tuple[float, ...]]:
    """Return the ranks that count in an average, and their weights.

    Parameters
    ----------
    present : sequence of bool
        Which ranks have a value.
    weights : sequence of float, optional
        Of all ranks, as `combine_into` takes them.

    Raises
    ------
    ValueError
        If there is not one weight for each rank.

    Examples
    --------
    >>> counting([True, True, False, True], [2.0, 0.0, 1.0, 1.0])
    ([0, 3], (2.0, 1.0))
    """
    if weights is None:
        weights = (1.0,) * len(present)
    elif len(weights) != len(present):
        raise ValueError(f"weights must be one number for each of the {len(present)} ranks, got {len(weights)}")
    there = [rank for rank, is_there in enumerate(present) if is_there]
    ranks = [rank for rank in there if weights[rank]] or there
    return ranks, tuple([float(weights[rank]) for rank in ranks])


@lru_cache(maxsize=256)
def narrowed(weights: Tuple[float, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return scaled weights in that type. None is 0, and none must become 0 in a narrower type: 0 * inf is nan."""
    with silent():
        return np.maximum(scaled_weights(np.array(weights)).astype(dtype), np.nextafter(dtype.type(0), dtype.type(1)))
