"""Every rank's values of shared variables: gather them, set them, and compare them up to rounding error.

Changing the order of summation over the rows of all ranks can cost half of the digits. Arrays differ if elements are
further apart than ``sqrt(eps) * m + 16 * eps * max(1, m)``; ``m`` is the expected array's largest magnitude. ``eps`` is
the machine epsilon of the function's least precise type. The two factors are 3e-4 and 2e-6 for float32, 1.5e-8 and
4e-15 for float64. Integers and booleans must be equal; NaN equals NaN.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.registry import Origin
from ..runtime.session import Session


class GatherValues(Command):
    """Gather every rank's values of dense variables on the master."""

    title = "values of shared variables"

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> Optional[List[List[np.ndarray[Any, Any]]]]:
        gathered = context.transport.gather(*context.bind(self.numbers))
        return None if gathered is None else [[np.array(part) for part in parts] for parts in gathered]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]


def values_by_rank(session: Session, numbers: Sequence[int]) -> List[List[np.ndarray[Any, Any]]]:
    """Return the values of each variable by rank, without changing them."""
    found: List[List[np.ndarray[Any, Any]]] = session.run(GatherValues(list(numbers))) if numbers else []
    return found


class SetValues(Command):
    """Set every rank's values of dense variables; ``handles[i][rank]`` locates a rank's value of variable i."""

    title = "setting values of shared variables"

    def __init__(self, numbers: List[int], handles: List[List[Any]]) -> None:
        self.numbers, self.handles = numbers, handles

    def run(self, context: RankContext) -> None:
        entries = context.entries(self.numbers)
        values = [np.array(context.pools.attach(handles[context.rank])) for handles in self.handles]
        news = [entry.engine.to_device(entry.reference(), value) for entry, value in zip(entries, values)]

        def change() -> None:
            for entry, new in zip(entries, news):
                entry.set(new, Origin.UNDONE)

        context.transaction.protect(entries)
        context.transaction.commit(change)


@contextmanager
def preserve_values(session: Session, numbers: Sequence[int]) -> Iterator[None]:
    """On exit, restore the values that the variables had on every rank on entry, unless the session is closed."""
    values = values_by_rank(session, numbers)
    try:
        yield
    finally:
        if numbers and not session.closed:
            send_rank_values(session, numbers, values)


def send_rank_values(session: Session, numbers: Sequence[int], values: Sequence[Sequence[Any]]) -> None:
    """Set the i-th variable to ``values[i][rank]`` on every rank."""
    kept = [[_in_pool(session, value) for value in parts] for parts in values]
    handles = [[session.pool.handle(array) for array in arrays] for arrays in kept]
    session.run(SetValues(list(numbers), handles))


def _in_pool(session: Session, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy a value into memory that every rank can read; return the copy."""
    array = session.pool.allocate(value.shape, value.dtype)
    np.copyto(array, value)
    return array


class Deviation(NamedTuple):
    """The place of the largest difference between arrays, such as " at index (2, 0)", and both numbers (or shapes)."""

    place: str
    value: Any
    other: Any


def coarsest(dtypes: Iterable[Any]) -> float:
    """Return the eps of the least precise floating-point type among the dtypes; if there is none, of float64."""
    found = [float(np.finfo(dtype).eps) for dtype in dtypes if dtype.kind in "fc"]
    return max(found, default=float(np.finfo(np.float64).eps))


def deviation(value: Any, other: Any, eps: float, before: Optional[Any] = None) -> Optional[Deviation]:
    """Return the largest difference between arrays if it exceeds rounding error (with the `coarsest` eps), else None.

    If an update changed the value ``before`` to ``other``, the largest change replaces ``m`` in the first term.

    Examples
    --------
    >>> deviation(np.array([1., 2.]), np.array([1., 2.5]), 1e-16)
    Deviation(place=' at index (1,)', value=2.0, other=2.5)
    >>> deviation(np.array(1.), np.array(1. + 1e-10), 1e-16)
    """
    value, other = np.asarray(value), np.asarray(other)
    if value.shape != other.shape:
        return Deviation("", value.shape, other.shape)
    with np.errstate(all="ignore"):
        equal = (value == other) | (value != value) & (other != other)
        if equal.all():
            return None
        if {value.dtype.kind, other.dtype.kind} <= set("biu"):
            apart, allowed = np.where(equal, 0.0, np.abs(value.astype(float) - other.astype(float)) + 1), 0.0
        else:
            apart = np.where(equal, 0.0, np.nan_to_num(np.abs(value - other), nan=np.inf, posinf=np.inf))
            largest = _largest(other)
            scale = largest if before is None or before.shape != other.shape else _largest(other - before)
            allowed = np.sqrt(eps) * scale + 16 * eps * max(1.0, largest)
    index = np.unravel_index(int(apart.argmax()), apart.shape)
    if not apart[index] > allowed:
        return None
    return Deviation(f" at index {tuple(map(int, index))}" if index else "", value[index].item(), other[index].item())


def _largest(array: Any) -> float:
    """Return the largest finite magnitude in an array; 0 if there is none."""
    magnitudes = np.abs(array)
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def shown(number: Any) -> str:
    """Return a number or shape as text for messages."""
    if isinstance(number, tuple):
        return f"shape {number}"
    return f"{number:.8g}" if isinstance(number, float) else str(number)


def pair(found: Deviation) -> Tuple[str, str]:
    """Return both numbers as text, with enough digits to show that they differ: '1.0' and '1.000000000001'."""
    both = shown(found.value), shown(found.other)
    return (repr(found.value), repr(found.other)) if both[0] == both[1] else both
