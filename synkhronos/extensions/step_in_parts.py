"""A training step of three commands: gradients, their mean, the step; or of two, with their mean only now and then."""

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
    communicate_every : int
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
        self, graph: TrainingGraph, communicate_every: int, name: str, of_rows: Dict[str, Any], options: Dict[str, Any]
    ) -> None:
        self.graph, self.communicate_every = graph, communicate_every
        self._calls = 0  # since ranks last communicated
        grad_updates: List[Any]
        grad_updates, param_updates = list(graph.grad_updates.items()), list(graph.param_updates.items())
        if communicate_every > 1:
            self._rows, self._total = (theano.shared(0, f"{name}.{what}") for what in ("rows", "rows in all"))
            rows = rows_of(graph.inputs + of_rows["sliceable_shareds"])
            grad_updates.append((self._rows, rows, "sum"))
            # A rank without rows made no call, and must not step: it still has an earlier gradient.
            param_updates = [(shared, T.switch(self._rows > 0, new, shared)) for shared, new in param_updates]
            param_updates += [(self._total, self._total + self._rows), (self._rows, T.zeros_like(self._rows))]
        self.gradient_fn = synk.function(
            graph.inputs, graph.results(), updates=grad_updates, name=name + " (gradients)", **of_rows, **options
        )
        self.step_fn = synk.function([], updates=param_updates, name=name + " (step)", **options)

    def __call__(self, *args: Any, timeout: Optional[float] = None, **kwargs: Any) -> Any:
        """Take one step; parameters, results and errors as those of `TrainFunction`."""
        try:
            results = self.gradient_fn(*args, timeout=timeout, **kwargs)
        except Exception:
            if self.communicate_every > 1 and synk.is_forked():
                synk.broadcast(self._rows, 0)  # some ranks may have computed gradients, which no step may use
            raise
        if self.communicate_every == 1:
            synk.all_reduce(self.graph.grad_shared, weights=self.gradient_fn)
        self.step_fn(timeout=timeout)
        self._calls += 1
        if 1 < self.communicate_every <= self._calls:
            self.average()
        return results

    def average(self) -> None:
        """Average parameters and the rule's floating-point state over the ranks; see `TrainFunction.average`."""
        if self.communicate_every > 1 and self._calls:
            totals = [int(total) for total in synk.gather(self._total)]
            if any(totals):
                floats = [shared for shared in self.graph.params + self.graph.state if shared.dtype in T.float_dtypes]
                synk.all_reduce(floats, weights=totals)
            synk.broadcast(self._total, 0)
        self._calls = 0


def rows_of(variables: List[Any]) -> Any:
    """Return the number of rows that a rank takes in a call, as an expression; 1 if nothing is divided."""
    for variable in variables:
        if getattr(variable, "ndim", 0) and not variable.broadcastable[0]:
            return variable.shape[0]
    return T.constant(1, dtype="int64")
