"""Validate the ``batches`` and ``batches_s`` of `Function.steps`, and store them in two arrays::

    batches=[[7, 0, -1], slice(0, 4), [3]]     of 10 rows

    table     0 3 0   | 0 4 1   | 3 4 0        start, stop, step; if step is 0, the rows are indices[start:stop],
    indices   7 0 9 3                          otherwise RowRange(start, stop, step)

A rank reads one row of the table per step.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentTypeError, ArgumentValueError
from ..selection import Indices, RowRange, Selection, parse, parse_per_rank

#: Maximum number of batches read from a range or an iterable without a length, unless ``n_steps`` is given.
MAX_BATCHES_READ = 1 << 20

_BATCHES = "a sequence of values for {}, or a 2-D array of integers"


class BatchTable(NamedTuple):
    """The rows selected in each of many steps."""

    rows: NDArray[np.int64]  # shape (n_steps, ..., 3): start, stop and step; with batches_s, (n_steps, n_ranks, 3)
    counts: NDArray[np.int64]  # shape (n_steps, ...): number of selected rows
    indices: NDArray[np.intp]

    def shifted(self, by: int) -> BatchTable:
        """Return the table for an array of indices whose first ``by`` entries belong to another table."""
        return self._replace(rows=self.rows + np.where(self.rows[..., 2:] == 0, [by, by, 0], 0))


def selection(row: Sequence[int], indices: NDArray[np.intp]) -> Selection:
    """Decode a row of the table into a selection."""
    start, stop, step = row
    return RowRange(start, stop, step) if step else Indices(indices[start:stop])


def read_all(batches: Any, batches_s: Any, n_steps: Any) -> Tuple[Optional[Sequence[Any]], Optional[Sequence[Any]]]:
    """Read ``batches`` and ``batches_s``; check ``n_steps``, and that both sequences have the same length."""
    if n_steps is None:
        if batches is None and batches_s is None:
            raise ArgumentValueError("n_steps", "the number of calls, because no batches are given", "None")
    elif isinstance(n_steps, (bool, np.bool_)) or not isinstance(n_steps, (int, np.integer)):
        raise ArgumentTypeError("n_steps", "an int", f"{n_steps!r} of type {type(n_steps).__name__}")
    elif n_steps < 1:
        raise ArgumentValueError("n_steps", "at least 1", str(n_steps))
    of_inputs = None if batches is None else read(batches, n_steps)
    of_shareds = None if batches_s is None else read(batches_s, n_steps, "batches_shared", "batch_shared=")
    if of_inputs is not None and of_shareds is not None and len(of_inputs) != len(of_shareds):
        raise ArgumentValueError(
            "batches_shared", f"as many entries as batches ({len(of_inputs)})", str(len(of_shareds))
        )
    return of_inputs, of_shareds


def read(batches: Any, n_steps: Optional[int], argument: str = "batches", of_one: str = "batch=") -> Sequence[Any]:
    """Return at most ``n_steps`` batches, as a list or 2-D array; raise for a single batch or no batches."""
    expected = _BATCHES.format(of_one)
    found: Any
    if hasattr(batches, "__array__"):
        found = np.asarray(batches)
        got = f"an array of {found.dtype} with shape {found.shape}"
        if found.dtype.kind not in "iu":
            hint = "pass a list with one array of integers for each step" if found.dtype == object else None
            raise ArgumentTypeError(argument, expected, got, hint)
        if found.ndim == 1:
            raise _flat(argument, expected, got)
        if found.ndim != 2:
            raise ArgumentValueError(argument, expected, got)
        found = found[:n_steps]
    else:
        try:
            found = listed(batches, n_steps, argument)
        except TypeError:
            if isinstance(batches, Iterable):
                raise  # the program's own generator raised it
            got = f"{batches!r} of type {type(batches).__name__}"
            raise ArgumentTypeError(argument, expected, got, f"[{of_one[:-1]}] is a single step") from None
        if found and all([isinstance(entry, (int, np.integer)) for entry in found]):
            raise _flat(argument, expected, f"a sequence of integers (length {len(found)})")
    if not len(found):
        raise ArgumentValueError(argument, "at least one batch", "none")
    return found  # type: ignore[no-any-return]


def listed(batches: Any, n_steps: Optional[int] = None, argument: str = "batches") -> List[Any]:
    """Return a list of at most ``n_steps`` items; without ``n_steps``, raise if a range or generator is too long."""
    if n_steps is not None or hasattr(batches, "__len__") and not isinstance(batches, range):
        return list(islice(batches, n_steps))
    found = list(islice(batches, MAX_BATCHES_READ + 1))
    if len(found) > MAX_BATCHES_READ:
        expected = f"at most {MAX_BATCHES_READ:,} batches from a range or an iterable without a length"
        raise ArgumentValueError(argument, expected, "more", "limit the number with n_steps or itertools.islice")
    return found


def _flat(argument: str, expected: str, got: str) -> ArgumentTypeError:
    hint = f"np.reshape({argument}, (-1, size)) has one batch per row; [{argument}] is a single batch"
    return ArgumentTypeError(argument, expected, got, hint)


def table_of(batches: Sequence[Any], length: int, argument: str = "batches") -> BatchTable:
    """Return the table of batches, validated against the ``length`` of the shortest array with rows to select."""
    joined = _joined(batches)
    if joined is None:
        return written([parse(each, length, f"{argument}[{i}]") for i, each in enumerate(batches)])
    numbers, counts = joined
    stops = np.cumsum(counts)
    rows = np.stack([stops - counts, stops, np.zeros_like(stops)], axis=1)
    if numbers.size and not (-length <= int(numbers.min()) and int(numbers.max()) < length):
        for i, (start, stop, _) in enumerate(rows.tolist()):
            parse(numbers[start:stop], length, f"{argument}[{i}]")  # raises for the first wrong batch
    indices = numbers.astype(np.intp)
    indices[indices < 0] += length
    return BatchTable(rows, counts, indices)


def table_per_rank(batches_s: Sequence[Any], lengths: Sequence[int], argument: str = "batches_shared") -> BatchTable:
    """Return the table of ``batches_s``, validated for each rank; its ``rows`` have shape ``(n_steps, n_ranks, 3)``."""
    of_ranks = [
        each for i, batch_s in enumerate(batches_s) for each in parse_per_rank(batch_s, lengths, f"{argument}[{i}]")
    ]
    table, shape = written(of_ranks), (len(batches_s), len(lengths))
    return BatchTable(table.rows.reshape(shape + (3,)), table.counts.reshape(shape), table.indices)


def _joined(batches: Sequence[Any]) -> Optional[Tuple[NDArray[Any], NDArray[np.int64]]]:
    """Return all indices, concatenated, and each batch's length; None unless all are arrays of one integer dtype."""
    if isinstance(batches, np.ndarray):
        return batches.reshape(-1), np.full(len(batches), batches.shape[1], np.int64)
    dtype = getattr(batches[0], "dtype", None)
    # NumPy converts a mixture of int64 and uint64 to floats.
    if any([type(each) is not np.ndarray or each.ndim != 1 or each.dtype != dtype for each in batches]):
        return None
    if dtype is None or dtype.kind not in "iu":
        return None
    return np.concatenate(batches), np.array([len(each) for each in batches], np.int64)


def written(selections: Sequence[Selection]) -> BatchTable:
    rows: List[Tuple[int, int, int]] = []
    arrays: List[NDArray[np.intp]] = [np.zeros(0, np.intp)]
    begin = 0
    for each in selections:
        if isinstance(each, RowRange):
            rows.append((each.start, each.stop, each.step))
        else:
            rows.append((begin, begin + len(each), 0))
            begin += len(each)
            arrays.append(each.array)
    counts = np.array([len(each) for each in selections], np.int64)
    return BatchTable(np.array(rows, np.int64), counts, np.concatenate(arrays))
