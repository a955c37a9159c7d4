"""Validated selections of rows for the ``batch`` and ``batch_shared`` arguments.

The master checks the indices and creates an immutable `Selection`; the ranks do not check them again. Every rank
selects the rows of its own part of the selection::

    batch=[7, 0, -1, 3]  --parse-->  Indices([7, 0, 9, 3])  --part-->  [7, 0]  rank 0
                                     (of 10 rows)                      [9, 3]  rank 1
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar, List, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentTypeError, ArgumentValueError
from .kernels import copy as copying
from .kernels.copy import copy_into


def moved(array: Any, source: int, target: int) -> Any:
    """Return a view of an array, on the host or on a device, with one axis moved."""
    order = [axis for axis in range(array.ndim) if axis != source]
    order.insert(target, source)
    return array.transpose(*order)


_SELECTIONS = "an int, a slice, or a list or 1-D array of integers"
_FOR_A_MASK = "np.flatnonzero(mask) gives the indices of a mask"


class RowRange:  # not a frozen dataclass, because every step creates two
    """Selection of rows ``start, start + step, ...`` before ``stop``, as in `range`; `take` returns a view of them.

    It is immutable. ``start`` is not negative. ``stop`` is negative only if a descending range has no lower limit.
    (In a slice, a negative number would count from the end.) An empty selection becomes ``RowRange(0, 0, 1)``.
    """

    __slots__ = ("start", "stop", "step")
    is_view = True  #: Whether `take` returns a view rather than a copy.

    def __init__(self, start: int, stop: int, step: int = 1) -> None:
        if stop <= start if step > 0 else stop >= start:
            # range(-1, -1, -1) is empty, but `take` with these values would return all rows.
            start, stop, step = 0, 0, 1
        self.start, self.stop, self.step = start, stop, step

    def __repr__(self) -> str:
        return f"RowRange(start={self.start}, stop={self.stop}, step={self.step})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowRange):
            return NotImplemented
        return (self.start, self.stop, self.step) == (other.start, other.stop, other.step)

    def __hash__(self) -> int:
        return hash((self.start, self.stop, self.step))

    def __reduce__(self) -> Any:
        return RowRange, (self.start, self.stop, self.step)

    def __len__(self) -> int:
        """Return the number of selected rows."""
        return len(range(self.start, self.stop, self.step))

    @property
    def numbers(self) -> NDArray[np.intp]:
        """The numbers of the selected rows, in order."""
        return np.arange(self.start, self.stop, self.step)

    def part(self, lo: int, hi: int) -> RowRange:
        """Return the part of the selection from position ``lo`` to ``hi - 1``."""
        rows = range(self.start, self.stop, self.step)[lo:hi]
        return RowRange(rows.start, rows.stop, rows.step)

    def take(self, array: NDArray[Any], out: Optional[NDArray[Any]] = None) -> NDArray[Any]:
        """Return the selected rows of ``array`` as a view, or copy them into ``out`` and return ``out``.

        ``array`` must have at least the validated number of rows, and ``out`` must have the shape of the selected rows.
        """
        rows = array[self.start : self.stop if self.stop >= 0 else None : self.step]
        if out is None:
            return rows
        copy_into(out, rows)
        return out


@dataclass(frozen=True, eq=False)
class Indices:
    """Selection of rows by a list of indices; `take` returns a copy of the rows.

    ``array`` is 1-D, C-contiguous, of type `numpy.intp` and without negative numbers, as created by `parse`. It is
    neither checked nor copied here, because it may be in shared memory.
    """

    array: NDArray[np.intp]
    is_view: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.array)

    @property
    def numbers(self) -> NDArray[np.intp]:
        return self.array

    def part(self, lo: int, hi: int) -> Indices:
        return Indices(self.array[lo:hi])

    def take(self, array: NDArray[Any], out: Optional[NDArray[Any]] = None) -> NDArray[Any]:
        """Return a copy of the selected rows of ``array``, written to ``out`` (of equal shape and dtype) if passed."""
        rows: NDArray[Any]
        if array.flags.c_contiguous and array.flags.aligned:
            rows = np.empty((len(self.array), *array.shape[1:]), array.dtype) if out is None else out
            if not rows.flags.c_contiguous:
                rows[...] = array[self.array]
            elif copying.kernels and 32 * array.nbytes >= copying.CACHE_BYTES and array.dtype.kind in "biufc":
                copying.kernels.take(rows, array, self.array)  # prefetches later rows
            else:
                # Mode "clip" changes no valid index; it prevents NumPy from buffering, which would double the time.
                array.take(self.array, 0, rows, "clip")
            return rows
        rows = np.asarray(array[self.array])  # np.take would copy the whole array first
        if out is None:
            return rows
        np.copyto(out, rows)
        return out


Selection = Union[RowRange, Indices]


def parse(batch: object, length: int, argument: str = "batch", of: str = "the shortest scattered input") -> Selection:
    """Validate a ``batch`` argument for ``length`` rows, and return the selection.

    ``batch`` is None for all rows, an int ``n`` for the first ``n`` rows, a slice as in NumPy, or a list, tuple, range
    or 1-D array of integers. Slices may extend past the end. Negative indices count from the end; ``n`` must be >= 0.
    ``argument`` and ``of`` are the names of the argument and of the shortest array in messages.

    Examples
    --------
    >>> parse(slice(None, None, -2), length=10)
    RowRange(start=9, stop=-1, step=-2)
    >>> parse([0, -1], length=10)
    Indices(array=array([0, 9]))
    """
    if batch is None:
        return RowRange(0, length)
    if isinstance(batch, slice):
        return _parse_slice(batch, length, argument)
    if isinstance(batch, (list, tuple)):
        return _parse_sequence(batch, length, argument, of)
    if isinstance(batch, range):
        # Both ends of a range are checked before it is expanded, because it may be huge.
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
    argument: str = "batch_shared",
    of: str = "the shortest sliceable shared variable",
) -> List[Selection]:
    """Validate a ``batch_shared`` argument against each rank's number of rows; return one selection per rank.

    ``batch_s`` is None for all rows, one selection for all ranks (such as a list of integers), or a list or tuple with
    one selection per rank. Raises the errors of `parse`.
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
                    f"a list that mixes both: {batch_s[per_rank.index(False)]!r} among selections",
                )
            if len(batch_s) != n_ranks:
                raise ArgumentValueError(
                    argument,
                    f"one slice, list or array for each rank ({n_ranks} in all), or a single one for all ranks",
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
    """Return whether ``value`` is a selection of rows rather than a number."""
    if isinstance(value, (slice, list, tuple, range)):
        return True
    return hasattr(value, "__array__") and np.ndim(value) > 0


def _parse_count(count: int, length: int, argument: str, of: str) -> RowRange:
    if count < 0:
        hint = f"slice({count}, None) selects the last rows"
        raise ArgumentValueError(argument, "a number of rows, 0 or more", str(count), hint)
    if count > length:
        raise ArgumentValueError(argument, f"at most {length}, the length of {of}", str(count))
    return RowRange(0, count)


def _parse_slice(batch: slice, length: int, argument: str) -> RowRange:
    try:
        start, stop, step = batch.indices(length)
    except TypeError:
        raise ArgumentTypeError(argument, "a slice of integers or None", str(batch)) from None
    except ValueError:
        raise ArgumentValueError(argument, "a slice with a step other than 0", str(batch)) from None
    return RowRange(start, stop, step)


def _parse_sequence(batch: Sequence[Any], length: int, argument: str, of: str) -> Indices:
    numbers: Sequence[int] = batch
    kinds = set(map(type, batch))
    if any(issubclass(kind, (bool, np.bool_)) for kind in kinds):
        raise ArgumentTypeError(argument, _SELECTIONS, "a list with bools", _FOR_A_MASK)
    if kinds - {int}:
        # NumPy would silently truncate floats: np.array([1.5, 2], dtype=np.intp) is [1, 2].
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
    """Return 1-D integers of any type as non-negative indices; raise if any is outside ``[-length, length)``."""
    if len(numbers):
        # Checked before the cast, which could turn a uint64 above 2**63 into a valid negative index.
        for number in (int(numbers.max()), int(numbers.min())):
            if not -length <= number < length:
                raise _out_of_range(number, length, argument, of)
    indices = np.array(numbers, dtype=np.intp, order="C")
    indices[indices < 0] += length
    indices.flags.writeable = False
    return Indices(indices)


def _out_of_range(index: int, length: int, argument: str, of: str) -> ArgumentValueError:
    return ArgumentValueError(argument, f"indices within {of}, which has length {length}", f"index {index}")
