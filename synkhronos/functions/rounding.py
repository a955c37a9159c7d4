"""Where two values of one thing differ by more than rounding. Pure.

Sums over the rows of all ranks are added in another order than in the serial program. Half of the digits may be lost
to that: two arrays differ if some elements are further apart than ``sqrt(eps)`` times the largest magnitude of the
array, and 16 ``eps`` (times that magnitude, if it is larger than 1). ``eps`` is that of the coarsest type in the
function: 3e-4 and 2e-6 in a function of float32, 1.5e-8 and 4e-15 in one of float64. Integers and booleans differ if
they are not equal; NaN is equal to NaN.
"""

from __future__ import annotations

from typing import Any, Iterable, NamedTuple, Optional, Tuple

import numpy as np


class Deviation(NamedTuple):
    """Two values that differ.

    Attributes
    ----------
    place : str
        Where they differ most: " at index (2, 0)" of an array, "" of a single number or if the shapes differ.
    value, other
        The two numbers there, or shapes.
    """

    place: str
    value: Any
    other: Any


def coarsest(dtypes: Iterable[Any]) -> float:
    """Return the eps of the coarsest floating type among some dtypes; that of float64 if there is none.

    Examples
    --------
    >>> coarsest([np.dtype("float64"), np.dtype("float32"), np.dtype("int8")]) == float(np.finfo("float32").eps)
    True
    """
    found = [float(np.finfo(dtype).eps) for dtype in dtypes if dtype.kind in "fc"]
    return max(found, default=float(np.finfo(np.float64).eps))


def deviation(value: Any, other: Any, eps: float, before: Optional[Any] = None) -> Optional[Deviation]:
    """Return where a value differs most from another one by more than rounding; None if it does not.

    Parameters
    ----------
    value, other : array
    eps : float
        From `coarsest`.
    before : array, optional
        What an update has made ``other`` of: the largest change then counts, not the largest magnitude.

    Examples
    --------
    >>> deviation(np.array([1., 2.]), np.array([1., 2.5]), 1e-16)
    Deviation(place=' at index (1,)', value=2.0, other=2.5)
    >>> deviation(np.array(1.), np.array(1. + 1e-10), 1e-16)
    >>> deviation(np.array(1.), np.array(1. + 1e-10), 1e-16, before=np.array(1.))
    Deviation(place='', value=1.0, other=1.0000000001)
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
    """Return the largest finite magnitude."""
    magnitudes = np.abs(array)
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def shown(number: Any) -> str:
    """Return a number, or a shape, as messages show it.

    Examples
    --------
    >>> shown(0.1 + 0.2), shown(3), shown((2, 1))
    ('0.3', '3', 'shape (2, 1)')
    """
    if isinstance(number, tuple):
        return f"shape {number}"
    return f"{number:.8g}" if isinstance(number, float) else str(number)


def pair(found: Deviation) -> Tuple[str, str]:
    """Return both numbers as messages show them: with as many digits as it takes to see that they differ.

    Examples
    --------
    >>> pair(Deviation("", 1.0, 1.5)), pair(Deviation("", 1.0, 1.0 + 1e-12))
    (('1', '1.5'), ('1.0', '1.000000000001'))
    """
    both = shown(found.value), shown(found.other)
    return (repr(found.value), repr(found.other)) if both[0] == both[1] else both
