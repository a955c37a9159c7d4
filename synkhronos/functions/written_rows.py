"""The number of rows that a program has written, as `function` and `fork` are given it."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..program.program import PROGRAM
from ..reductions import MISSING
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


def read_rows(
    engine: Any,
    written: Optional[WrittenRows],
    snapshot: Any,
    shards: Mapping[Any, Shard],
    own: Optional[Sequence[int]],
) -> Tuple[Any, Optional[Written]]:
    """Return the function's graph for any number of rows, and where one was written; None if nowhere.

    Parameters
    ----------
    engine : Engine
    written : WrittenRows, optional
        If a number is.
    snapshot, shards, own
        As for `Engine.with_rows`.
    """
    rows = None if written is None else written.rows
    after, where = engine.with_rows(snapshot, shards, rows, own)
    is_own = written is not None and written.is_own
    return after, Written(rows, where) if where or is_own else None


def own_positions(ops: Sequence[Any], n_updates: int) -> List[int]:
    """Return what each rank computes from its own rows: outputs of no other op than the mean, and updates."""
    outputs = [i for i, op in enumerate(ops) if op is MISSING or op.name == "avg"]
    return [*outputs, *range(len(ops), len(ops) + n_updates)]
