"""What an index into a Theano array is, as far as the graph tells it."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from theano.gof import Constant
from theano.tensor import basic, subtensor
from theano.tensor.elemwise import DimShuffle


def _number(entry: Any) -> Any:
    """Return an entry as a number; None for an end that is not given, LookupError for what is not constant."""
    if entry is None or isinstance(entry, (int, np.integer)):
        return entry
    while entry.owner is not None and isinstance(
        entry.owner.op, (basic.TensorFromScalar, basic.ScalarFromTensor, DimShuffle)
    ):
        entry = entry.owner.inputs[0]
    if not isinstance(entry, Constant):
        raise LookupError
    return None if entry.data is None else int(entry.data)


def constant_index(node: Any) -> Any:
    """Return the index of a vector if it is constant; None if not."""
    try:
        (entry,) = subtensor.get_idx_list(node.inputs, node.op.idx_list)
        if isinstance(entry, slice):
            return slice(_number(entry.start), _number(entry.stop), _number(entry.step))
        return _number(entry)
    except LookupError:
        return None


def how_many_less(entry: Any) -> Optional[int]:
    """Return how many elements a slice leaves out at both ends together; None if that depends on the length."""
    if not isinstance(entry, slice):
        return None
    try:
        start, stop, step = _number(entry.start) or 0, _number(entry.stop), _number(entry.step)
    except LookupError:
        return None
    if step == -1 and entry.start is None and entry.stop is None:
        return 0
    if start < 0 or stop is not None and stop >= 0 or step not in (None, 1):
        return None
    return start - (stop or 0)


def is_all(entry: Any) -> bool:
    """Return whether an entry of an index takes an axis as it is."""
    return how_many_less(entry) == 0 and _number(entry.step) != -1
