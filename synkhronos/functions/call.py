"""One call of a function: what travels, and what every rank does with it."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from ..memory.pool import Handle
from ..reductions import ReduceOp, reduce_outputs
from ..runtime.command import Command
from ..runtime.context import RankContext
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


class Plan(NamedTuple):
    """What a call has in common with others of the same function: all of it, but for the slice of rows it is about.

    Attributes
    ----------
    number : int
        The function's (or its variant's), in the ranks' tables.
    name : str
        How messages call it.
    arguments : sequence of Argument
        In the order of the function's inputs.
    indices : handle or Indices, optional
        Where the call is about a list of rows of the whole data set: that list, before it is divided.
    division : Division
        Which rows every rank takes; its ``shared_rows`` may be handles, too.
    subset : list of int, optional
        The outputs that are wanted.
    ops : list of ReduceOp
        One per wanted output.
    labels : list of str
        How messages call them.
    in_answers : bool
        Whether all outputs are so small that they travel with the ranks' answers, which saves them a barrier.
    sliceable : list of int
        The shared variables whose rows are further inputs.
    updates : list of (int, ReduceOp or None)
        Of a call in slices: the shared variables whose new values are further outputs, and how slices are combined.
    """

    number: int
    name: str
    arguments: Sequence[Argument]
    indices: Any
    division: Division
    subset: Optional[List[int]]
    ops: Sequence[ReduceOp]
    labels: Sequence[str]
    in_answers: bool
    sliceable: Sequence[int] = ()
    updates: Sequence[Tuple[int, Optional[ReduceOp]]] = ()


class CallFunction(Command):
    """Call a function on every rank with its rows, and reduce the outputs for the master.

    Parameters
    ----------
    plan : Plan
        Travels only where the ranks do not have it.
    place : (int, int), optional
        Under which the ranks keep the plan; it replaces the one there. None: it is not kept.
    known : bool
        Whether all ranks have it there.
    rows : Rows, optional
        The rows of the whole data set that the call is about, before they are divided.
    """

    def __init__(
        self, plan: Optional[Plan], place: Optional[Tuple[int, int]], known: bool, rows: Optional[Rows]
    ) -> None:
        self.plan, self.place, self.known, self.rows = plan, place, known, rows

    def __reduce__(self) -> Any:
        rows = None if self.rows is None else (self.rows.start, self.rows.stop, self.rows.step)
        return _arrived, (None if self.known else self.plan, self.place, rows)

    @property
    def title(self) -> str:
        return f"call of function {self.plan.name}"  # type: ignore[union-attr]

    def run(self, context: RankContext) -> Any:
        prepared = self._prepared(context)
        plan: Plan = prepared.plan
        engine, compiled = context.functions[plan.number]
        changes: List[Callable[[], object]] = []
        if not prepared.pieces:
            outputs: List[Any] = [None] * len(plan.ops)
        elif plan.division.num_slices == 1:
            arguments = prepared.of_slice(prepared.pieces[0], prepared.values(context), self.rows, context)
            outputs = self._call(plan, context, engine, compiled, arguments, plan.subset)
        else:
            outputs, changes = self._in_slices(context, engine, compiled, prepared)
        if plan.in_answers:
            if context.rank == context.root:
                return outputs
            return [None if op.name is None else _in_bytes(output) for op, output in zip(plan.ops, outputs)]
        results = _reduce(plan, context, engine, compiled, outputs)
        if plan.updates:  # on all ranks or on none: slices may disagree on one rank alone
            context.commit(*changes)
        return results

    def _prepared(self, context: RankContext) -> Prepared:
        """Return the plan as this rank has it, or has it from now on."""
        if self.place is None:
            return Prepared(self.plan, context)
        prepared = context.plans.get(self.place)
        if prepared is None or self.plan is not None and prepared.plan is not self.plan:
            prepared = context.plans[self.place] = Prepared(self.plan, context)
        return prepared

    def _call(
        self,
        plan: Plan,
        context: RankContext,
        engine: Any,
        compiled: Any,
        arguments: List[Any],
        wanted: Optional[List[int]],
    ) -> List[Any]:
        try:
            return engine.call(compiled, arguments, wanted)
        except Exception as error:
            if not engine.is_out_of_memory(error):
                raise
            raise MemoryError(
                (
                    "rank {} has no memory left on its device in function {} ({}): call it with "
                    "num_slices={}, or with fewer rows"
                ).format(context.rank, plan.name, str(error).split("\n")[0], 2 * plan.division.num_slices)
            ) from error

    def _in_slices(
        self, context: RankContext, engine: Any, compiled: Any, prepared: Prepared
    ) -> Tuple[List[Any], List[Callable[[], object]]]:
        """Call the function slice by slice; return the outputs, and what applies the accumulated updates."""
        plan = prepared.plan
        n_outputs = len(engine.outputs(compiled)) - len(plan.updates)
        wanted = list(range(n_outputs)) if plan.subset is None else plan.subset
        wanted = wanted + list(range(n_outputs, n_outputs + len(plan.updates)))
        pieces, values = prepared.pieces, prepared.values(context)
        targets = [context.shareds[number][1] for number, _ in plan.updates]
        outputs, news = in_slices(
            lambda i: self._call(
                plan, context, engine, compiled, prepared.of_slice(pieces[i], values, self.rows, context), wanted
            ),
            [weight for weight, _, _ in pieces],
            list(zip(plan.labels, plan.ops)),
            [(engine.label(target), op) for target, (_, op) in zip(targets, plan.updates)],
            engine.accumulator,
        )
        for i, (target, new) in enumerate(zip(targets, news)):
            news[i] = engine.to_device(target, new)
            if isinstance(news[i], np.ndarray):  # what is on the device is as the graph has it, which is as it must be
                news[i] = engine.coerce(target, news[i], f"the update of {engine.label(target)}")
        return outputs, [functools.partial(engine.put, target, new) for target, new in zip(targets, news)]


def _arrived(
    plan: Optional[Plan], place: Optional[Tuple[int, int]], rows: Optional[Tuple[int, int, int]]
) -> CallFunction:
    return CallFunction(plan, place, plan is None, None if rows is None else Rows(*rows))


def _reduce(plan: Plan, context: RankContext, engine: Any, compiled: Any, outputs: List[Any]) -> Optional[List[Any]]:
    """Reduce the outputs over the ranks; on the master, return all of them."""
    moving = [i for i, op in enumerate(plan.ops) if op.name is not None]
    if moving:
        positions = [i if plan.subset is None else plan.subset[i] for i in moving]
        reduced = context.transport.reduce(
            [("function", plan.number, position) for position in positions],
            [outputs[i] for i in moving],
            [plan.ops[i] for i in moving],
            plan.division.weights,
            lambda i: f"{plan.labels[moving[i]]} of function {plan.name}",
            keep_dtype=False,
        )
        if reduced is not None:
            for i, result in zip(moving, reduced):
                outputs[i] = result
    return _presented(plan, engine, compiled, outputs) if context.rank == context.root else None


def _presented(plan: Plan, engine: Any, compiled: Any, outputs: List[Any]) -> List[Any]:
    """Return the outputs where the engine's own function would return them: on the host or the device."""
    return [
        engine.present(compiled, i if plan.subset is None else plan.subset[i], output)
        for i, output in enumerate(outputs)
    ]


