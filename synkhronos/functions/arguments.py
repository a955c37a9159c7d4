"""The arguments of a call, checked on the master and brought to where all ranks can read them."""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from .. import selection
from ..memory.pool import Pool
from ..shared_data import Data
from .binding import bind
from .call import Argument


class Taken(NamedTuple):
    """A Data that an input has accepted, and what travels of it."""

    handle: Any
    minibatch: bool
    argument: Argument


class Staged(NamedTuple):
    """Shared memory that calls use again, and the array that it holds."""

    pool: Pool
    buffer: np.ndarray
    array: np.ndarray
    handle: Any


class Arguments:
    """Takes the arguments of the calls of one function.

    Parameters
    ----------
    engine : Engine
    inputs : list of Input
        The function's, in order.
    n_scattered : int
        How many of them, from the first on, are divided by rows (where they have rows).
    """

    def __init__(self, engine: Any, inputs: Sequence[Any], n_scattered: int) -> None:
        self.engine, self.inputs = engine, inputs
        self.labels = [_label(i, given) for i, given in enumerate(inputs)]
        self._scattered = [i < n_scattered and _has_rows(given) for i, given in enumerate(inputs)]
        self._with_rows = [i for i, scattered in enumerate(self._scattered) if scattered]
        self._taken: Dict[int, Taken] = {}  # by input
        self._staging: Dict[int, Staged] = {}  # by input (negative: lists of indices)

    def bind(self, name: Optional[str], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[Any]:
        """Return one value per input; see `binding.bind`."""
        return bind(self.inputs, self.labels, name, args, kwargs)

    def prepare(self, pool: Pool, values: Sequence[Any], batch: Any) -> Tuple[List[Argument], Any, Optional[int]]:
        """Check the arguments and bring them into shared memory.

        Parameters
        ----------
        pool : Pool
            The master's memory.
        values : sequence
            One per input.
        batch
            As the user gave it.

        Returns
        -------
        arguments : list of Argument
        chosen : Rows, handle or None
            The rows that ``batch`` selects; of a list of them, the handle.
        n_rows : int or None
            Rows to divide over the ranks; None where no input is scattered.
        """
        arrays: List[Any] = []
        for i, value in enumerate(values):
            if isinstance(value, Data):
                self._take(i, value)
                arrays.append(value)
            else:
                arrays.append(self.engine.convert(self.inputs[i], value, self.labels[i]))
        chosen, n_rows = self._select(arrays, batch)
        arguments = []
        for i, array in enumerate(arrays):
            mutable = self.inputs[i].mutable
            if isinstance(array, Data):
                arguments.append(self._taken[i].argument)
            elif self.inputs[i].type is None:
                arguments.append(Argument("value", _pickled(array, self.labels[i]), mutable))
            elif self._scattered[i]:
                arguments.append(Argument("batch", self._stage(pool, i, array, chosen), mutable))
            else:
                arguments.append(Argument("whole", self._stage(pool, i, array), mutable))
        return arguments, self.pack(pool, -1, chosen), n_rows

    def _take(self, i: int, data: Data) -> None:
        """Check a Data for the i-th input, unless it was the last one there and has not changed."""
        taken, handle = self._taken.get(i), data.handle()
        if taken is not None and taken.handle is handle and taken.minibatch is data.minibatch:
            return
        given = self.inputs[i]
        if given.type is None:
            raise TypeError(f"{self.labels[i]} is no dense array, so it cannot take a Data")
        self.engine.check(given, data.dtype, data.shape, self.labels[i])
        kind = "whole" if not self._scattered[i] else "batch" if data.minibatch else "selected"
        self._taken[i] = Taken(handle, data.minibatch, Argument(kind, handle, given.mutable))

    def pack(self, pool: Pool, i: int, chosen: Any) -> Any:
        """Return a selection as it travels: the handle of its indices, where it is a list of them."""
        return self._stage(pool, i, chosen.array) if isinstance(chosen, selection.Indices) else chosen

    def _select(self, arrays: Sequence[Any], batch: Any) -> Tuple[Any, Optional[int]]:
        """Return the rows that ``batch`` selects, and how many rows there are to divide."""
        if not self._with_rows:
            if batch is not None:
                raise ValueError("batch was given, but no input of the function is scattered")
            return None, None
        lengths = {i: len(arrays[i]) for i in self._with_rows}
        if batch is None:
            if len(set(lengths.values())) > 1:
                raise ValueError(
                    "scattered inputs must have the same length, got {}".format(
                        ", ".join(f"{length} of {self.labels[i]}" for i, length in lengths.items())
                    )
                )
            return None, next(iter(lengths.values()))
        minibatch = [i for i in self._with_rows if isinstance(arrays[i], Data) and arrays[i].minibatch]
        whole = [length for i, length in lengths.items() if i not in minibatch]
        # Where all inputs hold just the batch, the data set that the indices are about is not there to check them.
        chosen = selection.parse(batch, min(whole) if whole else np.iinfo(np.intp).max)
        for i in minibatch:
            if lengths[i] < len(chosen):
                raise ValueError(
                    (
                        f"{self.labels[i]} is a minibatch of {lengths[i]} rows, but batch selects "
                        f"{len(chosen)}: write the selected rows to "
                        "it first"
                    )
                )
        return chosen, len(chosen)

    def _stage(self, pool: Pool, i: int, array: np.ndarray, chosen: Any = None) -> Any:
        """Copy an array, or its chosen rows, into shared memory that is used again; return its handle."""
        shape = array.shape if chosen is None else (len(chosen),) + array.shape[1:]
        staged = self._staging.get(i)
        if staged is not None and staged.pool is not pool:
            staged = None
        if staged is None or staged.array.shape != shape or staged.array.dtype != array.dtype:
            nbytes = array.itemsize * math.prod(shape)
            buffer = None if staged is None else staged.buffer
            if buffer is None or buffer.nbytes < nbytes:
                self._staging.pop(i, None)
                staged = buffer = None  # given back before the new one is taken
                buffer = pool.allocate((max(1, nbytes),), np.uint8)
            view: np.ndarray = np.ndarray(shape, array.dtype, buffer)
            staged = self._staging[i] = Staged(pool, buffer, view, pool.handle(view))
        if chosen is None:
            np.copyto(staged.array, array)
        else:
            chosen.take(array, out=staged.array)
        return staged.handle


def _label(position: int, given: Any) -> str:
    return f"input {given.name!r} (argument {position})" if given.name else f"input {position}"


def _has_rows(given: Any) -> bool:
    """Tell whether an input is divided by rows: not one of 0 dimensions, nor one whose rows are broadcastable."""
    if given.type is None:
        raise TypeError(
            "inputs: %s is no dense array, so its rows cannot be scattered; pass it in bcast_inputs"
            % (given.name or given.variable)
        )
    return given.type.ndim > 0 and not given.type.broadcastable[0]


def _pickled(value: Any, label: str) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"{label} cannot be sent to the other ranks: expected a value that pickles, got "
            f"{type(value).__name__} ({type(error).__name__}: {error})"
        ) from error
