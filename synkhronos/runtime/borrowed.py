"""A value that the program has borrowed: it can be written to at any time, without a call that anybody sees.

``get_value(borrow=True)`` lends a variable's array, and ``set_value(value, borrow=True)`` leaves it with the program.
Before each command the master compares it with a copy, as long as the program holds it and nothing has replaced it.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from typing import Any, Optional

import numpy as np

from ..memory.pool import Pool

#: Bytes of arrays that are compared by copies of both: finding their addresses takes longer.
FEW_BYTES = 1 << 14

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Borrowed:
    """An object that the program can write to, and what it was when it was last looked at.

    Parameters
    ----------
    value
        The object. It counts as changed until `remember` is called.

    Attributes
    ----------
    elsewhere : object
        What has the same value in memory of the library's own, to be used where the object itself is not to be moved.
    """

    __slots__ = ("value", "elsewhere", "_copy")

    def __init__(self, value: Any) -> None:
        self.value, self.elsewhere, self._copy = value, None, None

    def remember(self) -> None:
        """Take what the object is now for what the ranks have."""
        self._copy = _copied(self.value)

    def forget(self) -> None:
        """Have the object count as changed."""
        self._copy = None

    @property
    def is_forgotten(self) -> bool:
        """Whether the object counts as changed, whatever it is."""
        return self._copy is None

    def has_changed(self) -> bool:
        """Return whether the object is not what it was."""
        return self._copy is None or not _is_equal(self.value, self._copy)

    def is_held(self, cell: Any, pool: Pool, n_others: int = 0) -> bool:
        """Return whether the program may hold the object, or its memory.

        Parameters
        ----------
        cell : list
            The variable's storage.
        pool : Pool
            The master's memory: an array in there is a view of bytes, and so are views of the array.
        n_others : int
            How many other references the library has.
        """
        if getattr(self.value, "base", None) is not None:
            if not pool.owns(self.value) or self._n_references_to_base() > _BASE_ALONE:
                return True
        return self._n_references() > _ALONE + n_others + (cell[0] is self.value)

    def _n_references(self) -> int:
        return sys.getrefcount(self.value)

    def _n_references_to_base(self) -> int:
        return sys.getrefcount(self.value.base)


#: The references to an object that nobody but this class has, and to the bytes of an array that nobody else has.
_ALONE = Borrowed(object())._n_references()
_BASE_ALONE = Borrowed(np.zeros(8, np.uint8).view(np.float64))._n_references_to_base()


def _copied(value: Any) -> Optional[Any]:
    """Return a copy to compare with: an array, or a pickle; not None, unless the value cannot be pickled."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return np.array(value, order="K", subok=False)
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return b""  # it cannot be compared, nor sent


def _is_equal(value: Any, copy: Any) -> bool:
    if not isinstance(copy, np.ndarray):
        return not copy or bool(_copied(value) == copy)
    if value.shape != copy.shape or value.dtype != copy.dtype:
        return False
    for order in ("C_CONTIGUOUS", "F_CONTIGUOUS") if value.nbytes > FEW_BYTES else ():
        if value.flags[order] and copy.flags[order]:
            return bool(_compare(value.ctypes.data, copy.ctypes.data, value.nbytes) == 0)
    return bool(value.tobytes() == copy.tobytes())
