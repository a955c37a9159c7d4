"""One call of a function: what travels, and what every rank does with it."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

import cloudpickle
import numpy as np

from ..command import Command
from ..context import RankContext
from ..reduce_op import ReduceOp
from ..selection import Indices, Rows, Selection


class Argument(NamedTuple):
    """One argument of a call.

    ``kind`` tells which rows of the array a rank takes: "whole" all of them, "selected" its part of the selected ones,
    "batch" its part of an array that holds the selected rows only. "value" is no array and travels pickled.
    """

    kind: str
    value: Any  # the handle of the array, or the pickle
    mutable: bool = False  # the function may destroy it, so a rank needs its own copy


class CallFunction(Command):
    """Call a function on every rank with its rows, and reduce the outputs for the master.

    Parameters
    ----------
    number : int
        The function's, in the ranks' tables.
    name : str
        How messages call it.
    arguments : list of Argument
        In the order of the function's inputs.
    selection : Selection or handle, optional
        The rows of the whole data set that the call is about, before they are divided (a handle: of a long list of
        indices in shared memory).
    bounds : tuple of (begin, end), optional
        Every rank's part of them; None where no input is scattered.
    subset : list of int, optional
        The outputs that are wanted.
    ops : list of ReduceOp
        One per wanted output.
    """

    def __init__(self, number: int, name: str, arguments: List[Argument], selection: Any,
                 bounds: Optional[Tuple[Tuple[int, int], ...]], subset: Optional[List[int]],
                 ops: List[ReduceOp]) -> None:
        self.number, self.name, self.arguments, self.selection = number, name, arguments, selection
        self.bounds, self.subset, self.ops = bounds, subset, ops

    @property
    def title(self) -> str:
        return "call of function %s" % self.name

    def run(self, context: RankContext) -> Optional[List[Any]]:
        engine, compiled = context.functions[self.number]
        if self._has_part(context.rank):
            outputs = engine.call(compiled, self._take_arguments(context), self.subset)
        else:
            outputs = [None] * len(self.ops)
        return self._reduce(context, engine, compiled, outputs)

    def _has_part(self, rank: int) -> bool:
        """Tell whether the rank makes the call: ranks without rows do not, but all do where there are none at all."""
        if self.bounds is None or self.bounds[-1][1] == 0:
            return True
        begin, end = self.bounds[rank]
        return end > begin

    def _take_arguments(self, context: RankContext) -> List[Any]:
        selection = self.selection
        if selection is not None and not isinstance(selection, (Rows, Indices)):
            selection = Indices(context.pools.attach(selection))
        begin, end = self.bounds[context.rank] if self.bounds is not None else (0, 0)
        part: Optional[Selection] = None if selection is None else selection.part(begin, end)
        taken = []
        for argument in self.arguments:
            if argument.kind == "value":
                taken.append(cloudpickle.loads(argument.value))
                continue
            value = array = context.pools.attach(argument.value)
            if argument.kind == "selected" and part is not None:
                value = part.take(array)
            elif argument.kind != "whole":
                value = array[begin:end]
            if argument.mutable and np.may_share_memory(value, array):
                value = value.copy()
            taken.append(value)
        return taken

    def _reduce(self, context: RankContext, engine: Any, compiled: Any, outputs: List[Any]) -> Optional[List[Any]]:
        """Reduce the outputs over the ranks; on the master, return all of them."""
        moving = [i for i, op in enumerate(self.ops) if op.name is not None]
        if moving:
            positions = [i if self.subset is None else self.subset[i] for i in moving]
            weights = None
            if self.bounds is not None and self.bounds[-1][1] > 0:
                weights = [end - begin for begin, end in self.bounds]
            reduced = context.transport.reduce(
                [("function", self.number, position) for position in positions], [outputs[i] for i in moving],
                [self.ops[i] for i in moving], weights,
                lambda i: "%s of function %s" % (engine.outputs(compiled)[positions[i]].label, self.name),
                keep_dtype=False)
            if reduced is not None:
                for i, result in zip(moving, reduced):
                    outputs[i] = result
        return outputs if context.rank == context.root else None


class FreeFunction(Command):
    """Free what a function keeps between calls for its intermediate results."""

    def __init__(self, number: int) -> None:
        self.number = number

    def run(self, context: RankContext) -> None:
        _, compiled = context.functions[self.number]
        compiled.free()
