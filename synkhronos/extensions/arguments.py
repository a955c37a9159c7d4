"""Validation of numbers and choices among the arguments of extensions."""

from __future__ import annotations

import math
import numbers
from typing import Any, Callable

from synkhronos.errors import ArgumentTypeError, ArgumentValueError


def whole(name: str, value: Any, least: int) -> int:
    """Return an argument as an int of at least ``least``; raise `TypeError` or `ValueError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentTypeError(name, "an int", f"{value!r} of type {type(value).__name__}")
    if value < least:
        raise ArgumentValueError(name, f"at least {least}", str(value))
    return int(value)


def real(name: str, value: Any, expected: str, is_right: Callable[[float], bool]) -> float:
    """Return an argument as a finite float that satisfies ``is_right``; raise `TypeError` or `ValueError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentTypeError(name, "a number", f"{value!r} of type {type(value).__name__}")
    try:
        found = float(value)
    except OverflowError:  # from a huge int or fraction
        found = math.inf
    if not math.isfinite(found) or not is_right(found):
        raise ArgumentValueError(name, expected, str(value))
    return found


def choice(name: str, value: Any, *known: str) -> Any:
    """Return an argument that must be one of the known values; raise `ValueError` otherwise."""
    if value not in list(known):  # a list, because the value may be unhashable
        raise ArgumentValueError(name, " or ".join(map(repr, known)), repr(value))
    return value
