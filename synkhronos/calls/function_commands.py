"""Commands about functions that do not call them: lengths of shared variables, release of memory, profiles."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

from ..runtime.command import Command
from ..runtime.context import RankContext
from .plan import CallMemory


class SharedLengths(Command):
    """Return the lengths of shared variables, by rank."""

    title = "lengths of sliceable shared variables"

    def __init__(self, variables: Sequence[Tuple[int, int]]) -> None:
        self.variables = variables  # registry numbers and axes of rows

    def run(self, context: RankContext) -> List[int]:
        return [context.registry.shareds[number].cell[0].shape[axis] for number, axis in self.variables]


class FreeFunction(Command):
    """Free the memory that all graphs of a function keep between calls: intermediate results and row buffers."""

    title = "free"

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> None:
        memory = context.kept(CallMemory)
        for number in self.numbers:
            entry = context.registry.functions[number]
            entry.engine.free(entry.reference())
            memory.drop(memory.row_buffers, number)


class ProfileFunctions(Command):
    """Return the engine's profile of a function, over all its graphs, by rank.

    ``numbers`` identify the graphs that the ranks have. ``compiled`` lists all graphs of the function on the master.
    """

    title = "profile"

    def __init__(self, numbers: List[int], compiled: Sequence[Any]) -> None:
        self.numbers, self._compiled = numbers, compiled

    def __getstate__(self) -> Any:
        return {"numbers": self.numbers}

    def run(self, context: RankContext) -> Any:
        entries = [context.registry.functions[number] for number in self.numbers]
        return entries[0].engine.profile([entry.reference() for entry in entries])

    def finish(self, results: List[Any], context: RankContext) -> List[Any]:
        engine = context.registry.functions[self.numbers[0]].engine
        results[context.root] = engine.profile(self._compiled)
        return results
