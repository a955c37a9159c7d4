"""Base class of collective commands, and a function that copies selected rows into new values."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np

from ..kernels.copy import copy_into
from ..runtime.command import Command, CommandStats
from ..runtime.context import RankContext
from ..selection import Selection, moved
from ..transports.base import Pending


class CollectiveCommand(Command):
    """A command on shared variables; ``numbers`` identify the variables in the registry."""

    is_counted = True

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def details(self, context: RankContext) -> str:
        entries = [context.registry.shareds[number] for number in self.numbers[:3]]
        described = []
        for entry in entries:
            value = entry.cell[0]
            described.append(f"{entry.label()} {getattr(value, 'shape', '')} {getattr(value, 'dtype', '')}".strip())
        return ", ".join(described) + (f" and {len(self.numbers) - 3} more" if len(self.numbers) > 3 else "")

    def amounts(self, context: RankContext) -> CommandStats:
        values = [context.registry.shareds[number].cell[0] for number in self.numbers]
        nbytes = sum([value.size * value.dtype.itemsize for value in values if hasattr(value, "dtype")])
        return CommandStats("collective", self.title, -1, nbytes, len(values))


def taken(
    context: RankContext,
    numbers: Sequence[int],
    values: Sequence[np.ndarray[Any, Any]],
    rows: Sequence[Optional[Selection]],
    axes: Optional[Sequence[int]] = None,
) -> Pending:
    """Copy ``rows`` of values (None: all) into memory that can become the variables' new values.

    Every rank must be able to read the values; their rows are along axis 0. ``axes``: the variables' axes of rows.
    """
    results = []
    for number, value, selection, axis in zip(numbers, values, rows, axes or [0] * len(numbers)):
        shape = value.shape if selection is None else (len(selection),) + value.shape[1:]
        in_order = (*shape[1 : axis + 1], shape[0], *shape[axis + 1 :]) if axis else shape
        result = context.transport.allocate(context.registry.shareds[number].key, in_order, value.dtype)
        rows_first = moved(result, axis, 0) if axis else result
        if selection is None:
            copy_into(rows_first, value)
        else:
            selection.take(value, out=rows_first)
        context.transport.traffic.add(result.nbytes * (context.rank != context.root), 0)
        results.append(result)
    return Pending(results)
