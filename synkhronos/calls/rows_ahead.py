"""Copying of a rank's rows for its next step while the rank waits for other ranks at barriers of the current step.

::

    rank 0   copy | step 0 ------------------- | reduce | copy  | step 1 ---
    rank 1   copy | step 0 ------ | wait, copy | reduce | step 1 ------

The rank copies in pieces, and checks in between whether it may continue (`Barrier.meanwhile`), so it delays other ranks
by at most one piece. The next step copies the remaining rows. Two buffers per argument alternate from step to step,
whether rows are copied ahead or not, because the current step still uses its own rows.
"""

from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple

import numpy as np

from ..selection import Indices

PIECE_BYTES = 1 << 16  #: Approximate size of a piece, which takes 10 to 20 microseconds; a piece has at least one row.

#: Minimum size of a step's rows to be copied ahead, and maximum size of a row.
MIN_BYTES, MAX_ROW_BYTES = 1 << 17, 1 << 19


def pays_off(arrays: Sequence[np.ndarray[Any, Any]], n_rows: int) -> bool:
    """Return whether to copy ``n_rows`` rows of these arrays ahead."""
    sizes = [array.nbytes // max(1, len(array)) for array in arrays]
    return bool(sizes) and n_rows * sum(sizes) >= MIN_BYTES and max(sizes) <= MAX_ROW_BYTES


class RowsAhead:
    """A rank's rows of one step; ``copies[j]``: the j-th argument's selected rows, array, and buffer for the rows.

    ``turn`` selects the buffers of this step, also those of arguments that are not copied ahead.
    """

    def __init__(
        self, copies: Dict[int, Tuple[Indices, np.ndarray[Any, Any], np.ndarray[Any, Any]]], turn: int
    ) -> None:
        self._copies, self.turn = copies, turn
        self._n_copied = dict.fromkeys(copies, 0)

    def __contains__(self, j: int) -> bool:
        return j in self._copies

    def copy_piece(self) -> bool:
        """Copy the next rows; return whether any remained."""
        for j, (_, _, target) in self._copies.items():
            begin, n_rows = self._n_copied[j], len(target)
            if begin < n_rows:
                end = min(n_rows, begin + max(1, PIECE_BYTES * n_rows // max(1, target.nbytes)))
                self._copy(j, begin, end)
                self._n_copied[j] = end  # last, so that an interrupted copy does not count
                return True
        return False

    def take(self, j: int) -> np.ndarray[Any, Any]:
        """Return the j-th argument's rows, after copying those that remain."""
        target = self._copies[j][2]
        self._copy(j, self._n_copied[j], len(target))
        return target

    def _copy(self, j: int, begin: int, end: int) -> None:
        rows, array, target = self._copies[j]
        if begin < end:
            rows.part(begin, end).take(array, target[begin:end])
