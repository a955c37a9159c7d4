"""Rows that each rank has processed since the last exchange: the weights of the next one."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import synkhronos as synk


class RowCount:
    def __init__(self) -> None:
        self.rows: List[float] = [0.0] * synk.size()

    @property
    def weights(self) -> Optional[List[float]]:
        """The ranks' weights; None, for equal weights, if no rows were counted."""
        return self.rows if any(self.rows) else None

    def add(self, function: Any) -> None:
        """Add the rows of the function's last call, if any; ignore calls with a different number of ranks."""
        last = None if function is None else function.last_rows
        if last is not None and len(last) == len(self.rows):
            self.rows = [before + float(more) for before, more in zip(self.rows, last)]

    def clear(self) -> None:
        self.rows = [0.0] * len(self.rows)

    def restore(self, rows: Sequence[float]) -> None:
        """Set the rows from a checkpoint; clear them if the number of ranks is different."""
        self.rows = list(rows) if len(rows) == len(self.rows) else [0.0] * len(self.rows)
