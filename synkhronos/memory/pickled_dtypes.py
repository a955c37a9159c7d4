"""Pickles of number types that load as NumPy's own objects.

By default, ``np.dtype("float64")`` and the types of arrays load as new objects. If a type is not NumPy's own object,
NumPy 2 treats a conversion to the same type as a view. PyTensor's Python code copies views into another memory order.
Sums are then rounded differently, and the ranks' values would differ in their last bits.
"""

from __future__ import annotations

import copyreg
from typing import Any

import numpy as np


def _reduce(dtype: np.dtype[Any]) -> Any:
    return dtype.__reduce__() if dtype.metadata else (np.dtype, (dtype.str,))


for _code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?":
    copyreg.pickle(type(np.dtype(_code)), _reduce)
