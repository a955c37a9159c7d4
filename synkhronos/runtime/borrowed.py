"""Borrowed values, which the program can write to at any time without a call to the library.

``get_value(borrow=True)`` returns a variable's own array, and ``set_value(x, borrow=True)`` stores the array x itself.
Before a function call, the master compares each such value with a copy, until the program drops or replaces the value.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from typing import Any, Optional

import numpy as np

from ..memory.pool import Pool

#: Arrays up to this size are compared by ``tobytes()``, which is faster than computing their addresses for ``memcmp``.
FEW_BYTES = 1 << 14

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Borrowed:
    """A value that the program can write to, and a copy that shows whether it has changed.

    The value counts as changed until `remember` is called. ``elsewhere`` is an equal array in the library's memory,
    because the borrowed object itself must not be moved.
    """

    __slots__ = ("value", "elsewhere", "_copy")

    def __init__(self, value: Any) -> None:
        self.value, self.elsewhere, self._copy = value, None, None

    def remember(self) -> None:
        """Record that the ranks have the current content."""
        value, copy = self.value, self._copy
        if isinstance(copy, np.ndarray) and _layout(value) == _layout(copy):
            copy[...] = value  # because allocating new memory takes longer than copying
        else:
            self._copy = _copied(value)

    def forget(self) -> None:
        """Mark the value as changed."""
        self._copy = None

    @property
    def is_forgotten(self) -> bool:
        """Whether the value is marked as changed, regardless of its content."""
        return self._copy is None

    def has_changed(self) -> bool:
        return self._copy is None or not _is_equal(self.value, self._copy)

    def is_held(self, cell: Any, pool: Pool, n_others: int = 0) -> bool:
        """Return whether the program may still refer to the value or its memory.

        In ``pool``, an array and all its views share one base. ``n_others`` counts the library's other references.
        """
        if getattr(self.value, "base", None) is not None:
            if not pool.owns(self.value) or self._n_references_to_base() > _BASE_ALONE:
                return True
        return self._n_references() > _ALONE + n_others + (cell[0] is self.value)

    def is_new(self) -> bool:
        """Return whether the value is marked as changed and certainly unused by the program; faster than `is_held`.

        A variable's cell and one local variable of the caller must refer to the value.
        """
        return self._copy is None and self.value.base is None and sys.getrefcount(self.value) <= _ALONE + 2

    def _n_references(self) -> int:
        return sys.getrefcount(self.value)

    def _n_references_to_base(self) -> int:
        return sys.getrefcount(self.value.base)


#: Reference counts of an object that only `Borrowed` refers to, and of the base of such an array.
_ALONE = Borrowed(object())._n_references()
_BASE_ALONE = Borrowed(np.zeros(8, np.uint8).view(np.float64))._n_references_to_base()


def _layout(array: Any) -> Any:
    return array.shape, array.strides, array.dtype


def _copied(value: Any) -> Optional[Any]:
    """Return a copy for comparison: an array, a pickle, or ``b""`` if the value cannot be pickled."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return np.array(value, order="K", subok=False)
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return b""  # the value can be neither compared nor sent


def _is_equal(value: Any, copy: Any) -> bool:
    if not isinstance(copy, np.ndarray):
        return not copy or bool(_copied(value) == copy)
    if value.shape != copy.shape or value.dtype != copy.dtype:
        return False
    for order in ("C_CONTIGUOUS", "F_CONTIGUOUS") if value.nbytes > FEW_BYTES else ():
        if value.flags[order] and copy.flags[order]:
            return bool(_compare(value.ctypes.data, copy.ctypes.data, value.nbytes) == 0)
    return bool(value.tobytes() == copy.tobytes())
