"""Serial equivalent of the training function, in one process with Theano alone."""

from __future__ import annotations

from typing import Any, Callable, Dict, Sequence

import numpy as np
import theano
import theano.tensor as T

from synkhronos.errors import ArgumentTypeError, ArgumentValueError
from synkhronos.extending import one_of, parse_batch


def mean_of(results: Sequence[Any], rows: Sequence[int]) -> Any:
    """Return the mean of results by rows, in double precision, independently of the library's mean, to validate it."""
    counted = [i for i, n in enumerate(rows) if n] or range(len(rows))
    stack = np.stack([results[i] for i in counted])
    weights = np.array([rows[i] or 1 for i in counted], np.float64)
    weights /= weights.max()  # first, because the sum of huge weights (in tests) would overflow
    weights /= weights.sum()
    with np.errstate(all="ignore"):
        mean = np.tensordot(weights, stack.astype(np.float64), 1)
        return np.clip(mean, stack.min(axis=0), stack.max(axis=0)).astype(stack.dtype)


#: By op: the function that combines the results of several slices, given the row count of each slice.
COMBINE: Dict[str, Callable[[Sequence[Any], Sequence[int]], Any]] = {
    "avg": mean_of,
    "sum": lambda results, rows: np.sum(results, axis=0),
    "prod": lambda results, rows: np.prod(results, axis=0),
    "min": lambda results, rows: np.min(results, axis=0),
    "max": lambda results, rows: np.max(results, axis=0),
    "gather": lambda results, rows: np.concatenate([np.atleast_1d(result) for result in results]),
}


class TheanoTrainFunction:
    """A serial training step; ``params``, ``state`` and ``grad_shared`` are as in `train_function.TrainFunction`."""

    def __init__(
        self, graph: Any, bcast_inputs: Any, givens: Any, sliceable_shareds: Any, name: str, options: Any
    ) -> None:
        self.params, self.state, self.grad_shared = graph.params, graph.state, graph.grad_shared
        ops = [op[2:] if op and op.startswith("c_") else op for _, op in graph.outputs]
        self._ops = ops + ["avg"] * len(graph.grad_shared)
        self._inputs, self._n_inputs = graph.inputs, len(graph.inputs) + len(bcast_inputs)
        self._sliceable = sliceable_shareds
        expressions = [output for output, _ in graph.outputs] + list(graph.grad_updates.values())
        inputs = graph.inputs + bcast_inputs
        if givens:
            expressions = theano.clone(expressions, replace=dict(givens))
        if sliceable_shareds:
            rows = T.lvector("rows of the sliceable shared variables")
            inputs = inputs + [rows]
            expressions = theano.clone(expressions, replace=[(shared, shared[rows]) for shared in sliceable_shareds])
        # Gradients are outputs, not updates, because the gradients of several slices are averaged before the step.
        self.gradient_fn = theano.function(inputs, expressions, name=name + " (gradients)", **options)
        self.step_fn = theano.function([], updates=graph.param_updates, name=name + " (step)", **options)

    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        batch_shared: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        timeout: Any = None,
    ) -> Any:
        if len(args) != self._n_inputs:
            raise ArgumentTypeError("args", f"one argument per input ({self._n_inputs} in total)", str(len(args)))
        arrays = [variable.type.filter(arg) for arg, variable in zip(args, self._inputs)]  # converts as Theano does
        divided = [i for i, variable in enumerate(self._inputs) if variable.ndim and not variable.broadcastable[0]]
        whole = list(args[len(self._inputs) :])
        if batch is not None and divided:
            rows = parse_batch(batch, min(len(arrays[i]) for i in divided))
            for i in divided:
                arrays[i] = rows.take(arrays[i])
        chosen = self._chosen(one_of("batch_shared", batch_shared, "batch_s", batch_s)) if self._sliceable else None
        n_rows = len(arrays[divided[0]]) if divided else None if chosen is None else len(chosen)
        if num_slices < 1 or num_slices > 1 and n_rows is None:
            expected = "at least 1" if num_slices < 1 else "1, because there are no rows"
            raise ArgumentValueError("num_slices", expected, str(num_slices))
        num_slices = max(1, min(num_slices, n_rows or 0))
        if num_slices > 1 and None in self._ops:
            expected = f"1, because outputs[{self._ops.index(None) - 1}] has op None, which combines no results"
            raise ArgumentValueError("num_slices", expected, str(num_slices))
        results, weights = [], []
        for rows in np.array_split(np.arange(n_rows or 0), num_slices):
            piece = slice(rows[0], rows[-1] + 1) if len(rows) else slice(0)
            given = [array[piece] if i in divided else array for i, array in enumerate(arrays)] + whole
            results.append(self.gradient_fn(*given, *([] if chosen is None else [chosen[piece]])))
            weights.append(len(rows) if n_rows is not None else 1)
        n_outputs = len(self._ops) - len(self.grad_shared)
        combined = [_combined(op, each, weights) for op, each in zip(self._ops, zip(*results))]
        for shared, gradient in zip(self.grad_shared, combined[n_outputs:]):
            shared.set_value(gradient)
        self.step_fn()
        return combined[:n_outputs] if n_outputs > 1 else combined[0]

    def _chosen(self, batch_s: Any) -> Any:
        rows = np.arange(len(self._sliceable[0].get_value(borrow=True)))
        if isinstance(batch_s, (list, tuple)) and len(batch_s) == 1 and not isinstance(batch_s[0], (int, np.integer)):
            batch_s = batch_s[0]  # a list of selections by rank, here for one rank
        return rows if batch_s is None else rows[batch_s]


def _combined(op: Any, results: Sequence[Any], rows: Sequence[int]) -> Any:
    if op is None or len(results) == 1 and op != "gather":
        return results[0]
    return np.asarray(COMBINE[op](results, rows), results[0].dtype)
