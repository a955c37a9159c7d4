"""`TrainFunction`: a training step on all ranks, called like one function."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, Dict, Iterable, List, Optional, Union

from theano.compile.function_module import convert_function_input

import synkhronos as synk
from synkhronos.errors import ArgumentValueError

from .rules import LocalSGD
from .rules.variables import floats
from .step_in_parts import StepInParts
from .training_graph import TrainingGraph


class TrainFunction:
    """One training step on all ranks, as `make_train_function` returns it.

    ::

        function      rows -- gradients -- all_reduce -- step          one command
        in parts      rows -- gradient_fn -- grad_shared -- synkhronos.all_reduce -- grad_shared -- step_fn

    A step is made in parts if it cannot be one command: in slices (Adam's step along the mean of several gradients is
    not the mean of several steps), with groups, with ``communicate_every`` above 1 (whose steps all ranks make or
    none), and if one of the ``givens`` replaces something that the rule's step reads as well. With
    ``communicate_every=0`` there is no all_reduce in either.

    Attributes
    ----------
    function : synkhronos.Function or None
        The whole step as one function; None if all steps are made in parts.
    gradient_fn, step_fn : synkhronos.Function
        The two functions of a step in parts, compiled when they are first needed: the first computes from rows, the
        second steps with what ``grad_shared`` then holds.
    grad_shared : list of shared variables
        The gradients, between the two. A step in one command does not touch those that no gradient's own expression
        reads.
    params, state : list of shared variables
        The parameters, and what the rule keeps between steps: together all that a checkpoint needs.
    communicate_every : int
        How many calls there are between averages; 0: there are none.
    groups : list of lists of ranks or None
        Those whose gradients are averaged, if not all ranks' are.
    rule : LocalSGD or None
        What averages then, if that is above 1.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        bcast_inputs: Iterable[Any],
        givens: Any,
        sliceable_shareds: List[Any],
        communicate_every: int,
        groups: Any,
        name: str,
        options: Dict[str, Any],
    ) -> None:
        self.params, self.state, self.grad_shared = graph.params, graph.state, graph.grad_shared
        self.communicate_every = communicate_every
        givens = list(givens.items() if isinstance(givens, dict) else givens or ())  # parts may be compiled later
        of_rows = dict(bcast_inputs=list(bcast_inputs), givens=givens, sliceable_shareds=sliceable_shareds)
        self.groups = [[rank] for rank in range(synk.size())] if communicate_every != 1 else groups
        if self.groups is not None:
            options = dict(options, exact=False)  # ranks shall differ, whatever `fork` was told
        self._settings: Any = (graph, self.groups, name, of_rows, dict(options))
        self.function: Optional[synk.Function] = None
        self._replaced = graph.read_by_step(givens)
        if communicate_every <= 1 and groups is None and not self._replaced:
            updates = graph.updates_in_one(synk.ops.all_reduce if communicate_every else list)
            self.function = synk.function(
                graph.inputs, graph.results(), updates=updates, name=name, **of_rows, **options
            )
            of_rows["bcast_inputs"] = [_with_value_of(self.function, given) for given in of_rows["bcast_inputs"]]
            self._last: Union[synk.Function, StepInParts] = self.function
        else:
            self._last = self._parts  # compiled now, so that what is wrong is known now
        self._rule = self._local_sgd() if communicate_every > 1 else None

    @property
    def rule(self) -> Optional[LocalSGD]:
        if self._rule is not None and not self._rule.is_open and synk.is_forked():  # it counts on in another session
            counters = dict(self._rule.counters, rows=[])
            self._rule = self._local_sgd()
            self._rule.counters = counters
        return self._rule

    def _local_sgd(self) -> LocalSGD:
        return LocalSGD(self._parts.gradient_fn, self.params, floats(self.state), self.communicate_every)

    @cached_property
    def _parts(self) -> StepInParts:
        return StepInParts(*self._settings)

    @property
    def gradient_fn(self) -> synk.Function:
        return self._parts.gradient_fn

    @property
    def step_fn(self) -> synk.Function:
        return self._parts.step_fn

    @property
    def last_rows(self) -> Optional[List[int]]:
        """The rows that each rank took in the last call, or in all of the last `steps`; None before the first."""
        return self._last.last_rows

    def __repr__(self) -> str:
        return f"<TrainFunction of {len(self.params)} parameters, {self.function or self.gradient_fn!r}>"

    def __call__(
        self,
        *args: Any,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int = 1,
        timeout: Optional[float] = None,
        **kwargs: Any,
    ) -> Any:
        """Take one training step on all ranks.

        Parameters
        ----------
        *args, **kwargs
            One value per input, by position (``x``, ``y``, ``bcast_inputs``) or by name.
        batch, batch_s, timeout
            As for every `synkhronos.Function`; the timeout is for each of the step's commands.
        num_slices : int
            Number of pieces in which every rank computes its gradients, for batches that do not fit into memory: the
            step is the same. The first call in slices compiles two more functions.

        Returns
        -------
        array, or list of arrays
            The loss over all rows, before the step; with ``outputs`` a list of it and them.

        Raises
        ------
        Exception
            As calls of a `synkhronos.Function` and `synkhronos.all_reduce`. No parameter has changed then, unless a
            rank has died in the step itself, or ``communicate_every`` is 0: every rank has made its own step then, or
            has not.
        """
        step = self._parts if self.function is None or num_slices != 1 else self.function
        results = step(*args, batch=batch, batch_s=batch_s, num_slices=num_slices, timeout=timeout, **kwargs)
        self._last = step
        if self.rule is not None:
            self.rule()
        return results

    def steps(self, *args: Any, **kwargs: Any) -> Any:
        """Take many training steps in one command: one for each batch, as so many calls would.

        Parameters
        ----------
        *args, **kwargs
            As for `synkhronos.Function.steps`: values of the inputs, ``batches``, ``batches_s``, ``n_steps``,
            ``on_step``, ``total``, ``timeout``. With ``num_slices`` the rule must be linear in the gradients, as `sgd`
            and `momentum` are.

        Returns
        -------
        array, or list of arrays
            The loss of every step, of shape ``(k,)``; with ``outputs`` a list of it and them, each with a leading axis
            of the k steps.

        Raises
        ------
        ValueError
            If steps are made in parts.
        Exception
            As `synkhronos.Function.steps`.
        """
        hint = "call the function once for each batch"
        if self.communicate_every > 1:
            expected = "1, with which a step is one command"
            hint += ", or give a function of communicate_every=0 to rules.LocalSGD, and call the rule's run"
            raise ArgumentValueError("communicate_every", expected, str(self.communicate_every), hint)
        if self.function is None and not self._replaced:
            raise ArgumentValueError("groups", "None, with which a step is one command", repr(self.groups), hint)
        if self.function is None:
            expected = "to replace nothing that the rule's step reads, so that a step is one command"
            raise ArgumentValueError("givens", expected, f"one that replaces {self._replaced[0]}", hint)
        results = self.function.steps(*args, **kwargs)
        self._last = self.function
        return results

    def average(self) -> None:
        """Average parameters and the rule's state over the ranks, weighted by the rows since they were last averaged.

        For local SGD (``communicate_every`` above 1), which does it every k calls; a program calls it before it
        validates or saves in between, and at its end. Otherwise nothing happens.
        """
        if self.rule is not None:
            self.rule.finish()


def _with_value_of(function: synk.Function, given: Any) -> Any:
    """Return an input that keeps the function's own value between calls: steps in parts go on with it."""
    given = copy.copy(convert_function_input(given))
    if given.update is not None and given.value is not None:
        given.value = function.container[given.variable]
    return given
