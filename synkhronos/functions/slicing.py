"""One rank's call in slices: the function is called on pieces of its rows, and what comes out is accumulated. Pure."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentValueError, prefixed
from ..reductions import Accumulator, ReduceOp


class Agreement:
    """Accumulate values that must be the same on every slice: updates of integers, which have no average."""

    def __init__(self) -> None:
        self._value: Any = None

    def add(self, value: Any, weight: Any = 1) -> None:
        """Compare the value of the next slice with the first.

        Raises
        ------
        ValueError
            If they differ.
        """
        if self._value is None:
            self._value = np.array(value)
        elif not np.array_equal(self._value, value):
            hint = "they have no average: give the update an op, (shared, expression, 'sum') for example"
            raise ArgumentValueError("integers", "the same in all slices", "others", hint)

    def finish(self) -> Tuple[Any, Any]:
        """Return the value, or None if there were no slices."""
        return self._value, None


class Last:
    """Keep the value of the last slice: a random state, which has advanced, or an output that is the same in all."""

    def __init__(self) -> None:
        self._value: Any = None

    def add(self, value: Any, weight: Any = 1) -> None:
        """Take the value of the next slice."""
        self._value = value

    def finish(self) -> Tuple[Any, Any]:
        """Return the value, or None if there were no slices."""
        return self._value, None


#: In place of an op: the value of the last slice.
LAST: Any = "last"


def in_slices(
    call: Callable[[int], Sequence[Any]],
    weights: Sequence[Sequence[Optional[float]]],
    outputs: Sequence[Tuple[str, ReduceOp]],
    updates: Sequence[Tuple[str, Any]],
    accumulator: Callable[..., Any] = Accumulator,
) -> Tuple[List[Any], List[Any]]:
    """Call a function on every slice of a rank's rows and accumulate its outputs and its updates.

    Updates are computed on every slice from the original values, since nothing is applied here: that is the caller's,
    once, at the end.

    Parameters
    ----------
    call : callable
        From the position of a slice to the outputs, followed by the new values of the updated variables.
    weights : sequence of sequence of (float or None)
        By slice, what every value weighs: the rows of the slice; None if the value does not count.
    outputs : sequence of (name, ReduceOp)
        How messages name every output, and its op.
    updates : sequence of (name, ReduceOp, None or `LAST`)
        The same of every updated variable; slices must agree if the op is None.
    accumulator : callable
        Makes what accumulates the values of one output or update; see `Accumulator`.

    Returns
    -------
    outputs, new_values : list
        In the order of the names; None if no slice counts.

    Raises
    ------
    ValueError
        If the results of slices cannot be combined; names the output or variable.
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
    """Add the values of a slice. When this returns nothing refers to them: the next slice needs the memory."""
    for name, accumulator, value, weight in zip(names, accumulators, values, weights):
        if weight is None:
            continue
        with prefixed(f"{name} differs between slices"):
            accumulator.add(value, weight)