def reduce_answers(plan: Plan, results: Sequence[Any], context: RankContext) -> List[Any]:
    """Return the outputs of a call whose outputs came with the answers of the ranks: on the master, at its end."""
    outputs: List[Any] = results[context.root]
    for i, op in enumerate(plan.ops):
        if op.name is not None:
            parts = [
                _on_host(outputs[i]) if rank == context.root else _from_bytes(result[i])
                for rank, result in enumerate(results)
            ]
            outputs[i] = reduce_outputs(op, parts, plan.division.weights, context.root)
    engine, compiled = context.functions[plan.number]
    return _presented(plan, engine, compiled, outputs)


def _on_host(output: Any) -> Optional[np.ndarray]:
    return None if output is None else np.asarray(output)


def _in_bytes(output: Optional[np.ndarray]) -> Optional[Tuple[str, bytes]]:
    """Return a value of 0 dimensions as it travels: a tenth of the time that pickling an array takes."""
    return None if output is None else (np.dtype(output.dtype).str, np.asarray(output).tobytes())


def _from_bytes(sent: Optional[Tuple[str, bytes]]) -> Optional[np.ndarray]:
    return None if sent is None else np.ndarray((), sent[0], sent[1])


class Prepared:
    """A plan on one rank: what can be done once for all calls."""

    def __init__(self, plan: Any, context: RankContext) -> None:
        self.plan: Plan = plan
        #: What `Division.pieces` says of every slice that this rank calls the function on.
        self.pieces = plan.division.pieces(context.rank) if plan.division.takes_part(context.rank) else []
        self._values: List[Any] = []
        self._indices = self._shared_rows = None
        if self.pieces:
            self._values = [_lasting(argument, context) for argument in plan.arguments]
            self._indices = _selection(plan.indices, context)
            if plan.division.shared_rows is not None:
                self._shared_rows = _selection(plan.division.shared_rows[context.rank], context)
        self._passing = [i for i, value in enumerate(self._values) if value is None]

    def values(self, context: RankContext) -> List[Any]:
        """Return the whole value of every argument, for one call."""
        if not self._passing:
            return self._values
        values = list(self._values)
        for i in self._passing:
            kind, value, _ = self.plan.arguments[i]
            values[i] = cloudpickle.loads(value) if kind == "value" else context.pools.attach(value)
        return values

    def of_slice(
        self,
        piece: Tuple[int, Tuple[int, int], Tuple[int, int]],
        values: Sequence[Any],
        rows: Optional[Rows],
        context: RankContext,
    ) -> List[Any]:
        """Return what this rank gives to the function for a slice."""
        _, (begin, end), shared_part = piece
        chosen = rows if self._indices is None else self._indices
        part = None if chosen is None else chosen.part(begin, end)
        taken = []
        for i, ((kind, sent, mutable), value) in enumerate(zip(self.plan.arguments, values)):
            if kind == "selected" and part is not None:
                given = part.take(value, None if part.is_view else self._row_buffer(context, i, len(part), value))
            elif kind in ("selected", "batch"):
                given = value[begin:end]
            else:
                given = value
            if mutable and kind == "value":
                given = cloudpickle.loads(sent)  # another one for every slice
            elif mutable and np.may_share_memory(given, value):
                given = given.copy()
            taken.append(given)
        if self._shared_rows is not None:
            shared_rows = self._shared_rows.part(*shared_part)
            for number in self.plan.sliceable:
                engine, shared = context.shareds[number]
                taken.append(engine.take(engine.get(shared), shared_rows))
        return taken

    def _row_buffer(self, context: RankContext, i: int, n_rows: int, array: np.ndarray) -> np.ndarray:
        """Return memory for rows of the i-th argument, the same for every call: fresh memory takes twice the time."""
        shape = (n_rows,) + array.shape[1:]
        nbytes = array.itemsize * math.prod(shape)
        room = context.row_buffers.get((self.plan.number, i))
        if room is None or room.nbytes < nbytes:
            context.row_buffers.pop((self.plan.number, i), None)  # given back before the new one is taken
            room = context.row_buffers[self.plan.number, i] = np.empty(nbytes, np.uint8)
        return np.ndarray(shape, array.dtype, room)


def _lasting(argument: Argument, context: RankContext) -> Optional[np.ndarray]:
    """Return the array of an argument, where it can be kept for later calls.

    Files and named memory are attached for every call: they may be replaced, and every mapping takes a descriptor.
    """
    return context.pools.attach(argument.value) if isinstance(argument.value, Handle) else None


def _selection(selection: Any, context: RankContext) -> Any:
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
            engine, compiled = context.functions[number]
            engine.free(compiled)
            for place in [place for place in context.row_buffers if place[0] == number]:
                del context.row_buffers[place]


class Profile(Command):
    """Tell what the engine's profiler has counted of functions on every rank."""

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> Any:
        functions = [context.functions[number] for number in self.numbers]
        return functions[0][0].profile([compiled for _, compiled in functions])
