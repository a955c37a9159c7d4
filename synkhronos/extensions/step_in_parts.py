"""A training step of three commands: gradients, their mean, the step; or of two, along each rank's own gradient."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import theano
import theano.tensor as T

import synkhronos as synk

from .training_graph import TrainingGraph


class StepInParts:
    """What a `TrainFunction` does where a step cannot be one command, as it says.

    Parameters
    ----------
    graph : TrainingGraph
    groups : list of lists of ranks, or None
        Whose gradients are averaged; those of one rank need not be.
    name : str
    of_rows : dict
        Further keywords of `synkhronos.function` for what computes from rows.
    options : dict
        Such for both functions.

    Attributes
    ----------
    gradient_fn, step_fn : synkhronos.Function
    """

    def __init__(
        self, graph: TrainingGraph, groups: Any, name: str, of_rows: Dict[str, Any], options: Dict[str, Any]
    ) -> None:
        self.groups = groups
        self._averaged, self._rows = list(graph.grad_shared), None
        grad_updates: List[Any]
        grad_updates, param_updates = list(graph.grad_updates.items()), list(graph.param_updates.items())
        if groups is not None:
            # Ranks of a group without rows made no call, and must not step: they still have an earlier gradient.
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
        """The rows that each rank took in the last call."""
        rows: Optional[List[int]] = self.gradient_fn.last_rows
        return rows

    def __call__(self, *args: Any, timeout: Optional[float] = None, **kwargs: Any) -> Any:
        """Take one step; parameters, results and errors as those of `TrainFunction`."""
        try:
            results = self.gradient_fn(*args, timeout=timeout, **kwargs)
            if self.groups is None or any(len(group) > 1 for group in self.groups):
                synk.all_reduce(self._averaged, weights=self.gradient_fn, groups=self.groups)
            self.step_fn(timeout=timeout)
        except BaseException:
            if self._rows is not None and synk.is_forked():
                synk.broadcast(self._rows, 0)  # some ranks may have computed gradients, which no step may use
            raise
        return results


def rows_of(variables: List[Any]) -> Any:
    """Return the number of rows that a rank takes in a call, as an expression; 1 if nothing is divided."""
    for variable in variables:
        if getattr(variable, "ndim", 0) and not variable.broadcastable[0]:
            return variable.shape[0]
    return T.constant(1, dtype="int64")
