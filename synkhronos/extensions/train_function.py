"""Training steps on all ranks, called like one function (`TrainFunction`)."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, List, Optional

import theano
import theano.tensor as T
from theano.compile.function_module import convert_function_input

import synkhronos as synk
from synkhronos.errors import ArgumentValueError

from .rules import LocalSGD
from .shared_variables import floats
from .training_graph import TrainingGraph


class TrainFunction:
    """A training step on all ranks, built by `make_train_function`.

    ::

            function      rows -- gradients -- all_reduce -- step          one command
            in parts      rows -- gradient_fn -- grad_shared -- synkhronos.all_reduce -- grad_shared -- step_fn

    A step runs in parts if it cannot be one command:

    * in slices, because, for example, Adam's step for the mean gradient is not the mean of the slices' steps;
    * with groups;
    * with ``communicate_every`` above 1, because either all ranks must take a step, or none;
    * if the rule's step reads a variable that ``givens`` replaces, such as a parameter.

    Unless ``communicate_every`` is 1, neither form contains an all_reduce.

    Attributes
    ----------
    function : synkhronos.Function or None
        The whole step as one function; None if all steps run in parts.
    gradient_fn, step_fn : synkhronos.Function
        The two functions of a step in parts, for the gradients and for the update; compiled when first needed.
    grad_shared : list of shared variables
        The gradients. A step in one command updates a gradient only if the gradient's own expression reads it.
    params, state : list of shared variables
        The parameters and the state of the update rule, which belong in a checkpoint.
    communicate_every, groups
        As for `make_train_function`; if ``communicate_every`` is not 1, each rank is a separate group.
    rule : LocalSGD or None
        The rule that averages parameters and state if ``communicate_every`` is above 1; otherwise, None.
    """

    def __init__(
        self, graph: TrainingGraph, of_rows: Any, communicate_every: int, groups: Any, name: str, options: Any
    ) -> None:
        self.params, self.state, self.grad_shared = graph.params, graph.state, graph.grad_shared
        self.communicate_every = communicate_every
        self.groups = [[rank] for rank in range(synk.size())] if communicate_every != 1 else groups
        self._rows: Any = None
        if self.groups is not None:
            options = dict(options, exact=False)  # groups' gradients stay separate, even after `fork(exact=True)`
            # Ranks of a group without rows must not take a step, because their gradient is from an earlier call.
            self._rows = theano.shared(theano._asarray(0, theano.config.floatX), f"{name}.rows")
        self._graph, self._of_rows, self._name, self._options = graph, of_rows, name, dict(options)
        self._replaced = graph.read_by_step(of_rows["givens"])
        self.function: Optional[synk.Function] = None
        if communicate_every <= 1 and groups is None and not self._replaced:
            updates = graph.updates_in_one(synk.ops.all_reduce if communicate_every else list)
            self.function = synk.function(
                graph.inputs, graph.results(), updates=updates, name=name, **of_rows, **options
            )
            of_rows["bcast_inputs"] = [_with_value_of(self.function, given) for given in of_rows["bcast_inputs"]]
            self._last = self.function
        else:
            self._last, _ = self.gradient_fn, self.step_fn  # compile both now, so that errors are reported early
        self._rule = self._local_sgd() if communicate_every > 1 else None

    @cached_property
    def gradient_fn(self) -> synk.Function:
        graph = self._graph
        updates: List[Any] = list(graph.grad_updates.items())
        if self._rows is not None:
            rows = rows_of(graph.inputs + self._of_rows["sliceable_shareds"])
            updates.append((self._rows, T.cast(rows, self._rows.dtype), "sum"))
        name = self._name + " (gradients)"
        return synk.function(
            graph.inputs, graph.results(), updates=updates, name=name, **self._of_rows, **self._options
        )

    @cached_property
    def step_fn(self) -> synk.Function:
        updates = list(self._graph.param_updates.items())
        if self._rows is not None:
            updates = [(shared, T.switch(self._rows > 0, new, shared)) for shared, new in updates]
            updates.append((self._rows, T.zeros_like(self._rows)))
        return synk.function([], updates=updates, name=self._name + " (step)", **self._options)

    @property
    def rule(self) -> Optional[LocalSGD]:
        if self._rule is not None and not self._rule.is_open and synk.is_forked():  # continue in a new session
            counters = dict(self._rule.counters, rows=[])
            self._rule = self._local_sgd()
            self._rule.counters = counters
        return self._rule

    def _local_sgd(self) -> LocalSGD:
        return LocalSGD(self.gradient_fn, self.params, floats(self.state), self.communicate_every)

    @property
    def last_rows(self) -> Optional[List[int]]:
        """Number of rows by rank in the last call, or in all steps of the last `steps` call; None before any call."""
        return self._last.last_rows

    def __repr__(self) -> str:
        return f"<TrainFunction: n_params={len(self.params)}, {self.function or self.gradient_fn!r}>"

    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        batch_shared: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        timeout: Optional[float] = None,
        **kwargs: Any,
    ) -> Any:
        """Run one training step on all ranks.

        Parameters
        ----------
        *args, **kwargs
            One value per input, by position (``x``, ``y``, ``bcast_inputs``) or by name.
        batch, batch_shared, batch_s, timeout
            As for every `synkhronos.Function`; the timeout applies to each function of the step.
        num_slices : int
            Number of slices of each rank's rows. To save memory, gradients are computed slice by slice; the step is the
            same. The first call in slices may compile two more functions.

        Returns
        -------
        array, or list of arrays
            The loss over all rows, before the step; with ``outputs``, a list of the loss and the outputs.

        Raises
        ------
        Exception
            As for calls to a `synkhronos.Function` and to `synkhronos.all_reduce`. An error leaves the parameters
            unchanged, with three exceptions: a rank died during the step itself; ``rule`` failed after the step; or,
            with ``communicate_every=0``, some ranks took their own steps.
        """
        own = dict(batch=batch, batch_shared=batch_shared, batch_s=batch_s, num_slices=num_slices, timeout=timeout)
        if self.function is None or num_slices != 1:
            results, self._last = self._in_parts(*args, **own, **kwargs), self.gradient_fn
        else:
            results, self._last = self.function(*args, **own, **kwargs), self.function
        if self.rule is not None:
            self.rule()
        return results

    def _in_parts(self, *args: Any, timeout: Optional[float], **kwargs: Any) -> Any:
        gradient_fn, step_fn = self.gradient_fn, self.step_fn
        try:
            results = gradient_fn(*args, timeout=timeout, **kwargs)
            if self.groups is None or any(len(group) > 1 for group in self.groups):
                averaged = self.grad_shared if self._rows is None else [*self.grad_shared, self._rows]
                synk.all_reduce(averaged, weights=gradient_fn, groups=self.groups)
            step_fn(timeout=timeout)
        except BaseException:
            if self._rows is not None and synk.is_forked():
                synk.broadcast(self._rows, 0)  # discard gradients that perhaps only some ranks have computed
            raise
        return results

    def steps(self, *args: Any, **kwargs: Any) -> Any:
        """Run one training step per batch in a single command, equivalent to one call per batch.

        Arguments, results and errors are those of `synkhronos.Function.steps`. The losses of k steps have shape
        ``(k,)``. Unless ``function`` is exact, ``num_slices`` requires an update rule that is linear in the gradients,
        such as `sgd` or `momentum`. Raises `ValueError` if all steps run in parts.
        """
        if self.function is None:
            hint = "call the function once for each batch"
            name, expected, got = "groups", "None", repr(self.groups)
            if self.communicate_every > 1:
                name, expected, got = "communicate_every", "1", str(self.communicate_every)
                hint += ", or build it with communicate_every=0, pass it to rules.LocalSGD and call the rule's run"
            elif self._replaced:
                name, got = "givens", f"a replacement of {self._replaced[0]}"
                expected = "no replacement of a variable that the rule's step reads"
            raise ArgumentValueError(name, f"{expected}, so that a step is one command", got, hint)
        results = self.function.steps(*args, **kwargs)
        self._last = self.function
        return results

    def average(self) -> None:
        """Average parameters and floating-point state over the ranks, weighted by the rows since the last average.

        If ``communicate_every`` is above 1, call it after training, and before validating or saving between averages.
        """
        if self.rule is not None:
            self.rule.finish()


def _with_value_of(function: synk.Function, given: Any) -> Any:
    """Return an input that shares the value stored by ``function``, so that steps in parts continue from this value."""
    given = copy.copy(convert_function_input(given))
    if given.update is not None and given.value is not None:
        given.value = function.container[given.variable]
    return given


def rows_of(variables: List[Any]) -> Any:
    """Return an expression for the number of a rank's rows in a call; 1 if no input is divided."""
    for variable in variables:
        if getattr(variable, "ndim", 0) and not variable.broadcastable[0]:
            return variable.shape[0]
    return T.constant(1, dtype="int64")
