"""The arithmetic on blocks of values, one element like another: what `combining` is made of."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from .errstate import Silence, silent
from .op import AVG, ReduceOp
from .weights import counting, narrowed

_UFUNCS: Dict[Optional[str], np.ufunc] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}

_BLOCK_BYTES = 1 << 18
"""Values are combined in blocks of this size, so that intermediate results stay in the core's cache."""


def compute_dtype(op: ReduceOp, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type, in the machine's byte order, that values of type ``dtype`` are accumulated in."""
    wide = dtype == np.float16 and op.name in ("avg", "sum", "prod")
    return np.dtype(np.float32) if wide else dtype.newbyteorder("=")


def fold_into(op: ReduceOp, parts: Sequence[Optional[NDArray[Any]]], out: NDArray[Any], silence: Silence) -> None:
    """Fold values by an op that has a ufunc, from the first rank to the last."""
    present = [part for part in parts if part is not None]
    if len(present) == 1:
        np.copyto(out, present[0])
        return
    compute = compute_dtype(op, out.dtype)
    if compute.kind in "fc":
        silence.begin()
    for block in _blocks(out.size, compute):
        _fold(_UFUNCS[op.name], [part[block] for part in present], compute, out[block])


def average_into(
    parts: Sequence[Optional[NDArray[Any]]], weights: Optional[Sequence[float]], out: NDArray[Any], silence: Silence
) -> None:
    """Average the values of the ranks that count; ``weights`` as `weights.checked_weights` returns them."""
    ranks, shares = counting([part is not None for part in parts], weights)
    present: List[Any] = [parts[rank] for rank in ranks]
    if len(present) == 1:
        np.copyto(out, present[0])
        return
    if out.dtype.kind == "c":
        # NumPy orders complex numbers by their real part, and inf times a real weight has a nan in it.
        real = out.real.dtype
        present = [part.view(real) for part in present]
        out = out.view(real)
    compute = compute_dtype(AVG, out.dtype)
    if len(shares) == 2 and shares[0] == shares[1]:
        _average_two(present[0], present[1], compute, out, silence)
        return
    silence.begin()
    scaled = narrowed(shares, compute)
    for block in _blocks(out.size, compute):
        _weighted_mean(scaled, [part[block].astype(compute, copy=False) for part in present], out[block])


def _average_two(
    first: NDArray[Any], second: NDArray[Any], compute: np.dtype[Any], out: NDArray[Any], silence: Silence
) -> None:
    """Average two values of equal weights, by far the most frequent case: rounding does not leave their range."""
    in_place = compute == out.dtype and not any(np.may_share_memory(out, part) for part in (first, second))
    silence.begin(over="raise")  # costs nothing, and looking for infinities would cost another pass
    for block in _blocks(out.size, compute):
        target = out[block]
        _midpoint(
            first[block].astype(compute, copy=False),
            second[block].astype(compute, copy=False),
            target,
            target if in_place else None,
        )


def _blocks(size: int, dtype: np.dtype[Any]) -> Iterator[slice]:
    step = _BLOCK_BYTES // dtype.itemsize
    return (slice(start, start + step) for start in range(0, size, step))


def _fold(ufunc: np.ufunc, blocks: Sequence[NDArray[Any]], compute: np.dtype[Any], out: NDArray[Any]) -> None:
    """Apply the ufunc from left to right; only the last step writes to ``out``, which may be one of the blocks."""
    result = blocks[0]
    spare = None
    for block in blocks[1:-1]:
        result = spare = ufunc(result, block, out=spare, dtype=compute)
    ufunc(result, blocks[-1], out=out, dtype=compute)


def _weighted_mean(weights: NDArray[Any], blocks: List[NDArray[Any]], out: NDArray[Any]) -> None:
    """Average real blocks; only the last step writes to ``out``, which may be one of the blocks."""
    low, high = blocks[0].copy(), blocks[0].copy()
    mean = blocks[0] * weights[0]
    term = np.empty_like(mean)
    for block, weight in zip(blocks[1:], weights[1:]):
        mean += np.multiply(block, weight, out=term)
        np.minimum(low, block, out=low)
        np.maximum(high, block, out=high)
    mean /= weights.sum()
    # Rounding must not take the mean of equal values off that value, nor the mean of huge ones to infinity.
    np.maximum(mean, low, out=mean)
    np.minimum(mean, high, out=out)


def _midpoint(first: NDArray[Any], second: NDArray[Any], out: NDArray[Any], total: Optional[NDArray[Any]]) -> None:
    """Average two blocks; ``total`` takes their sum. NumPy must be set to raise on overflow."""
    try:
        total = np.add(first, second, out=total)
    except FloatingPointError:
        with silent():
            total = np.add(first, second)
            mean = np.where(np.isinf(total), first * 0.5 + second * 0.5, total * 0.5)
        np.copyto(out, mean, casting="same_kind")
    else:
        np.multiply(total, 0.5, out=out)
