"""Check the arguments of a call on the master and stage them in memory that all ranks can read."""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..memory.handles import with_axis_first
from ..memory.pool import Pool
from ..selection import Indices, RowRange, Selection, moved, parse
from ..shared_data import Data
from ..trace import point
from .batches import BatchTable, table_of, written
from .plan import Argument
from .signature import KEPT


class AcceptedData(NamedTuple):
    """A `Data` accepted for an input, with the `Argument` that is sent to the ranks."""

    handle: Any
    minibatch: bool
    argument: Argument


class StagingBuffer(NamedTuple):
    """A reusable shared-memory buffer and the array inside it."""

    pool: Pool
    buffer: np.ndarray[Any, Any]
    array: np.ndarray[Any, Any]
    handle: Any


class Arguments:
    """Checks and stages a function's arguments.

    ``axes[i]`` is input i's axis of rows. Inputs whose axis is None, and inputs beyond this list, are sent whole.
    """

    def __init__(self, engine: Any, inputs: Sequence[Any], axes: Sequence[Optional[int]]) -> None:
        self.engine, self.inputs, self.axes = engine, inputs, axes
        self.labels = [_label(i, given) for i, given in enumerate(inputs)]
        of_rows = list(axes) + [None] * (len(inputs) - len(axes))
        self._scattered = [axis is not None and _has_rows(given, axis) for given, axis in zip(inputs, of_rows)]
        self._axes = [
            given.type.axis_of_rows(axis, label) if scattered else 0
            for given, axis, scattered, label in zip(inputs, of_rows, self._scattered, self.labels)
        ]
        self._taken: Dict[int, AcceptedData] = {}  # by input
        self._staging: Dict[Any, StagingBuffer] = {}  # by input; for indices, by negative number; for steps, by name

    def scattered(self) -> Dict[Any, int]:
        """Return the variables of the inputs that are divided by rows, with their axes."""
        return {
            given.variable: axis
            for given, axis, scattered in zip(self.inputs, self._axes, self._scattered)
            if scattered
        }

    @point("copy")
    def prepare(
        self, pool: Pool, values: Sequence[Any], batch: Any
    ) -> Tuple[Tuple[Argument, ...], Optional[Selection], Any, Optional[int]]:
        """Stage a call's arguments; return them, the selection, the handle of indices for Data, and the row count."""
        arrays, lengths = self._accept(values)
        if not lengths and batch is not None:
            raise ArgumentValueError("batch", "None, because no input of the function is scattered", repr(batch))
        chosen, n_rows = self._select(arrays, lengths, batch) if lengths else (None, None)
        arguments, indices = [], None
        for i, array in enumerate(arrays):
            if isinstance(array, Data):
                argument = self._taken[i].argument
                if argument.kind == "selected" and indices is None and isinstance(chosen, Indices):
                    indices = self.stage(pool, -1, chosen.array)
            else:
                argument = self._argument(pool, i, array, "batch", chosen)
            arguments.append(argument)
        return tuple(arguments), chosen, indices, n_rows

    @point("copy")
    def prepare_steps(
        self, pool: Pool, values: Sequence[Any], batches: Optional[Sequence[Any]], n_steps: Optional[int]
    ) -> Tuple[Tuple[Argument, ...], Optional[BatchTable], Optional[int]]:
        """Stage whole arguments for many calls; return them, the table of rows, and (without batches) the row count."""
        arrays, lengths = self._accept(values)
        n_steps = n_steps if batches is None else len(batches)
        holds_one = [i for i, array in enumerate(arrays) if self._scattered[i] and getattr(array, "minibatch", False)]
        if holds_one and n_steps != 1:
            expected, got = "data with the rows of every step", "a Data with minibatch=True, for one step"
            raise ArgumentValueError(self.labels[holds_one[0]], expected, got, "call the function for each batch")
        table, n_rows = None, None
        if batches is None:
            n_rows = self._select(arrays, lengths, None)[1] if lengths else None
        elif not lengths:
            expected = "None, because no input of the function is scattered"
            raise ArgumentValueError("batches", expected, f"a sequence of length {n_steps}")
        elif holds_one:
            chosen, n_selected = self._select(arrays, lengths, batches[0], "batches[0]")
            table = written([RowRange(0, n_selected) if chosen is None else chosen])
        else:
            if not isinstance(batches, np.ndarray) and any([batch is None for batch in batches]):
                self._select(arrays, lengths, None)  # raises if the lengths differ
            table = table_of(batches, min(lengths))
        arguments = [
            self._taken[i].argument if isinstance(array, Data) else self._argument(pool, i, array, "selected")
            for i, array in enumerate(arrays)
        ]
        return tuple(arguments), table, n_rows

    def _argument(self, pool: Pool, i: int, value: Any, kind: str, chosen: Optional[Selection] = None) -> Argument:
        """Stage a value that is not a `Data`; if it is divided by rows, as this ``kind`` and with its chosen rows."""
        mutable = self.inputs[i].mutable
        if value is KEPT:
            return Argument("state", i)
        if self.inputs[i].type is None:
            return Argument("value", _pickled(value, self.labels[i]), mutable)
        if self._scattered[i]:
            return Argument(kind, self.stage(pool, i, value, chosen), mutable, self._axes[i])
        return Argument("whole", self.stage(pool, i, value), mutable)

    def _accept(self, values: Sequence[Any]) -> Tuple[List[Any], List[int]]:
        """Return the arguments, converted except for Data and `KEPT`, and the lengths of the scattered arguments."""
        arrays: List[Any] = []
        lengths: List[int] = []
        for i, value in enumerate(values):
            if isinstance(value, Data):
                taken = self._taken.get(i)
                handle, minibatch = value._handle(), value._minibatch
                if taken is None or taken.handle is not handle or taken.minibatch is not minibatch:
                    self._take(i, value, handle)
                if self._scattered[i]:
                    lengths.append(handle.shape[self._axes[i]])
            elif value is not KEPT:
                value = self.engine.convert(self.inputs[i], value, self.labels[i])
                if self._scattered[i]:
                    value = moved(value, self._axes[i], 0) if self._axes[i] else value
                    lengths.append(len(value))
            arrays.append(value)
        return arrays, lengths

    def _take(self, i: int, data: Data, handle: Any) -> None:
        given = self.inputs[i]
        if given.type is None:
            raise ArgumentTypeError(self.labels[i], f"a value of {given.variable}", "a Data, which is a dense array")
        self.engine.check(given, data.dtype, data.shape, self.labels[i])
        kind = "whole" if not self._scattered[i] else "batch" if data.minibatch else "selected"
        axis = self._axes[i]
        argument = Argument(kind, with_axis_first(handle, axis) if axis else handle, given.mutable, axis)
        self._taken[i] = AcceptedData(handle, data.minibatch, argument)

    def pack(self, pool: Pool, rank: int, chosen: Selection) -> Any:
        """Return a rank's selection as it is sent: an array of indices is staged and replaced by its handle."""
        return self.stage(pool, -2 - rank, chosen.array) if isinstance(chosen, Indices) else chosen

    def _select(
        self, arrays: Sequence[Any], lengths: List[int], batch: Any, argument: str = "batch"
    ) -> Tuple[Optional[Selection], int]:
        """Return the rows that ``batch`` selects (None for all rows), and the number of rows to divide."""
        if batch is None:
            if lengths.count(lengths[0]) < len(lengths):
                got = ", ".join(f"{length} of {name}" for length, name in zip(lengths, self._among(self.labels)))
                hint = _listed_apart(self._among(self.inputs), lengths)
                raise ArgumentValueError("scattered inputs", "equal lengths", got, hint)
            return None, lengths[0]
        minibatch = [
            isinstance(array, Data) and self._taken[i].minibatch for i, array in enumerate(arrays) if self._scattered[i]
        ]
        if True not in minibatch:
            chosen = parse(batch, min(lengths), argument)
            return chosen, len(chosen)
        whole = [length for length, is_minibatch in zip(lengths, minibatch) if not is_minibatch]
        # If every scattered input contains only the batch, there is no data set to check the indices against.
        chosen = parse(batch, min(whole) if whole else np.iinfo(np.intp).max, argument)
        for length, name, is_minibatch in zip(lengths, self._among(self.labels), minibatch):
            if is_minibatch and length < len(chosen):
                raise ArgumentValueError(
                    name,
                    f"a minibatch with at least as many rows as batch selects ({len(chosen)})",
                    str(length),
                    "write the selected rows to it first",
                )
        return chosen, len(chosen)

    def _among(self, of_inputs: Sequence[Any]) -> List[Any]:
        """Return the items that belong to scattered inputs."""
        return [one for one, scattered in zip(of_inputs, self._scattered) if scattered]

    def stage(self, pool: Pool, i: Any, array: np.ndarray[Any, Any], chosen: Optional[Selection] = None) -> Any:
        """Copy an array, or its chosen rows, into a reusable shared buffer; return the handle of the copy."""
        shape = array.shape if chosen is None else (len(chosen),) + array.shape[1:]
        staged = self._staging.get(i)
        if staged is not None and staged.pool is not pool:
            staged = None
        if staged is None or staged.array.shape != shape or staged.array.dtype != array.dtype:
            nbytes = array.itemsize * math.prod(shape)
            buffer = None if staged is None else staged.buffer
            if buffer is None or buffer.nbytes < nbytes:
                self._staging.pop(i, None)
                staged = buffer = None  # free the old buffer before allocating
                buffer = pool.allocate((max(1, nbytes),), np.uint8)
            view: np.ndarray[Any, Any] = np.ndarray(shape, array.dtype, buffer)
            staged = self._staging[i] = StagingBuffer(pool, buffer, view, pool.handle(view))
        if chosen is None:
            staged.array[...] = array
        else:
            chosen.take(array, out=staged.array)
        return staged.handle


def _label(position: int, given: Any) -> str:
    return f"input {given.name!r} (argument {position})" if given.name else f"input {position}"


def _listed_apart(inputs: Sequence[Any], lengths: Sequence[int]) -> str:
    """Return a hint that names the inputs whose length differs from the most frequent length."""
    usual = max(lengths, key=lengths.count)
    odd = ", ".join(str(given.name or given.variable) for given, n in zip(inputs, lengths) if n != usual)
    return f"list inputs without the batch's rows separately in synkhronos.function: bcast_inputs=[{odd}]"


def _has_rows(given: Any, axis: int) -> bool:
    """Return whether an input is divided by rows, unlike scalars and inputs that are broadcastable along axis 0."""
    if given.type is None:
        raise ArgumentTypeError(
            "inputs",
            "dense arrays, whose rows can be scattered",
            f"{given.name or given.variable}, which is not a dense array",
            "list it in bcast_inputs",
        )
    return axis != 0 or given.type.ndim > 0 and not given.type.broadcastable[0]


def _pickled(value: Any, label: str) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(value)
    except Exception as error:
        got = f"{type(value).__name__} ({type(error).__name__}: {error})"
        raise ArgumentTypeError(label, "a value that can be pickled and sent to the other ranks", got) from error
    return pickled
