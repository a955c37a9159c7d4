"""The ``batches`` and ``batches_s`` arguments of `Function.steps`, validated and written as one table. Pure.

A step is a row of three numbers, and all lists of indices lie in one array, so that a thousand steps are two arrays in
shared memory, and whoever makes a step looks at one row::

    batches=[[7, 0, -1], slice(0, 4), [3]]     of 10 rows

    table     0 3 0   | 0 4 1   | 3 4 0        start, stop, step; with step 0 the rows are indices[start:stop],
    indices   7 0 9 3                          else those of Rows(start, stop, step)
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentTypeError, ArgumentValueError
from ..selection import Indices, Rows, Selection, parse, parse_per_rank

#: Batches that are read of what does not say how many it has, unless ``n_steps`` says how many to read.
MOST_READ = 1 << 20

_BATCHES = "a sequence of what {} takes, or a 2-D array of integers"


class Table(NamedTuple):
    """The rows of many steps.

    Attributes
    ----------
    rows : ndarray of int64, shape ``(n_steps, ..., 3)``
        Start, stop and step of each; see the module. (With ``batches_s``, of each rank.)
    counts : ndarray of int64, shape ``(n_steps, ...)``
        How many rows they select.
    indices : ndarray of intp
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    indices: NDArray[np.intp]

    def shifted(self, by: int) -> Table:
        """Return the table for indices that lie behind ``by`` others in one array."""
        return self._replace(rows=self.rows + np.where(self.rows[..., 2:] == 0, [by, by, 0], 0))


def selection(row: Sequence[int], indices: NDArray[np.intp]) -> Selection:
    """Return what a row of the table selects."""
    start, stop, step = row
    return Rows(start, stop, step) if step else Indices(indices[start:stop])


def read_all(batches: Any, batches_s: Any, n_steps: Any) -> Tuple[Optional[Sequence[Any]], Optional[Sequence[Any]]]:
    """Return both arguments as `read` does; check ``n_steps``, and that they say how many steps there are.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As `read`; or if they do not agree, or say nothing.
    """
    if n_steps is None:
        if batches is None and batches_s is None:
            raise ArgumentValueError("n_steps", "the number of calls, since there are no batches to vary them", "None")
    elif isinstance(n_steps, (bool, np.bool_)) or not isinstance(n_steps, (int, np.integer)):
        raise ArgumentTypeError("n_steps", "an int", f"{n_steps!r} of type {type(n_steps).__name__}")
    elif n_steps < 1:
        raise ArgumentValueError("n_steps", "at least 1", str(n_steps))
    of_inputs = None if batches is None else read(batches, n_steps)
    of_shareds = None if batches_s is None else read(batches_s, n_steps, "batches_s", "batch_s=")
    if of_inputs is not None and of_shareds is not None and len(of_inputs) != len(of_shareds):
        raise ArgumentValueError("batches_s", f"{len(of_inputs)} of them, as many as batches", str(len(of_shareds)))
    return of_inputs, of_shareds


def read(batches: Any, n_steps: Optional[int], argument: str = "batches", of_one: str = "batch=") -> Sequence[Any]:
    """Return the batches as a list or a 2-D array; read a generator, at most so many of it.

    Parameters
    ----------
    batches : iterable
    n_steps : int, optional
        The most that are read.
    argument, of_one : str
        What messages call the argument, and the argument of one call.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If it is not a sequence of batches, but one batch for example, or there are none.

    Examples
    --------
    >>> read(iter([[0, 1], [2, 3], [4]]), 2)
    [[0, 1], [2, 3]]
    """
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
                raise  # out of the program's own generator
            got = f"{batches!r} of type {type(batches).__name__}"
            raise ArgumentTypeError(argument, expected, got, f"[{of_one[:-1]}] is a single step") from None
        if found and all([isinstance(entry, (int, np.integer)) for entry in found]):
            raise _flat(argument, expected, f"{len(found)} integers")
    if not len(found):
        raise ArgumentValueError(argument, "at least one batch", "none")
    return found  # type: ignore[no-any-return]


