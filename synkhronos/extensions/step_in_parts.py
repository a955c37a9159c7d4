"""Training steps in three commands (gradients, mean, step), or in two if each rank uses its own gradient."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import theano
import theano.tensor as T

import synkhronos as synk

from .training_graph import TrainingGraph


class StepInParts:
    """A training step in several commands, for the cases that `TrainFunction` lists.

    Gradients are averaged inside ``groups`` (None: over all ranks); groups of one rank need no average. ``of_rows`` are
    keywords of `synkhronos.function` for the gradient function only; ``options`` are keywords for both functions.
    """

    def __init__(
        self, graph: TrainingGraph, groups: Any, name: str, of_rows: Dict[str, Any], options: Dict[str, Any]
    ) -> None:
        self.groups = groups
        self._averaged, self._rows = list(graph.grad_shared), None
        grad_updates: List[Any]
        grad_updates, param_updates = list(graph.grad_updates.items()), list(graph.param_updates.items())
        if groups is not None:
            # Ranks of a group without rows must not take a step, because their gradient is from an earlier call.
            self._rows = theano.shared(theano._asarray(0, theano.config.floatX), f"{name}.rows")
            rows = rows_of(graph.inputs + of_rows["sliceable_shareds"])
            grad_updates.append((self._rows, T.cast(rows, self._rows.dtype), "sum"))
            param_updates = [(shared, T.switch(self._rows > 0, new, shared)) for shared, new in param_updates]
            param_updates.append((self._rows, T.zeros_like(self._rows)))
            self._averaged.append(self._rows)
        self.gradient_fn = synk.function(
            graph.inputs, graph.results(), updates=grad_updates, name=name + " (gradients)", **of_rows, **options
        )
        self.step_fn = synk.function([], updates=param_updates, name=name + " (step)", **options)

    @property
    def last_rows(self) -> Optional[List[int]]:
        rows: Optional[List[int]] = self.gradient_fn.last_rows
        return rows

    def __call__(self, *args: Any, timeout: Optional[float] = None, **kwargs: Any) -> Any:
        """Run one step; arguments, results and errors are those of `TrainFunction`."""
        try:
            results = self.gradient_fn(*args, timeout=timeout, **kwargs)
            if self.groups is None or any(len(group) > 1 for group in self.groups):
                synk.all_reduce(self._averaged, weights=self.gradient_fn, groups=self.groups)
            self.step_fn(timeout=timeout)
        except BaseException:
            if self._rows is not None and synk.is_forked():
                synk.broadcast(self._rows, 0)  # discard gradients that perhaps only some ranks have computed
            raise
        return results


def rows_of(variables: List[Any]) -> Any:
    """Return an expression for the number of a rank's rows in a call; 1 if no input is divided."""
    for variable in variables:
        if getattr(variable, "ndim", 0) and not variable.broadcastable[0]:
            return variable.shape[0]
    return T.constant(1, dtype="int64")
