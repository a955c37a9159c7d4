"""Rounding to 16 bits: the effect of ``exchange="bfloat16"`` and ``exchange="float16"`` on values.

============  ===================  =========================================================================
format        unit roundoff        range
============  ===================  =========================================================================
bfloat16      2 ** -8              as for float32: its upper 16 bits, rounded to nearest, ties to even
float16       2 ** -11             down to 2 ** -30 times the largest element of an array, which is scaled by
                                   a power of 2 to the upper end of the range of float16
============  ===================  =========================================================================

Infinities and NaN are unchanged.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

import numpy as np
from numpy.typing import NDArray


def rounded(values: NDArray[Any], exchange: str) -> NDArray[Any]:
    """Return floating-point values after encoding in 16 bits and decoding, in a new array of the same dtype.

    >>> rounded(np.array([1.0, 1.001, -300.0]), "bfloat16")
    array([   1.,    1., -300.])
    >>> rounded(np.array([98304.0, 1000.1, np.inf]), "float16")
    array([98304.,  1000.,    inf])
    """
    with np.errstate(all="ignore"):
        return FORMATS[exchange](values).astype(values.dtype)


def _bfloat16(values: NDArray[Any]) -> NDArray[Any]:
    single = np.array(values, np.float32, order="C", ndmin=1)
    bits = single.view(np.uint32)
    up = ((bits >> 16) & 1) + np.uint32(0x7FFF)
    result: NDArray[Any] = ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)
    result[np.isnan(single)] = np.nan
    return result.reshape(values.shape)


def _float16(values: NDArray[Any]) -> NDArray[Any]:
    finite = np.abs(values[np.isfinite(values)])
    exponent = int(np.frexp(finite.max(initial=0))[1])
    wide = values.astype(np.float32, copy=False) if values.dtype == np.float16 else values
    encoded = np.ldexp(wide, 15 - exponent).astype(np.float16)
    result: NDArray[Any] = np.ldexp(encoded.astype(wide.dtype), exponent - 15)
    return result


#: Rounding functions, by the value of ``exchange``.
FORMATS: Dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {"bfloat16": _bfloat16, "float16": _float16}
