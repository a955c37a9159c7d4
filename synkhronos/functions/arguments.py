"""The arguments of a call, checked on the master and brought to where all ranks can read them."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from .. import selection
from ..shared_array import Pool
from ..shared_data import Data
from .binding import bind
from .call import Argument

#: Lists of indices up to this length travel in the command, longer ones through shared memory.
SHORT = 256


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
        self._staging: Dict[int, Any] = {}  # shared memory that calls use again, by input (negative: lists of indices)

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
        chosen : Selection, handle or None
            The rows that ``batch`` selects, as `CallFunction` takes it.
        n_rows : int or None
            Rows to divide over the ranks; None where no input is scattered.
        """
        arrays: List[Any] = []
        for given, label, value in zip(self.inputs, self.labels, values):
            if isinstance(value, Data):
                if given.type is None:
                    raise TypeError("%s is no dense array, so it cannot take a Data" % label)
                self.engine.check(given, value.dtype, value.shape, label)
                arrays.append(value)
            else:
                arrays.append(self.engine.convert(given, value, label))
        chosen, n_rows = self._select(arrays, batch)
        arguments = []
        for i, (given, array) in enumerate(zip(self.inputs, arrays)):
            if given.type is None:
                arguments.append(Argument("value", _pickled(array, self.labels[i]), given.mutable))
            elif isinstance(array, Data):
                kind = "whole" if not self._scattered[i] else "batch" if array.minibatch else "selected"
                arguments.append(Argument(kind, array.handle(), given.mutable))
            elif self._scattered[i]:
                arguments.append(Argument("batch", self._stage(pool, i, array, chosen), given.mutable))
            else:
                arguments.append(Argument("whole", self._stage(pool, i, array), given.mutable))
        return arguments, self.pack(pool, -1, chosen), n_rows

    def pack(self, pool: Pool, i: int, chosen: Any) -> Any:
        """Return a selection as it travels: the handle of its indices, where those are many."""
        if isinstance(chosen, selection.Indices) and len(chosen) > SHORT:
            return self._stage(pool, i, chosen.array)
        return chosen

    def _select(self, arrays: Sequence[Any], batch: Any) -> Tuple[Any, Optional[int]]:
        """Return the rows that ``batch`` selects, and how many rows there are to divide."""
        lengths = {i: len(array) for i, array in enumerate(arrays) if self._scattered[i]}
        if not lengths:
            if batch is not None:
                raise ValueError("batch was given, but no input of the function is scattered")
            return None, None
        if batch is None:
            if len(set(lengths.values())) > 1:
                raise ValueError("scattered inputs must have the same length, got %s" % ", ".join(
                    "%d of %s" % (length, self.labels[i]) for i, length in lengths.items()))
            return None, next(iter(lengths.values()))
        minibatch = {i for i in lengths if isinstance(arrays[i], Data) and arrays[i].minibatch}
        whole = [length for i, length in lengths.items() if i not in minibatch]
        # Where all inputs hold just the batch, the data set that the indices are about is not there to check them.
        chosen = selection.parse(batch, min(whole) if whole else np.iinfo(np.intp).max)
        for i in minibatch:
            if lengths[i] < len(chosen):
                raise ValueError("%s is a minibatch of %d rows, but batch selects %d: write the selected rows to "
                                 "it first" % (self.labels[i], lengths[i], len(chosen)))
        return chosen, len(chosen)

    def _stage(self, pool: Pool, i: int, array: np.ndarray, chosen: Any = None) -> Any:
        """Copy an array, or its chosen rows, into shared memory that is used again; return its handle."""
        shape = array.shape if chosen is None else (len(chosen),) + array.shape[1:]
        nbytes = array.itemsize * math.prod(shape)
        buffer = self._staging.pop(i, None)
        if buffer is None or buffer.nbytes < nbytes or not pool.owns(buffer):
            buffer = None  # given back before the new one is taken
            buffer = pool.allocate((max(1, nbytes),), np.uint8)
        self._staging[i] = buffer
        staged: np.ndarray = np.ndarray(shape, array.dtype, buffer)
        if chosen is None:
            np.copyto(staged, array)
        else:
            chosen.take(array, out=staged)
        return pool.handle(staged)


def _label(position: int, given: Any) -> str:
    return "input %r (argument %d)" % (given.name, position) if given.name else "input %d" % position


def _has_rows(given: Any) -> bool:
    """Tell whether an input is divided by rows: not one of 0 dimensions, nor one whose rows are broadcastable."""
    if given.type is None:
        raise TypeError("inputs: %s is no dense array, so its rows cannot be scattered; pass it in bcast_inputs" %
                        (given.name or given.variable))
    return given.type.ndim > 0 and not given.type.broadcastable[0]


def _pickled(value: Any, label: str) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError("%s cannot be sent to the other ranks: expected a value that pickles, got %s (%s: %s)" % (
            label, type(value).__name__, type(error).__name__, error)) from error
