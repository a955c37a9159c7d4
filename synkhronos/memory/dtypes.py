"""Use NumPy's own objects for number types, even in arrays in shared memory and in loaded pickles.

A pickled ``np.dtype("float64")`` is loaded as another object, and so is the type of a pickled array. NumPy 2
treats a conversion from such a type to NumPy's own as a view. PyTensor's Python code copies views into another memory
order. Sums are then rounded differently, and values that all ranks compute would differ in their last bits.
"""

from __future__ import annotations

import copyreg
from typing import Any

import numpy as np

_NUMBERS = [np.dtype(code) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"]
_OWN = {each: np.dtype(each.str) for each in _NUMBERS}  # (np.dtype("longlong") equals np.dtype("int64"))


def own(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return NumPy's own object for a number type; return other types, and types with metadata, unchanged."""
    return dtype if dtype.metadata else _OWN.get(dtype, dtype)


def _reduce(dtype: np.dtype[Any]) -> Any:
    return dtype.__reduce__() if dtype.metadata else (np.dtype, (dtype.str,))


for _each in _NUMBERS:
    copyreg.pickle(type(_each), _reduce)
