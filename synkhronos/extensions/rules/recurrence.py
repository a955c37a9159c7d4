"""Recurrence behind all communication rules: when ranks exchange values, with what weights, and how values change.

.. math::
    D &= z - \\textstyle\\sum_s P_{rs}\\, x_s &&\\text{every k-th step; P: weights by rows, groups or pairs} \\\\
    z &\\leftarrow z - O(D) &&\\text{O: D, a fraction of D, or a step with momentum} \\\\
    x_r &\\leftarrow x_r + m (z - x_r) &&\\text{immediately, or W steps later}

x denotes a rank's parameters, and z is a center that is equal on all ranks. Rules without a center have z = 0 and O(D)
= D; in full precision, their exchange is one in-place `synkhronos.all_reduce` of the parameters.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError, StateError
from synkhronos.extending import StepProgress, current_session, joined_steps, listed, one_step, run_asynchronously

from ..arguments import choice, whole
from ..shared_variables import assignment, check_params, check_used, floats, like
from .asynchronous import Exchange
from .means import RowCount


class Rule:
    """Base class of communication rules: call a rule after each step, instead of averaging gradients in the step.

    Parameters
    ----------
    function : synkhronos.Function or TrainFunction, optional
        The function that performs each rank's own steps. Weighted averages count the rows that each rank has processed
        with it since the last exchange. Without a function, all ranks have equal weights.
    params, state : list of shared variables, optional
        The trained parameters, and the state of the steps, such as velocities. The defaults are the parameters of a
        `TrainFunction`, and its floating-point state unless ``params`` is passed.
    every : int
        The number of steps from one exchange to the next.
    start : int
        The first step that may end with an exchange.
    state_is : str
        Treatment of the state in an exchange: ``"averaged"`` like the parameters, ``"kept"`` by every rank, or
        ``"reset"`` to zeros.
    """

    def __init__(
        self,
        function: Any = None,
        params: Any = None,
        state: Any = None,
        every: int = 1,
        start: int = 0,
        state_is: str = "kept",
    ) -> None:
        self._session = weakref.ref(current_session())  # raises `StateError` before `fork`
        if state is None:
            state = floats(getattr(function, "state", ())) if params is None and hasattr(function, "params") else []
        params = getattr(function, "params", None) if params is None else params
        if function is not None and not hasattr(function, "last_rows"):
            expected = "a function of synkhronos, which counts the rows of every rank"
            raise ArgumentTypeError("function", expected, f"{function!r} of type {type(function).__name__}")
        self.function = function
        self.params, self.kept = check_params(params, "params"), check_params(state, "state", allow_none=True)
        check_used(self.params, "params")
        check_used(self.kept, "state")
        self.state_is = choice("state_is", state_is, "averaged", "kept", "reset")
        self.every, self.start = whole("every", every, 1), whole("start", start, 0)
        self.n_steps, self.n_exchanges = 0, 0
        self._in_consensus = False
        self._rows = RowCount()
        self._own_steps = [0] * synk.size()  # by rank, in asynchronous runs
        #: The exchanges of the last asynchronous run with ``record=True``.
        self.log: List[Exchange] = []

    # -- in a training loop --------------------------------------------------------------------------------------

    def __call__(self) -> bool:
        """Count a step, and exchange values if an exchange is due; return whether the ranks have exchanged values."""
        return self._advance(1)

    def run(
        self,
        *args: Any,
        batches: Sequence[Any],
        asynchronous: bool = False,
        record: bool = False,
        staleness: Optional[int] = None,
        **kwargs: Any,
    ) -> Any:
        """Run one step per batch in few commands, with exchanges at the same steps as with one call per batch.

        Each step of a `TrainFunction` that runs in parts, for example with groups, still takes several commands.

        An asynchronous run (`EASGD`, `ASGD`, `Gossip`) is a single command. Each rank processes whole batches, one at a
        time, and may exchange values whenever it has taken ``every`` more steps. It waits for other ranks' steps only
        if ``staleness`` requires this. ``n_steps`` does not count asynchronous steps, or the steps of a failed command.

        Parameters
        ----------
        *args, **kwargs
            As for ``function.steps``, except ``batches_shared``, ``n_steps``, ``on_step`` and ``total``. Asynchronous
            runs also exclude ``num_slices`` and ``output_subset``.
        batches : sequence
            The rows of each step, as for ``function.steps``. A progress bar around them advances after each command.
        asynchronous : bool
            Whether each batch is processed by a single rank, without waiting for other ranks' steps.
        record : bool
            Whether to record every exchange of an asynchronous run in ``rule.log``, a list of `Exchange`.
        staleness : int, optional
            The maximum lead of a rank, in exchanges, over the slowest rank that has batches left; by default unlimited.

        Returns
        -------
        array, or list of arrays
            The outputs of all steps, with a leading axis of steps, in the order of ``batches``.
        """
        if self.function is None:
            raise ArgumentValueError("function", "a function for the steps", "None", "pass a function to the rule")
        self._check_moment("run()")
        refused = {"batches_shared", "batches_s", "n_steps", "on_step", "total"} | (
            {"num_slices", "output_subset"} if asynchronous else set()
        )
        for name in refused & set(kwargs):
            hint = "call the function for each batch, then the rule"
            raise ArgumentValueError(name, "no value, because run() steps through the batches itself", "a value", hint)
        if not asynchronous and (record or staleness is not None):
            raise ArgumentValueError("asynchronous", "True with record or staleness", "False")
        with StepProgress() as progress:
            batches = listed(progress.taken_off(batches))
            if not asynchronous:
                return self._run(args, kwargs, batches, progress)
            found = self._run_asynchronously(args, kwargs, batches, record, staleness) if batches else []
            progress.add(len(batches))
            return found

    def _run(self, args: Any, kwargs: Any, batches: List[Any], progress: StepProgress) -> Any:
        parts: List[Any] = []
        subset, begin = kwargs.get("output_subset"), 0
        while begin < len(batches):
            if self._steps_in_parts:
                end = begin + 1
                parts.append(
                    one_step(self._gives_outputs, self.function(*args, batch=batches[begin], **kwargs), subset)
                )
            else:
                end = begin + self._until_next(len(batches) - begin)
                parts.append(self.function.steps(*args, batches=batches[begin:end], **kwargs))
            self._advance(end - begin)
            progress.add(end - begin)
            begin = end
        return joined_steps(self._gives_outputs, parts, subset) if parts else []

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """Set the parameters to the consensus inside a ``with`` block; then restore every rank's own values."""
        if self._in_consensus:
            yield
            return
        self._check_moment("consensus()")
        keep, restore = self._keep_and_restore
        keep()
        self._in_consensus = True
        try:
            self._answer()
            yield
        finally:
            self._in_consensus = False
            try:
                if self.is_open:
                    restore()
            finally:
                if not self.is_open:  # a rank has died, perhaps in restore(): restore at least the master's own values
                    restore.as_theano()
                    if synk.is_forked():  # another session is open
                        synk.broadcast(self.params)

    def finish(self) -> None:
        """Set the parameters on all ranks to the consensus permanently; average the state if it is ``"averaged"``."""
        self._check_moment("finish()")
        self._answer()  # first, because it raises if the rule has no consensus
        if self.kept and self.state_is == "averaged":
            synk.all_reduce(self.kept, weights=self._answer_weights)
        self._rows.clear()

    @property
    def state(self) -> List[Any]:
        """The shared variables that a checkpoint needs besides the parameters; values may differ between ranks."""
        return []

    @property
    def counters(self) -> Dict[str, Any]:
        """Numbers and lists that a checkpoint needs besides the variables."""
        return self._counted()

    @counters.setter
    def counters(self, counters: Dict[str, Any]) -> None:
        self._restore(counters)

    def _counted(self) -> Dict[str, Any]:
        counted = {"steps": self.n_steps, "exchanges": self.n_exchanges, "rows": list(self._rows.rows)}
        return dict(counted, own_steps=list(self._own_steps))

    def _restore(self, counters: Dict[str, Any]) -> None:
        """Set the `counters` of this class; lists with an entry per rank apply only to the same number of ranks."""
        self.n_steps, self.n_exchanges = counters["steps"], counters["exchanges"]
        self._rows.restore(counters["rows"])
        same = len(counters["rows"]) == len(self._own_steps)
        self._own_steps = list(counters["own_steps"]) if same else [0] * len(self._own_steps)

    # -- asynchronous runs ---------------------------------------------------------------------------------------

    def _run_asynchronously(self, args: Any, kwargs: Any, batches: List[Any], record: bool, staleness: Any) -> Any:
        """Run the batches asynchronously; afterwards, even after an error, store the shared values in the rule."""
        staleness = None if staleness is None else whole("staleness", staleness, 0)
        if self._in_one is None:
            raise ArgumentValueError("function", "a function whose step is one command", repr(self.function))
        if self.kept and self.state_is != "kept":
            raise ArgumentValueError("state_is", "'kept' in asynchronous runs", repr(self.state_is))
        timeout, before = kwargs.pop("timeout", None), self.counters
        exchanges = self._exchanges(len(batches), bool(record))
        try:
            found = run_asynchronously(self._in_one, exchanges, args, kwargs, batches, staleness, timeout)
        except BaseException:
            if exchanges.has_begun:
                self._adopt_exchanges(exchanges, True)
            else:
                self.counters = before
            raise
        self._own_steps = [n_steps for n_steps, _, _ in found.reports]
        self.n_exchanges += sum(n_exchanges for _, n_exchanges, _ in found.reports)
        self._adopt_exchanges(exchanges, False)
        if record:
            self.log = sorted(line for _, _, lines in found.reports for line in lines)
        return found.outputs

    def _exchanges(self, n_batches: int, records: bool) -> Any:
        raise ArgumentValueError(
            "asynchronous",
            f"False, because {type(self).__name__} synchronizes all ranks",
            "True",
            "use EASGD, ASGD or Gossip",
        )

    def _settings(self, records: bool) -> Any:
        return self.params, self.every, self._own_steps, records, f"asynchronous {type(self).__name__}"

    def _adopt_exchanges(self, exchanges: Any, is_cut_off: bool) -> None:
        """Store the shared values of an asynchronous run, complete or interrupted, in the rule."""
        raise NotImplementedError

    # -- parts of rules ------------------------------------------------------------------------------------------

    @property
    def _in_one(self) -> Optional[synk.Function]:
        """The function whose call is a whole step in one command; None for a `TrainFunction` that lacks it."""
        return self.function if isinstance(self.function, synk.Function) else self.function.function

    @property
    def _steps_in_parts(self) -> bool:
        """Whether a step takes several commands, as for a `TrainFunction` with groups."""
        return self._in_one is None and self.function.communicate_every <= 1

    @property
    def _gives_outputs(self) -> Any:
        return self._in_one or self.function.gradient_fn

    def _advance(self, n_steps: int) -> bool:
        """Count steps, and exchange values if due; the caller ensures that no exchange is due before the last step."""
        self._check_moment("a step")
        self._count(n_steps)
        return self._due()

    def _count(self, n_steps: int) -> None:
        self._rows.add(self.function)
        self.n_steps += n_steps

    @property
    def is_open(self) -> bool:
        return synk.is_forked() and self._session() is current_session()

    def _check_moment(self, what: str) -> None:
        """Raise `StateError` if the rule's session is closed, or if `consensus` is active."""
        name = type(self).__name__
        current_session()  # raises if no session is open
        if not self.is_open:
            advice = "create a new rule (synkhronos.extensions.checkpoint restores its state)"
            raise StateError(f"{name} belongs to a session that is closed, and its ranks' values are lost: {advice}")
        if self._in_consensus:
            raise StateError(f"{name}: {what} is not allowed inside consensus(), which restores every rank's values")

    def _due(self) -> bool:
        """Exchange values if an exchange is due after this step; return whether the ranks have exchanged values."""
        if not self._is_time(self.n_steps):
            return False
        self._exchange()
        self._end_exchange()
        return True

    def _end_exchange(self) -> None:
        self._exchange_state()
        self.n_exchanges += 1
        self._rows.clear()

    def _is_time(self, n_steps: int) -> bool:
        return n_steps >= self.start and n_steps % self.every == 0

    def _until_next(self, most: int) -> int:
        return next((n for n in range(1, most) if self._is_time(self.n_steps + n)), most)

    @property
    def _mixed(self) -> List[Any]:
        """The variables that ranks mix in place: the parameters, and the state if it is averaged."""
        return [*self.params, *(self.kept if self.state_is == "averaged" else [])]

    #: Whether `_exchange` exchanges all variables in `_mixed`, including an averaged state.
    _mixes = False

    def _exchange_state(self) -> None:
        """Average or reset the state, as ``state_is`` requires."""
        if self.kept and self.state_is == "averaged" and not self._mixes:
            synk.all_reduce(self.kept, weights=self._rows.weights)
        elif self.kept and self.state_is == "reset":
            self._reset()

    @cached_property
    def _reset(self) -> Any:
        return assignment(self.kept, [like(variable, "zero", zero=True) for variable in self.kept])

    @cached_property
    def _keep_and_restore(self) -> Tuple[synk.Function, synk.Function]:
        own = [like(param, "own") for param in self.params]
        return assignment(own, self.params), assignment(self.params, own)

    def _exchange(self) -> None:
        """Exchange the parameters between the ranks."""
        raise NotImplementedError

    def _answer(self) -> None:
        """Set the parameters on all ranks to the current weighted mean."""
        synk.all_reduce(self.params, weights=self._answer_weights)

    @property
    def _answer_weights(self) -> Optional[List[float]]:
        return self._rows.weights
