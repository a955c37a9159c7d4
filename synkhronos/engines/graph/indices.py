"""What an index into an array is, as far as the graph tells it."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .classes import Classes


def number(classes: Classes, entry: Any) -> Any:
    """Return an entry as a number; None for an end that is not given, LookupError for what is not constant."""
    if entry is None or isinstance(entry, (int, np.integer)):
        return entry
    while entry.owner is not None and isinstance(
        entry.owner.op, (classes.TensorFromScalar, classes.ScalarFromTensor, classes.DimShuffle)
    ):
        entry = entry.owner.inputs[0]
    if not isinstance(entry, classes.Constant):
        raise LookupError
    return None if entry.data is None else int(entry.data)


def constant_index(classes: Classes, node: Any) -> Any:
    """Return the index of a vector if it is constant; None if not."""
    try:
        (entry,) = classes.get_idx_list(node.inputs, node.op.idx_list)
        if isinstance(entry, slice):
            return slice(*[number(classes, end) for end in (entry.start, entry.stop, entry.step)])
        return number(classes, entry)
    except LookupError:
        return None


def how_many_less(classes: Classes, entry: Any) -> Optional[int]:
    """Return how many elements a slice leaves out at both ends together; None if that depends on the length."""
    if not isinstance(entry, slice):
        return None
    try:
        start, stop, step = (number(classes, end) for end in (entry.start, entry.stop, entry.step))
    except LookupError:
        return None
    start = start or 0
    if step == -1 and entry.start is None and entry.stop is None:
        return 0
    if start < 0 or stop is not None and stop >= 0 or step not in (None, 1):
        return None
    return int(start - (stop or 0))


def is_all(classes: Classes, entry: Any) -> bool:
    """Return whether an entry of an index takes an axis as it is."""
    return how_many_less(classes, entry) == 0 and number(classes, entry.step) != -1
