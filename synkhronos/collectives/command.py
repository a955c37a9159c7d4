"""Base class of collective commands, and a function that copies selected rows into new values."""

from __future__ import annotations

import functools
from typing import Any, List, NamedTuple, Optional, Sequence

import numpy as np

from ..calls.together import apply
from ..kernels.copy import copy_into
from ..runtime.command import Command, CommandStats
from ..runtime.context import RankContext
from ..runtime.registry import Origin
from ..selection import Selection, moved
from ..transports.base import Pending


class Joint(NamedTuple):
    """A collective that an engine may compute for all ranks at once: see `Engine.collective_together`.

    The results become values of the variables ``into``, the ``same`` on all ranks or not; ranks in ``keeps`` have their
    value already. If ``into`` is None, `CollectiveCommand.answer` returns the results.
    """

    name: str
    argument: Any = None
    into: Optional[Sequence[int]] = None
    same: bool = False
    keeps: Sequence[int] = ()


class CollectiveCommand(Command):
    """A command on shared variables; ``numbers`` identify the variables in the registry."""

    is_counted = True

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def joint(self, context: RankContext) -> Optional[Joint]:
        """Return the collective as an engine can compute it; None if the ranks must."""
        return None

    def answer(self, results: Any, context: RankContext) -> Any:
        """Return the command's result on the root from results by variable and rank."""

    def run_together(self, contexts: Sequence[RankContext], root: int) -> Optional[List[Any]]:
        joint, own, answers = self.joint(contexts[root]), contexts[root], [None] * len(contexts)
        if joint is None or not self.numbers:
            return None
        columns = [[context.registry.shareds[number].cell[0] for context in contexts] for number in self.numbers]
        engine = own.registry.shareds[self.numbers[0]].engine
        begun = [context.transport.traffic.begin() for context in contexts]
        try:
            made = engine.collective_together(joint.name, joint.argument, columns)
        except Exception as error:
            if engine.is_out_of_memory(error):
                first = str(error).split("\n")[0]
                raise MemoryError(f"a device ran out of memory in {own.described(self)} ({first})") from error
            raise
        if made is None:
            return None
        results, moved = made
        if joint.into is None:
            answers[root] = self.answer(results, own)
        else:
            apply([functools.partial(_set_all, contexts, joint, results, engine)])
        for context, counts, of_rank in zip(contexts, moved, begun):
            context.transport.traffic.add(*counts)
            context.transport.traffic.end(self.title, of_rank)
        return answers

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


def _set_all(contexts: Sequence[RankContext], joint: Joint, results: Sequence[Sequence[Any]], engine: Any) -> None:
    origin = Origin.COMMON if joint.same else Origin.OWN
    for number, of_ranks in zip(joint.into or (), results):
        for context, value in zip(contexts, of_ranks):
            entry = context.registry.shareds[number]
            stays = context.rank in joint.keeps and not engine.is_on_device(entry.cell[0])
            entry.set(entry.cell[0] if stays else value, origin)


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
    return results
