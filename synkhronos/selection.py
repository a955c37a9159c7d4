"""The ``batch`` and ``batch_s`` arguments, as validated selections of rows.

A `Selection` is made once, on the master, before any rank starts; after that
indices are not checked again. It is small, picklable and immutable: the master
cuts it into the ranks' parts, and every rank takes its part of the rows::

    batch=[7, 0, -1, 3]  --parse-->  Indices([7, 0, 9, 3])  --part-->  [7, 0]  rank 0
                                     (of 10 rows)                      [9, 3]  rank 1
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentTypeError, ArgumentValueError
from .kernels.copy import copy_into

_set = object.__setattr__


def moved(array: Any, source: int, target: int) -> Any:
    """Return a view of an array, on the host or on a device, with one axis in another place.

    Examples
    --------
    >>> moved(np.zeros((2, 3, 4)), 2, 0).shape
    (4, 2, 3)
    """
    order = [axis for axis in range(array.ndim) if axis != source]
    order.insert(target, source)
    return array.transpose(*order)


_SELECTIONS = "an int, a slice, or a list or 1-D array of integers"
_FOR_A_MASK = "np.flatnonzero(mask) gives the indices of a mask"


class Rows:  # every call makes some: a frozen dataclass would take three times as long
    """Select the rows ``start, start + step, ...`` up to, and not including, ``stop``, as `range` does.

    A view of the data: nothing is copied. (As in `range`, a negative ``stop``
    lies before the first row; it does not count from the end.)

    Parameters
    ----------
    start, stop, step : int
        The members of a `range` whose numbers are all 0 or more. An empty one
        becomes ``Rows(0, 0, 1)``.

    Examples
    --------
    >>> Rows(4, -1, -2).take(np.arange(6))
    array([4, 2, 0])
    """

    __slots__ = ("start", "stop", "step")

    start: int
    stop: int
    step: int

    def __init__(self, start: int, stop: int, step: int = 1) -> None:
        if stop <= start if step > 0 else stop >= start:
            # range(-1, -1, -1) is empty, but the slice made of it would be the whole array.
            start, stop, step = 0, 0, 1
        _set(self, "start", start)
        _set(self, "stop", stop)
        _set(self, "step", step)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self!r} cannot be changed: make another one")

    def __repr__(self) -> str:
        return f"Rows(start={self.start}, stop={self.stop}, step={self.step})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rows):
            return NotImplemented
        return (self.start, self.stop, self.step) == (other.start, other.stop, other.step)

    def __hash__(self) -> int:
        return hash((self.start, self.stop, self.step))

    def __reduce__(self) -> Any:
        return Rows, (self.start, self.stop, self.step)

    def __len__(self) -> int:
        """Return the number of selected rows."""
        return len(range(self.start, self.stop, self.step))

    @property
    def is_view(self) -> bool:
        """Whether `take` returns a view, so that taking rows costs nothing."""
        return True

    @property
    def numbers(self) -> NDArray[np.intp]:
        """The rows that are selected, in their order."""
        return np.arange(self.start, self.stop, self.step)

    def part(self, lo: int, hi: int) -> Rows:
        """Return the selection of the ``lo``-th to (not including) the ``hi``-th selected row."""
        rows = range(self.start, self.stop, self.step)[lo:hi]
        return Rows(rows.start, rows.stop, rows.step)

    def take(self, array: NDArray[Any], out: Optional[NDArray[Any]] = None) -> NDArray[Any]:
        """Return the selected rows of ``array`` as a view, or copied into ``out`` if it is given.

        Parameters
        ----------
        array : ndarray
            At least as long as what the selection was validated against.
        out : ndarray, optional
            Takes the rows; of their shape.

        Returns
        -------
        ndarray
            The view, or ``out``.
        """
        rows = array[self.start : self.stop if self.stop >= 0 else None : self.step]
        if out is None:
            return rows
        copy_into(out, rows)
        return out


@dataclass(frozen=True, eq=False)
class Indices:
    """Select rows by a list of indices: a copy of these rows.

    Parameters
    ----------
    array : ndarray
        1-D, C-contiguous, of type `numpy.intp`, with no number below 0; it is
        neither checked nor copied here (it may lie in shared memory). `parse`
        makes it so.

    Examples
    --------
    >>> Indices(np.array([3, 0, 3])).take(np.arange(6) * 10)
    array([30,  0, 30])
    """

    array: NDArray[np.intp]

    def __len__(self) -> int:
        """Return the number of selected rows."""
        return len(self.array)

    @property
    def is_view(self) -> bool:
        """Whether `take` returns a view, so that taking rows costs nothing."""
        return False

    @property
    def numbers(self) -> NDArray[np.intp]:
        """The rows that are selected, in their order."""
        return self.array

    def part(self, lo: int, hi: int) -> Indices:
        """Return the selection of the ``lo``-th to (not including) the ``hi``-th selected row."""
        return Indices(self.array[lo:hi])

    def take(self, array: NDArray[Any], out: Optional[NDArray[Any]] = None) -> NDArray[Any]:
        """Return a copy of the selected rows of ``array``, in ``out`` if it is given.

        Parameters
        ----------
        array : ndarray
            At least as long as what the selection was validated against.
        out : ndarray, optional
            Takes the rows; of their shape and type.

        Returns
        -------
        ndarray
            The copied rows; ``out`` if it is given.
        """
        if array.flags.c_contiguous and array.flags.aligned:
            # The indices are validated: "clip" only keeps NumPy from buffering `out`, which is half of the time.
            rows: NDArray[Any] = array.take(self.array, axis=0, out=out, mode="clip")
            return rows
        rows = np.asarray(array[self.array])  # np.take would copy the whole array first
        if out is None:
            return rows
        np.copyto(out, rows)
        return out


Selection = Union[Rows, Indices]


def parse(batch: object, length: int, argument: str = "batch", of: str = "the shortest scattered input") -> Selection:
    """Validate a ``batch`` argument against ``length`` rows.

    Parameters
    ----------
    batch : None, int, slice, list, tuple, range or integer array
        None for all rows; an int ``n`` for the first ``n`` rows; a slice as in
        NumPy (open ends, negative members and clipping beyond the ends); or
        integers in one dimension, where negative ones count from the end.
    length : int
        Number of rows of the shortest array that the rows are taken from.
    argument, of : str
        What error messages call the argument, and what has that length.

    Returns
    -------
    Rows or Indices
        The selection. It keeps nothing of the caller's array.

    Raises
    ------
    ArgumentTypeError
        If ``batch`` is of another type (bool and float too).
    ArgumentValueError
        If it selects rows that are not there, has more than one dimension, or
        is a slice of step 0.

    Examples
    --------
    >>> parse(3, length=10)
    Rows(start=0, stop=3, step=1)
    >>> parse(slice(None, None, -2), length=10)
    Rows(start=9, stop=-1, step=-2)
    >>> parse([0, -1], length=10)
    Indices(array=array([0, 9]))
    >>> parse([100], length=100, of="x")
    Traceback (most recent call last):
    ...
    synkhronos.errors.ArgumentValueError: batch: expected indices within x, which has length 100, got index 100
    """
    if batch is None:
        return Rows(0, length)
    if isinstance(batch, slice):
        return _parse_slice(batch, length, argument)
    if isinstance(batch, (list, tuple)):
        return _parse_sequence(batch, length, argument, of)
    if isinstance(batch, range):
        # Its ends show whether all of it fits: a huge range must not be written out first.
        _parse_sequence([*batch[:1], *batch[-1:]], length, argument, of)
        return _wrap(np.fromiter(batch, dtype=np.intp, count=len(batch)), length, argument, of)
    if isinstance(batch, int) and not isinstance(batch, bool):
        return _parse_count(batch, length, argument, of)
    if hasattr(batch, "__array__"):
        return _parse_array(np.asarray(batch), length, argument, of)
    raise ArgumentTypeError(argument, _SELECTIONS, _typed(batch))


def parse_per_rank(
    batch_s: object,
    lengths: Sequence[int],
    argument: str = "batch_s",
    of: str = "the shortest sliceable shared variable",
) -> List[Selection]:
    """Validate a ``batch_s`` argument against the number of rows that each rank has.

    Parameters
    ----------
    batch_s : None, slice, list, tuple, range or integer array
        One selection for all ranks (None for all rows), or a list or tuple
        with one slice, list, tuple, range or array for each rank. A list of
        integers is one selection.
    lengths : sequence of int
        For each rank, the number of rows of its shortest array.
    argument, of : str
        What error messages call the argument, and what has these lengths.

    Returns
    -------
    list of (Rows or Indices)
        The selection of each rank.

    Raises
    ------
    ArgumentTypeError
        If ``batch_s`` is of another type, or mixes integers with selections.
    ArgumentValueError
        If there are not as many selections as ranks, or one does not fit its
        rank.

    Examples
    --------
    >>> parse_per_rank(slice(0, 2), [10, 9])
    [Rows(start=0, stop=2, step=1), Rows(start=0, stop=2, step=1)]
    >>> parse_per_rank([slice(0, 2), [8]], [10, 9])
    [Rows(start=0, stop=2, step=1), Indices(array=array([8]))]
    """
    n_ranks = len(lengths)
    parts: Sequence[object] = [batch_s] * n_ranks
    names = [argument] * n_ranks
    if isinstance(batch_s, (list, tuple)):
        per_rank = [_is_selection(entry) for entry in batch_s]
        if any(per_rank):
            if not all(per_rank):
                raise ArgumentTypeError(
                    argument,
                    "a list of integers for all ranks, or a list with one slice, list or array for each rank",
                    f"both in one list: {batch_s[per_rank.index(False)]!r} among selections",
                )
            if len(batch_s) != n_ranks:
                raise ArgumentValueError(
                    argument,
                    f"one slice, list or array for each of the {n_ranks} ranks, or a single one for all of them",
                    str(len(batch_s)),
                )
            parts = batch_s
            names = [f"{argument}[{rank}]" for rank in range(n_ranks)]
    elif not (batch_s is None or _is_selection(batch_s)):
        raise ArgumentTypeError(
            argument,
            "a slice, a list of integers or an integer array, or a list with one of these for each rank",
            _typed(batch_s),
        )
    return [
        parse(part, length, argument=name, of=f"{of} of rank {rank}")
        for rank, (part, length, name) in enumerate(zip(parts, lengths, names))
    ]


def _typed(value: object) -> str:
    return f"{value!r} of type {type(value).__name__}"


def _is_selection(value: object) -> bool:
    """Return whether ``value`` is what selects rows, and not a number."""
    if isinstance(value, (slice, list, tuple, range)):
        return True
    return hasattr(value, "__array__") and np.ndim(value) > 0


def _parse_count(count: int, length: int, argument: str, of: str) -> Rows:
    if count < 0:
        hint = f"slice({count}, None) selects the last ones"
        raise ArgumentValueError(argument, "a number of rows, 0 or more", str(count), hint)
    if count > length:
        raise ArgumentValueError(argument, f"at most {length} rows, the length of {of}", f"the first {count} rows")
    return Rows(0, count)


def _parse_slice(batch: slice, length: int, argument: str) -> Rows:
    try:
        start, stop, step = batch.indices(length)
    except TypeError:
        raise ArgumentTypeError(argument, "a slice of integers or None", str(batch)) from None
    except ValueError:
        raise ArgumentValueError(argument, "a slice with a step other than 0", str(batch)) from None
    return Rows(start, stop, step)


def _parse_sequence(batch: Sequence[Any], length: int, argument: str, of: str) -> Indices:
    numbers: Sequence[int] = batch
    kinds = set(map(type, batch))
    if any(issubclass(kind, (bool, np.bool_)) for kind in kinds):
        raise ArgumentTypeError(argument, _SELECTIONS, "a list with bools", _FOR_A_MASK)
    if kinds - {int}:
        # NumPy would make floats of [np.uint64(1), -1], and wrap an unsigned integer into a negative one.
        numbers = [_index(entry, argument) for entry in batch]
    try:
        return _wrap(np.array(numbers, dtype=np.intp), length, argument, of)
    except OverflowError:
        index = next(number for number in numbers if not -length <= number < length)
        raise _out_of_range(index, length, argument, of) from None


def _index(entry: Any, argument: str) -> int:
    try:
        return operator.index(entry)
    except TypeError:
        if _is_selection(entry):
            got = f"more than one dimension: a list with the entry {entry!r}"
            raise ArgumentValueError(argument, _SELECTIONS, got) from None
        raise ArgumentTypeError(argument, _SELECTIONS, f"a list with {_typed(entry)}") from None


def _parse_array(batch: NDArray[Any], length: int, argument: str, of: str) -> Selection:
    if batch.dtype.kind not in "iu":
        hint = _FOR_A_MASK if batch.dtype.kind == "b" else None
        raise ArgumentTypeError(argument, _SELECTIONS, f"an array of type {batch.dtype}", hint)
    if batch.ndim == 0:
        return _parse_count(int(batch), length, argument, of)
    if batch.ndim > 1:
        raise ArgumentValueError(argument, _SELECTIONS, f"an array of shape {batch.shape}")
    return _wrap(batch, length, argument, of)


def _wrap(numbers: NDArray[Any], length: int, argument: str, of: str) -> Indices:
    """Copy 1-D integers of any type into indices from 0 on, if all lie in ``[-length, length)``."""
    if len(numbers):
        # Before the cast: a uint64 above 2**63 would become a legal negative index.
        for number in (int(numbers.max()), int(numbers.min())):
            if not -length <= number < length:
                raise _out_of_range(number, length, argument, of)
    indices = np.array(numbers, dtype=np.intp, order="C")
    indices[indices < 0] += length
    indices.flags.writeable = False
    return Indices(indices)


def _out_of_range(index: int, length: int, argument: str, of: str) -> ArgumentValueError:
    return ArgumentValueError(argument, f"indices within {of}, which has length {length}", f"index {index}")
