"""Constant entries of indices into arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np

if TYPE_CHECKING:
    from .lengths import Lengths


def number(lengths: Lengths, entry: Any) -> Any:
    """Return a constant index entry as a number, or None for a missing end; raise LookupError if it is not constant."""
    if entry is None or isinstance(entry, (int, np.integer)):
        return entry
    if isinstance(entry, lengths.classes.Constant):
        return None if entry.data is None else int(entry.data)
    found = lengths.length(entry)
    if found.factors:
        raise LookupError
    return found.number


def constant_index(lengths: Lengths, node: Any, first: int) -> Any:
    """Return a constant index into a vector; None for any other index. Index inputs follow the input at ``first``."""
    try:
        (entry,) = lengths.classes.get_idx_list(node.inputs[first:], node.op.idx_list)
        if isinstance(entry, slice):
            return slice(*[number(lengths, end) for end in (entry.start, entry.stop, entry.step)])
        return number(lengths, entry)
    except LookupError:
        return None


def how_many_less(lengths: Lengths, entry: Any) -> Optional[int]:
    """Return how many elements a slice omits at its ends in total; None if unknown or dependent on the length."""
    if not isinstance(entry, slice):
        return None
    try:
        start, stop, step = (number(lengths, end) for end in (entry.start, entry.stop, entry.step))
    except LookupError:
        return None
    start = start or 0
    if step == -1 and entry.start is None and entry.stop is None:
        return 0
    if start < 0 or stop is not None and stop >= 0 or step not in (None, 1):
        return None
    return int(start - (stop or 0))


def is_all(lengths: Lengths, entry: Any) -> bool:
    """Return whether an index entry selects a whole axis in order."""
    return how_many_less(lengths, entry) == 0 and number(lengths, entry.step) != -1
