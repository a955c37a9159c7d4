"""One rank's call in slices: call the function on each slice of the rank's rows, and accumulate the results."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentValueError, prefixed
from ..reductions import Accumulator, ReduceOp


class Agreement:
    """Checks that all slices have the same value, for example of an integer update, which has no average."""

    def __init__(self) -> None:
        self._value: Any = None

    def add(self, value: Any, weight: Any = 1) -> None:
        """Compare the value of the next slice with the first."""
        if self._value is None:
            self._value = np.array(value)
        elif not np.array_equal(self._value, value):
            hint = "integers are not averaged: set an op for the update, for example (shared, expression, 'sum')"
            raise ArgumentValueError("integers", "equal values in all slices", "different values", hint)

    def finish(self) -> Tuple[Any, Any]:
        return self._value, None


class Last:
    """Keeps the value of the last slice: an advanced random state, or an output equal in all slices."""

    def __init__(self) -> None:
        self._value: Any = None

    def add(self, value: Any, weight: Any = 1) -> None:
        self._value = value

    def finish(self) -> Tuple[Any, Any]:
        return self._value, None


#: Used in place of an op: keep the value of the last slice.
LAST: Any = "last"


def in_slices(
    call: Callable[[int], Sequence[Any]],
    weights: Sequence[Sequence[Optional[float]]],
    outputs: Sequence[Tuple[str, ReduceOp]],
    updates: Sequence[Tuple[str, Any]],
    accumulator: Callable[..., Any] = Accumulator,
) -> Tuple[List[Any], List[Any]]:
    """Call a function on every slice of a rank's rows, and accumulate its outputs and updates.

    Every slice computes updates from the original values; the caller applies them once, at the end. ``call(i)`` returns
    the outputs of the i-th slice, then the new values. ``weights[i][k]``: the number of rows of slice i for the k-th of
    these values, or None if the value does not count. A result is None if its value counts in no slice.
    Each item of ``updates`` is a name and an op; the op is `LAST` for the last value, or None if slices must agree.
    """
    names = [name for name, _ in outputs] + ["the update of " + name for name, _ in updates]
    accumulators: List[Any] = [Last() if op.name is None else accumulator(op) for _, op in outputs]
    accumulators += [
        Agreement() if op is None else Last() if op is LAST else accumulator(op, keep_dtype=True) for _, op in updates
    ]
    for i, of_slice in enumerate(weights):
        _add(names, accumulators, call(i), of_slice)
    results = []
    for name, each in zip(names, accumulators):
        with prefixed(f"{name} differs between slices"):
            results.append(each.finish()[0])
    return results[: len(outputs)], results[len(outputs) :]


def _add(
    names: Sequence[str], accumulators: Sequence[Any], values: Sequence[Any], weights: Sequence[Optional[float]]
) -> None:
    """Accumulate a slice's values without keeping references, because the next slice needs the memory."""
    for name, accumulator, value, weight in zip(names, accumulators, values, weights):
        if weight is None:
            continue
        with prefixed(f"{name} differs between slices"):
            accumulator.add(value, weight)
