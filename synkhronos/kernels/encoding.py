"""Encoding of values in 16 bits for ``exchange="bfloat16"`` and ``"float16"``; infinities and NaN are unchanged.

==========  =============  ===================================================================================
format      unit roundoff  content of a message of n values, in items of 16 bits
==========  =============  ===================================================================================
bfloat16    2 ** -8        n float32 values, rounded to their upper halves: to nearest, ties to even
float16     2 ** -11       n values scaled by a power of 2 to the upper end of the range of float16, then the
                           exponent in 2 items; the range is down to 2 ** -30 times the largest value
==========  =============  ===================================================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .copy import kernels

FORMATS = ("bfloat16", "float16")


def rounded(values: NDArray[Any], wire: str) -> NDArray[Any]:
    """Return floating-point values after encoding and decoding, in a new array of the same dtype.

    >>> rounded(np.array([1.0, 1.001, -300.0]), "bfloat16")
    array([   1.,    1., -300.])
    """
    result = np.array(values, np.float32 if values.dtype == np.float16 else values.dtype, order="C").reshape(-1)
    message = np.empty(message_length(result.size, wire), np.uint16)
    encode(result, message, wire)
    decode(message, result, wire)
    with np.errstate(all="ignore"):
        return result.reshape(values.shape).astype(values.dtype, copy=False)


def message_length(size: int, wire: str) -> int:
    """Return the number of 16-bit items in a message of ``size`` values."""
    return size + (2 if wire == "float16" else 0)


def encode(values: NDArray[Any], message: NDArray[np.uint16], wire: str) -> None:
    """Write values (float32 or float64, C-contiguous) into a message of `message_length` items.

    >>> message, arrived = np.empty(3, np.uint16), np.empty(3)
    >>> encode(np.array([1.0, 1.001, -300.0]), message, "bfloat16")
    >>> decode(message, arrived, "bfloat16")
    >>> arrived
    array([   1.,    1., -300.])
    """
    with np.errstate(all="ignore"):
        if wire == "float16":
            _encode_float16(values, message)
        elif kernels is not None:
            kernels.encode_bfloat16(message, values.astype(np.float32, copy=False))
        else:
            _encode_bfloat16(values, message)


def decode(message: NDArray[np.uint16], values: NDArray[Any], wire: str) -> None:
    """Decode a message into a C-contiguous array of float32 or float64."""
    with np.errstate(all="ignore"):
        if wire == "float16":
            exponent = int(message[-2:].view(np.int32)[0])
            np.copyto(values, message[:-2].view(np.float16))
            _scale(values, exponent)
        elif values.dtype != np.float32:
            single = np.empty(values.shape, np.float32)
            decode(message, single, wire)
            np.copyto(values, single)
        elif kernels is not None:
            kernels.decode_bfloat16(values, message)
        else:
            np.left_shift(message, 16, out=values.view(np.uint32), dtype=np.uint32)


def _encode_bfloat16(values: NDArray[Any], message: NDArray[np.uint16]) -> None:
    single = values.astype(np.float32, copy=False)
    bits = single.view(np.uint32)
    rounding = (bits >> 16) & 1
    rounding += np.uint32(0x7FFF)
    rounding += bits
    np.right_shift(rounding, 16, out=message, casting="same_kind")
    missing = np.isnan(single)
    if missing.any():
        message[missing] = 0x7FC0


def _encode_float16(values: NDArray[Any], message: NDArray[np.uint16]) -> None:
    sizes = np.abs(values)
    largest = sizes.max(initial=0)
    if not np.isfinite(largest):
        largest = sizes[np.isfinite(sizes)].max(initial=0)
    exponent = int(np.frexp(largest)[1])
    np.copyto(sizes, values)
    _scale(sizes, 15 - exponent)
    np.copyto(message[:-2].view(np.float16), sizes, casting="same_kind")
    message[-2:] = np.array([exponent - 15], np.int32).view(np.uint16)


def _scale(values: NDArray[Any], exponent: int) -> None:
    """Multiply by a power of 2 in place; in two steps if the power itself might not be a normal number."""
    for step in (exponent // 2, exponent - exponent // 2) if abs(exponent) > 120 else (exponent,):
        values *= values.dtype.type(2.0**step)