def listed(batches: Any, n_steps: Optional[int] = None, argument: str = "batches") -> List[Any]:
    """Return what is iterated over as a list, or the first ``n_steps`` of it.

    Raises
    ------
    ArgumentValueError
        If it has no end, as it seems.
    """
    if n_steps is not None or hasattr(batches, "__len__") and not isinstance(batches, range):
        return list(islice(batches, n_steps))
    found = list(islice(batches, MOST_READ + 1))
    if len(found) > MOST_READ:
        expected = f"at most {MOST_READ:,} from what has no length"
        raise ArgumentValueError(argument, expected, "more", "say how many to read, by n_steps or itertools.islice")
    return found


def _flat(argument: str, expected: str, got: str) -> ArgumentTypeError:
    hint = f"np.reshape({argument}, (-1, size)) makes a row of each batch, [{argument}] is a single one"
    return ArgumentTypeError(argument, expected, got, hint)


def table_of(batches: Sequence[Any], length: int, argument: str = "batches") -> Table:
    """Validate batches against ``length`` rows.

    Parameters
    ----------
    batches : list or 2-D array of integers
        From `read`.
    length : int
        Number of rows of the shortest array that the rows are taken from.
    argument : str

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        As `selection.parse`; the argument is ``batches[3]``, for example.

    Examples
    --------
    >>> table_of([[7, 0, -1], slice(0, 4), [3]], 10)
    Table(rows=array([[0, 3, 0],
           [0, 4, 1],
           [3, 4, 0]]), counts=array([3, 4, 1]), indices=array([7, 0, 9, 3]))
    """
    joined = _joined(batches)
    if joined is None:
        return written([parse(each, length, f"{argument}[{i}]") for i, each in enumerate(batches)])
    numbers, counts = joined
    stops = np.cumsum(counts)
    rows = np.stack([stops - counts, stops, np.zeros_like(stops)], axis=1)
    if numbers.size and not (-length <= int(numbers.min()) and int(numbers.max()) < length):
        for i, (start, stop, _) in enumerate(rows.tolist()):
            parse(numbers[start:stop], length, f"{argument}[{i}]")  # raises for the first that is wrong
    indices = numbers.astype(np.intp)
    indices[indices < 0] += length
    return Table(rows, counts, indices)


def table_per_rank(batches_s: Sequence[Any], lengths: Sequence[int], argument: str = "batches_s") -> Table:
    """Validate batches of what each rank has; parameters as for `table_of`, with one length for each rank.

    Returns
    -------
    Table
        Its rows have the shape ``(n_steps, n_ranks, 3)``.
    """
    of_ranks = [
        each for i, batch_s in enumerate(batches_s) for each in parse_per_rank(batch_s, lengths, f"{argument}[{i}]")
    ]
    table, shape = written(of_ranks), (len(batches_s), len(lengths))
    return Table(table.rows.reshape(shape + (3,)), table.counts.reshape(shape), table.indices)


def _joined(batches: Sequence[Any]) -> Optional[Tuple[NDArray[Any], NDArray[np.int64]]]:
    """Return all indices and how many each batch has, if NumPy can look at all of them at once."""
    if isinstance(batches, np.ndarray):
        return batches.reshape(-1), np.full(len(batches), batches.shape[1], np.int64)
    dtype = getattr(batches[0], "dtype", None)
    # Of several types NumPy would make floats.
    if any([type(each) is not np.ndarray or each.ndim != 1 or each.dtype != dtype for each in batches]):
        return None
    if dtype is None or dtype.kind not in "iu":
        return None
    return np.concatenate(batches), np.array([len(each) for each in batches], np.int64)


def written(selections: Sequence[Selection]) -> Table:
    """Return the table of these selections."""
    rows: List[Tuple[int, int, int]] = []
    arrays: List[NDArray[np.intp]] = [np.zeros(0, np.intp)]
    begin = 0
    for each in selections:
        if isinstance(each, Rows):
            rows.append((each.start, each.stop, each.step))
        else:
            rows.append((begin, begin + len(each), 0))
            begin += len(each)
            arrays.append(each.array)
    counts = np.array([len(each) for each in selections], np.int64)
    return Table(np.array(rows, np.int64), counts, np.concatenate(arrays))
