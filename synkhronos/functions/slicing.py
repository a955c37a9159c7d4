"""One rank's call in slices: the function is called on pieces of its rows, and what comes out is accumulated. Pure."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from ..reduce_op import Accumulator, ReduceOp


class Agreement:
    """Accumulate values that must be the same on every slice: updates of integers, which have no average."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._value: Any = None

    def add(self, value: Any, weight: Any = 1) -> None:
        """Compare the value of the next slice with the first.

        Raises
        ------
        ValueError
            Where they differ.
        """
        if self._value is None:
            self._value = np.array(value)
        elif not np.array_equal(self._value, value):
            raise ValueError("the update of %s has different values on different slices, and integers have no average: "
                             "give the update an op, (shared, expression, 'sum') for example" % self._name)

    def finish(self) -> Tuple[Any, Any]:
        """Return the value, or None if there were no slices."""
        return self._value, None


def in_slices(call: Callable[[int], Sequence[Any]], weights: Sequence[int], output_ops: Sequence[ReduceOp],
              updates: Sequence[Tuple[str, Optional[ReduceOp]]]) -> Tuple[List[Any], List[Any]]:
    """Call a function on every slice of a rank's rows and accumulate its outputs and its updates.

    Updates are computed on every slice from the original values, since nothing is applied here: that is the caller's,
    once, at the end.

    Parameters
    ----------
    call : callable
        From the position of a slice to the outputs, followed by the new values of the updated variables.
    weights : sequence of int
        The rows of every slice.
    output_ops : sequence of ReduceOp
        One per output.
    updates : sequence of (name, ReduceOp or None)
        One per updated variable; slices must agree where the op is None.

    Returns
    -------
    outputs, new_values : list
        In the order of the ops.
    """
    outputs = [Accumulator(op) for op in output_ops]
    news: List[Any] = [Agreement(name) if op is None else Accumulator(op, keep_dtype=True) for name, op in updates]
    for i, weight in enumerate(weights):
        values = call(i)
        for accumulator, value in zip(outputs + news, values):
            accumulator.add(value, weight)
        del values  # or the next slice is computed beside the results of this one
    return [accumulator.finish()[0] for accumulator in outputs], [accumulator.finish()[0] for accumulator in news]
