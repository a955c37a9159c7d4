"""Literal numbers of rows in a program's graph, declared with the argument ``rows`` of `function` or `fork`."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..program.program import PROGRAM
from ..reductions import MISSING
from ..sharding import Shard
from .variants import Written


class WrittenRows(NamedTuple):
    """A literal number of rows, required in all calls if ``is_own``, otherwise only if the graph contains it."""

    rows: int
    is_own: bool

    @classmethod
    def of(cls, rows: Any) -> Optional[WrittenRows]:
        """Return the number of rows passed to `function`, or else to `fork`; None if neither received one."""
        if isinstance(rows, cls):
            return rows
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
    """Return the graph for any number of rows (see `Engine.with_rows`), and the literal number (`Written`), if any."""
    rows = None if written is None else written.rows
    after, where = engine.with_rows(snapshot, shards, rows, own)
    is_own = written is not None and written.is_own
    return after, Written(rows, where) if where or is_own else None


def own_positions(ops: Sequence[Any], n_updates: int) -> List[int]:
    """Return the positions of values that may depend on a rank's rows: updates, and outputs with op avg or no op."""
    outputs = [i for i, op in enumerate(ops) if op is MISSING or op.name == "avg"]
    return [*outputs, *range(len(ops), len(ops) + n_updates)]
