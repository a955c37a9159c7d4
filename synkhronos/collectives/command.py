"""What the commands of collectives have in common."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np

from ..kernels.copy import copy_into
from ..runtime.command import Amounts, Command
from ..runtime.context import RankContext
from ..selection import Selection, moved
from ..transports.base import Pending


class CollectiveCommand(Command):
    """A command about shared variables.

    Parameters
    ----------
    numbers : list of int
        The variables, in the registry.
    """

    is_counted = True

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def details(self, context: RankContext) -> str:
        entries = [context.shareds[number] for number in self.numbers[:3]]
        described = []
        for entry in entries:
            value = entry.cell[0]
            described.append(f"{entry.label()} {getattr(value, 'shape', '')} {getattr(value, 'dtype', '')}".strip())
        return ", ".join(described) + (f" and {len(self.numbers) - 3} more" if len(self.numbers) > 3 else "")

    def amounts(self, context: RankContext) -> Amounts:
        values = [context.shareds[number].cell[0] for number in self.numbers]
        nbytes = sum([value.size * value.dtype.itemsize for value in values if hasattr(value, "dtype")])
        return Amounts("collective", self.title, -1, nbytes, len(values))


def taken(
    context: RankContext,
    numbers: Sequence[int],
    values: Sequence[np.ndarray[Any, Any]],
    rows: Sequence[Optional[Selection]],
    axes: Optional[Sequence[int]] = None,
) -> Pending:
    """Copy rows of values into the memory in which variables can take them over.

    Parameters
    ----------
    context : RankContext
    numbers : sequence of int
        The variables.
    values : sequence of arrays
        One per variable, where every rank can read it.
    rows : sequence of (Rows or Indices or None)
        Of each value; None: all of it.
    axes : sequence of int, optional
        Along which the variables have the rows, which the values have first; the first by default.
    """
    results = []
    for number, value, selection, axis in zip(numbers, values, rows, axes or [0] * len(numbers)):
        shape = value.shape if selection is None else (len(selection),) + value.shape[1:]
        in_order = (*shape[1 : axis + 1], shape[0], *shape[axis + 1 :]) if axis else shape
        result = context.transport.allocate(context.shareds[number].key, in_order, value.dtype)
        rows_first = moved(result, axis, 0) if axis else result
        if selection is None:
            copy_into(rows_first, value)
        else:
            selection.take(value, out=rows_first)
        context.transport.traffic.add(result.nbytes * (context.rank != context.root), 0)
        results.append(result)
    return Pending(results)
