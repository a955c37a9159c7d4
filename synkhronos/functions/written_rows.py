"""The number of rows that a program has written, as `function` and `fork` are given it."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..program.program import PROGRAM
from ..sharding import Shard
from .variants import Written


class WrittenRows(NamedTuple):
    """A number of rows.

    Attributes
    ----------
    rows : int
    is_own : bool
        Whether the function says so itself, and not `fork`: then it is held to it, whether or not it is written there.
    """

    rows: int
    is_own: bool

    @classmethod
    def of(cls, rows: Any) -> Optional[WrittenRows]:
        """Return the number for a function that is given this argument; None if none is written."""
        if rows is None:
            return None if PROGRAM.rows is None else cls(PROGRAM.rows, False)
        if isinstance(rows, (bool, np.bool_)) or not isinstance(rows, (int, np.integer)):
            raise ArgumentTypeError("rows", "an int", f"{rows!r} of type {type(rows).__name__}")
        if rows < 1:
            raise ArgumentValueError("rows", "at least 1", str(rows))
        return cls(int(rows), True)

    def read(self, engine: Any, snapshot: Any, shards: Mapping[Any, Shard]) -> Tuple[Any, Optional[Written]]:
        """Return the function's graph for any number of rows, and where this one was written; None if nowhere."""
        after, where = engine.with_rows(snapshot, shards, self.rows)
        return after, Written(self.rows, where) if where or self.is_own else None
