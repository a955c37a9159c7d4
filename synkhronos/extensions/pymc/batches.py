"""Batches of rows from an iterable, such as a loader of data that do not fit into memory (`Batches`)."""

from __future__ import annotations

import logging
from typing import Any, Iterable, Iterator, List, Optional

import numpy as np

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .rows import as_data

logger = logging.getLogger("synkhronos")


def is_iterable_of_batches(batch: Any) -> bool:
    """Return whether ``batch`` may be an iterable of batches, or a function that returns one; arrays are neither."""
    return callable(batch) or (isinstance(batch, Iterable) and not isinstance(batch, (str, np.ndarray, synk.Data)))


class Batches(Iterator[List[Any]]):
    """Endless iterator over batches, each a list of arrays; iterates over ``source`` again whenever it ends.

    The first batch determines the types of all others. After an exception, the next batch begins a new pass.
    """

    def __init__(self, source: Any, total_size: Optional[int]) -> None:
        if isinstance(source, Iterator):
            expected = "an iterable that can start again, such as a list, a synkhronos.loader or a generator function"
            hint = "pass the generator function without calling it"
            raise ArgumentTypeError("batch", expected, f"an iterator, which ends after one pass: {source!r}", hint)
        found = getattr(source, "total_size", None) if total_size is None else total_size
        if isinstance(found, bool) or not isinstance(found, (int, np.integer)):
            hint = "pass total_size=, the number of rows in all batches of a pass"
            raise ArgumentTypeError("total_size", "an int", f"{found!r} of type {type(found).__name__}", hint)
        self.total_size, self._source, self._is_first_pass = int(found), source, True
        self._columns: List[str] = []  # dtypes and shapes in the first batch
        self._peeked: List[Any] = []
        self._batches = self._endless()
        for batch in source if isinstance(source, (list, tuple)) else ():
            self._checked(batch)
        self._columns = []

    def __repr__(self) -> str:
        return f"<Batches of {self._source!r}>"

    def peek(self) -> List[Any]:
        """Return the next batch, which the following call to ``next`` returns again."""
        self._peeked = next(self)
        return self._peeked

    def __next__(self) -> List[Any]:
        batch, self._peeked = self._peeked, []
        try:
            return batch or next(self._batches)
        except BaseException:
            self._batches = self._endless()  # a generator ends with its first exception
            raise

    def _endless(self) -> Iterator[List[Any]]:
        while True:
            n_rows = most = 0
            for batch in self._source if isinstance(self._source, Iterable) else self._source():
                arrays = self._checked(batch)
                n_rows, most = n_rows + len(arrays[0]), max(most, len(arrays[0]))
                if most > self.total_size:
                    expected = f"at least {most}, the number of rows in a batch"
                    hint = "pass the number of rows in a pass, not the number of batches"
                    raise ArgumentValueError("total_size", expected, str(self.total_size), hint)
                yield arrays
            if not n_rows:
                hint = "a function must return a new iterator for each pass"
                raise ArgumentValueError("batch", "an iterable with batches", "a pass without batches", hint)
            if self._is_first_pass and not n_rows <= self.total_size < n_rows + most:
                warning = "the likelihood is scaled to total_size=%d, but a pass over all batches has %d rows"
                logger.warning(warning, self.total_size, n_rows)
            self._is_first_pass = False

    def _checked(self, batch: Any) -> List[Any]:
        """Return the arrays of a batch; refuse a batch unlike the first one."""
        if isinstance(batch, dict) or (isinstance(batch, (list, tuple)) and not batch):
            expected = "each batch as a tuple of arrays, in the order of the function's arguments, or as a single array"
            raise ArgumentTypeError("batch", expected, f"a {type(batch).__name__}" if batch else repr(batch))
        given = batch if isinstance(batch, (list, tuple)) else [batch]
        arrays: List[Any] = [each if isinstance(each, synk.Data) else np.asarray(each) for each in given]
        if not self._columns:
            arrays = as_data(arrays, [f"batch[{i}]" for i in range(len(arrays))])
            self._columns = [_column(each) for each in arrays]
        columns = [_column(each) for each in arrays]
        if columns != self._columns or len({len(each) for each in arrays}) > 1 or not len(arrays[0]):
            expected = f"a batch like the first ({', '.join(self._columns)}), with at least one row"
            got = ", ".join(f"{each.dtype} {each.shape}" for each in arrays)
            hint = "convert the arrays in the iterable, or pass arrays with all rows as the argument data"
            raise ArgumentValueError("batch", expected, got, hint)
        return arrays


def _column(array: Any) -> str:
    """Return the dtype and shape of an array with any number of rows, such as ``float64 (rows, 3)``."""
    shape = ("rows", *array.shape[1:]) if array.ndim else ()
    return f"{array.dtype} {shape}".replace("'", "")
