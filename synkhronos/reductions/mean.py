"""Definition of the weighted mean of the ranks' values.

.. math:: m = \\frac{\\sum_r w_r x_r}{\\sum_r w_r}, \\quad \\min_r x_r \\le m \\le \\max_r x_r

element by element, over the ranks ``r`` that count. `mean_into` implements it for arrays on the host. All other code
that averages (the C kernels, `reductions.device`, `transports.nccl`, `extensions.train_theano`) has the same contract,
tested with one table in tests/reductions/test_mean.py:

- **Ranks that count** have a value and a weight other than 0, so NaN or infinity with weight 0 has no effect. If all
  weights are 0, all ranks with a value count equally.
- **Weights first.** Weights are multiplied by the power of 2 that brings their sum into [0.5, 1). This is exact, and no
  weighted sum overflows. The weighted sum is then divided by the sum of the weights.
- **Accumulated in** float32 for float16, otherwise in the values' own type or a wider type. Real and imaginary parts of
  complex numbers are averaged separately.
- **Clamped** to the range of the averaged values. The average of equal values is therefore that value, bit for bit. The
  average of huge values is not infinite, and the average of tiny values is not 0.
- **NaN** propagates, as in NumPy's ``minimum`` and ``maximum``.

On the host, values are added in rank order. Devices may use another order, which may change the rounding.
"""

from __future__ import annotations

import math
import numbers
from functools import lru_cache
from typing import Any, List, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentTypeError, ArgumentValueError
from .op import AVG, Parts, Weights, compute_dtype

BLOCK_BYTES = 1 << 18
"""Size of the blocks that are combined one at a time, so that intermediate results stay in the core's cache."""


def mean_into(parts: Parts, weights: Weights, out: NDArray[Any]) -> None:
    """Average the ranks' values into ``out``, as defined by this module.

    NumPy must be set to ignore floating-point errors. ``parts`` have shape ``(size,)``, or are None for ranks without a
    value. ``weights`` must come from `checked_weights`. ``out`` must be one of the parts or overlap none.
    """
    ranks, counted = counting([part is not None for part in parts], weights)
    present: List[Any] = [parts[rank] for rank in ranks]
    if len(present) == 1:
        np.copyto(out, present[0])
        return
    if out.dtype.kind == "c":
        # NumPy orders complex numbers by their real part, and a complex inf times a real weight contains a nan.
        present = [part.view(part.real.dtype) for part in present]
        out = out.view(out.real.dtype)
    compute = compute_dtype(AVG, out.dtype)
    is_midpoint = len(counted) == 2 and counted[0] == counted[1]
    scaled = narrowed(counted, compute)
    step = min(out.size, BLOCK_BYTES // compute.itemsize)
    scratch = np.empty((1 if is_midpoint else 4, step), compute)
    for begin in range(0, out.size, step or 1):
        target = out[begin : begin + step]
        values = [part[begin : begin + step].astype(compute, copy=False) for part in present]
        if is_midpoint:
            _midpoint(values[0], values[1], target, scratch[0, : target.size])
        else:
            _weighted_mean(scaled, values, target, scratch[:, : target.size])


def _weighted_mean(
    weights: NDArray[Any], values: Sequence[NDArray[Any]], out: NDArray[Any], scratch: NDArray[Any]
) -> None:
    """Average real values; only the last step writes to ``out``, which may be one of the values."""
    mean, term, low, high = scratch
    np.multiply(values[0], weights[0], out=mean)
    low[...] = high[...] = values[0]
    for value, weight in zip(values[1:], weights[1:]):
        mean += np.multiply(value, weight, out=term)
        np.minimum(low, value, out=low)
        np.maximum(high, value, out=high)
    mean /= weights.sum()
    np.maximum(mean, low, out=mean)
    np.minimum(mean, high, out=out)


def _midpoint(first: NDArray[Any], second: NDArray[Any], out: NDArray[Any], scratch: NDArray[Any]) -> None:
    """Average two values with equal weights, the most frequent case, in a third of the steps and without a clamp.

    Bit-identical to `_weighted_mean`, unless the weighted values underflow.
    """
    try:
        with np.errstate(over="raise"):  # costs nothing; a search for infinities would need another pass
            total = np.add(first, second, out=scratch)
    except FloatingPointError:
        total = np.add(first, second, out=scratch)
        halves = first * 0.5 + second * 0.5
        np.copyto(out, np.where(np.isinf(total), halves, total * 0.5), casting="same_kind")
    else:
        np.multiply(total, 0.5, out=out)


def counting(present: Sequence[bool], weights: Weights) -> Tuple[List[int], Tuple[float, ...]]:
    """Return the ranks that count in an average, and their weights; ``present[r]`` states whether rank r has a value.

    >>> counting([True, True, False, True], [2.0, 0.0, 1.0, 1.0])
    ([0, 3], (2.0, 1.0))
    """
    if weights is None:
        weights = (1.0,) * len(present)
    elif len(weights) != len(present):
        raise ArgumentValueError("weights", f"one number for each rank ({len(present)} in all)", str(len(weights)))
    there = [rank for rank, is_there in enumerate(present) if is_there]
    ranks = [rank for rank in there if weights[rank]] or there
    return ranks, tuple([float(weights[rank]) for rank in ranks])


def scaled_weights(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply weights by the power of 2 that brings their sum into [0.5, 1); return equal weights if all are 0.

    This is exact, so the average is the same as with the original weights. Weighted sums cannot overflow.

    >>> scaled_weights(np.array([3.0, 0.0, 1.0]))
    array([0.375, 0.   , 0.125])
    """
    if not weights.any():
        weights = np.ones_like(weights)
    for size in (np.max, np.sum):  # the maximum first, because the sum of huge weights would overflow
        weights = np.ldexp(weights, -np.frexp(size(weights))[1])
    return weights


@lru_cache(maxsize=256)
def narrowed(weights: Tuple[float, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return scaled weights as ``dtype``, each at least the smallest positive number, because 0 * inf is nan."""
    with np.errstate(all="ignore"):
        return np.maximum(scaled_weights(np.array(weights)).astype(dtype), np.nextafter(dtype.type(0), dtype.type(1)))


def checked_weights(weights: Sequence[Any]) -> NDArray[np.float64]:
    """Return weights as float64; raise TypeError or ValueError if one is not a finite, nonnegative real number."""
    if all([type(weight) is int or type(weight) is float for weight in weights]):
        try:
            checked = np.array(weights, np.float64)
        except OverflowError:
            pass
        else:
            if 0 <= checked.min(initial=0.0) and checked.max(initial=0.0) < math.inf:  # both are false for nan
                return checked
    return np.array([_checked_weight(weight, position) for position, weight in enumerate(weights)], np.float64)


def _checked_weight(weight: Any, position: int) -> float:
    if isinstance(weight, np.ndarray) and weight.ndim == 0:
        weight = weight[()]
    if not isinstance(weight, numbers.Real):
        raise ArgumentTypeError(f"weights[{position}]", "a real number", f"{weight!r} of type {type(weight).__name__}")
    try:
        number = float(weight)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number >= 0):
        raise ArgumentValueError(f"weights[{position}]", "a finite nonnegative number", repr(weight))
    return number
