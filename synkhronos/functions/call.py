"""One call of a function: what travels, and what every rank does with it."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from ..command import Command
from ..context import RankContext
from ..reduce_op import ReduceOp
from ..selection import Indices, Rows
from .division import Division
from .slicing import in_slices


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
        The function's (or its variant's), in the ranks' tables.
    name : str
        How messages call it.
    arguments : list of Argument
        In the order of the function's inputs.
    selection : Selection or handle, optional
        The rows of the whole data set that the call is about, before they are divided (a handle: of a long list of
        indices in shared memory).
    division : Division
        Which rows every rank takes; its ``shared_rows`` may be handles, too.
    subset : list of int, optional
        The outputs that are wanted.
    ops : list of ReduceOp
        One per wanted output.
    sliceable : list of int
        The shared variables whose rows are further inputs.
    updates : list of (int, ReduceOp or None)
        Of a call in slices: the shared variables whose new values are further outputs, and how slices are combined.
    """

    def __init__(self, number: int, name: str, arguments: List[Argument], selection: Any, division: Division,
                 subset: Optional[List[int]], ops: List[ReduceOp], sliceable: Sequence[int] = (),
                 updates: Sequence[Tuple[int, Optional[ReduceOp]]] = ()) -> None:
        self.number, self.name, self.arguments, self.selection = number, name, arguments, selection
        self.division, self.subset, self.ops = division, subset, ops
        self.sliceable, self.updates = sliceable, updates

    @property
    def title(self) -> str:
        return "call of function %s" % self.name

    def run(self, context: RankContext) -> Optional[List[Any]]:
        engine, compiled = context.functions[self.number]
        changes: List[Callable[[], object]] = []
        if not self.division.takes_part(context.rank):
            outputs: List[Any] = [None] * len(self.ops)
        elif self.division.num_slices == 1:
            arguments = _Arguments(self, context)
            outputs = self._call(context, engine, compiled, arguments.of_slice(self.division.pieces(context.rank)[0]),
                                 self.subset)
        else:
            outputs, changes = self._in_slices(context, engine, compiled)
        results = self._reduce(context, engine, compiled, outputs)
        if self.updates:  # on all ranks or on none: slices may disagree on one rank alone
            context.commit(*changes)
        return results

    def _call(self, context: RankContext, engine: Any, compiled: Any, arguments: List[Any],
              wanted: Optional[List[int]]) -> List[Any]:
        try:
            return engine.call(compiled, arguments, wanted)
        except Exception as error:
            if not engine.is_out_of_memory(error):
                raise
            raise MemoryError("rank %d has no memory left on its device in function %s (%s): call it with "
                              "num_slices=%d, or with fewer rows" % (
                                  context.rank, self.name, str(error).split("\n")[0],
                                  2 * self.division.num_slices)) from error

    def _in_slices(self, context: RankContext, engine: Any,
                   compiled: Any) -> Tuple[List[Any], List[Callable[[], object]]]:
        """Call the function slice by slice; return the outputs, and what applies the accumulated updates."""
        labels = [output.label for output in engine.outputs(compiled)]
        n_outputs = len(labels) - len(self.updates)
        wanted = list(range(n_outputs)) if self.subset is None else self.subset
        wanted = wanted + list(range(n_outputs, n_outputs + len(self.updates)))
        pieces = self.division.pieces(context.rank)
        arguments = _Arguments(self, context)
        targets = [context.shareds[number][1] for number, _ in self.updates]
        outputs, news = in_slices(
            lambda i: self._call(context, engine, compiled, arguments.of_slice(pieces[i]), wanted),
            [weight for weight, _, _ in pieces], [(labels[i], op) for i, op in zip(wanted, self.ops)],
            [(engine.label(target), op) for target, (_, op) in zip(targets, self.updates)], engine.accumulator)
        for i, (target, new) in enumerate(zip(targets, news)):
            news[i] = engine.hold(target, new)
            if isinstance(news[i], np.ndarray):  # what is on the device is as the graph has it, which is as it must be
                news[i] = engine.conform(target, news[i], "the update of %s" % engine.label(target))
        return outputs, [functools.partial(engine.put, target, new) for target, new in zip(targets, news)]

    def _reduce(self, context: RankContext, engine: Any, compiled: Any, outputs: List[Any]) -> Optional[List[Any]]:
        """Reduce the outputs over the ranks; on the master, return all of them."""
        moving = [i for i, op in enumerate(self.ops) if op.name is not None]
        if moving:
            positions = [i if self.subset is None else self.subset[i] for i in moving]
            reduced = context.transport.reduce(
                [("function", self.number, position) for position in positions], [outputs[i] for i in moving],
                [self.ops[i] for i in moving], self.division.weights,
                lambda i: "%s of function %s" % (engine.outputs(compiled)[positions[i]].label, self.name),
                keep_dtype=False)
            if reduced is not None:
                for i, result in zip(moving, reduced):
                    outputs[i] = result
        if context.rank != context.root:
            return None
        return [engine.present(compiled, i if self.subset is None else self.subset[i], output)
                for i, output in enumerate(outputs)]


class _Arguments:
    """What a rank gives to the function, slice by slice."""

    def __init__(self, call: CallFunction, context: RankContext) -> None:
        self._arguments = [
            (argument, cloudpickle.loads(argument.value) if argument.kind == "value"
             else context.pools.attach(argument.value)) for argument in call.arguments]
        self._selection = _attached(call.selection, context)
        self._shared_rows, self._shareds = None, []
        if call.division.shared_rows is not None:
            self._shared_rows = _attached(call.division.shared_rows[context.rank], context)
            for number in call.sliceable:
                engine, shared = context.shareds[number]
                self._shareds.append((engine, engine.get(shared)))

    def of_slice(self, piece: Tuple[int, Tuple[int, int], Tuple[int, int]]) -> List[Any]:
        """Return the arguments for a slice: what `Division.pieces` says of it."""
        _, (begin, end), shared_part = piece
        part = None if self._selection is None else self._selection.part(begin, end)
        taken = []
        for argument, array in self._arguments:
            value = array
            if argument.kind == "selected" and part is not None:
                value = part.take(array)
            elif argument.kind in ("selected", "batch"):
                value = array[begin:end]
            if argument.mutable and argument.kind == "value":
                value = cloudpickle.loads(argument.value)  # another one for every slice
            elif argument.mutable and np.may_share_memory(value, array):
                value = value.copy()
            taken.append(value)
        if self._shared_rows is not None:
            rows = self._shared_rows.part(*shared_part)
            taken += [engine.take(array, rows) for engine, array in self._shareds]
        return taken


def _attached(selection: Any, context: RankContext) -> Any:
    """Return the selection, which may be a handle of its indices."""
    if selection is None or isinstance(selection, (Rows, Indices)):
        return selection
    return Indices(context.pools.attach(selection))


class SharedLengths(Command):
    """Tell how many rows shared variables have on every rank."""

    def __init__(self, numbers: List[Any]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> List[int]:
        lengths = []
        for number in self.numbers:
            engine, shared = context.shareds[number]
            lengths.append(len(engine.get(shared)))
        return lengths


class FreeFunction(Command):
    """Free what a function, in all its graphs, keeps between calls for its intermediate results."""

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> None:
        for number in self.numbers:
            _, compiled = context.functions[number]
            compiled.free()


class Profile(Command):
    """Tell what the engine's profiler has counted of functions on every rank."""

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> Any:
        functions = [context.functions[number] for number in self.numbers]
        return functions[0][0].profile([compiled for _, compiled in functions])
