"""What all rules have in common: when ranks meet, whose rows count, and what becomes of parameters in between.

.. math::
    D &= z - \\textstyle\\sum_s P_{rs}\\, x_s &&\\text{every k-th step; P: everybody by rows, groups, pairs} \\\\
    z &\\leftarrow z - O(D) &&\\text{O: D, a part of it, heavy ball, Nesterov} \\\\
    x_r &\\leftarrow x_r + m (z - x_r) &&\\text{at once, or W steps later}

x are a rank's parameters, z a centre that is the same on all ranks. Rules without a centre are the case z = 0 and
O(D) = D: one `synkhronos.all_reduce` of the parameters where they are.
"""

from __future__ import annotations

import math
import numbers
import weakref
from abc import ABC, abstractmethod
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

import synkhronos as synk
from synkhronos.collectives.arguments import checked
from synkhronos.errors import ArgumentTypeError, ArgumentValueError, StateError
from synkhronos.functions.asynchronous import run_asynchronously
from synkhronos.functions.batches import listed
from synkhronos.functions.progress import Progress
from synkhronos.program.program import PROGRAM

from .asynchronous import Exchange
from .variables import assignment, check_params, check_used, floats, like

#: What may become of the state of ranks' steps when they exchange.
STATE_IS = ("averaged", "kept", "reset")


class Rule(ABC):
    """A rule of communication: called after each step, in the place of an `all_reduce`.

    Parameters
    ----------
    function : synkhronos.Function or TrainFunction, optional
        What every rank makes steps of its own by. With it averages are weighted by the rows that each rank took since
        the last exchange; without, all ranks count the same.
    params : list of shared variables, optional
        What is trained; by default those of a `TrainFunction`.
    state : list of shared variables, optional
        What the steps keep besides, momentum for example; by default the floating-point state of a `TrainFunction`
        whose parameters are trained.
    every : int
        Steps from one exchange to the next.
    start : int
        The first step after which ranks may exchange.
    state_is : str
        What becomes of the state in an exchange: ``"averaged"`` as parameters are, ``"kept"`` by every rank, or
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
        self._session = weakref.ref(PROGRAM.current())  # which raises before fork
        if state is None:
            state = floats(getattr(function, "state", ())) if params is None and hasattr(function, "params") else []
        params = getattr(function, "params", None) if params is None else params
        if function is not None and not hasattr(function, "last_rows"):
            expected = "a function of synkhronos, which knows the rows that every rank took"
            raise ArgumentTypeError("function", expected, f"{function!r} of type {type(function).__name__}")
        self.function = function
        self.params, self.kept = check_params(params, "params"), check_params(state, "state", allow_none=True)
        check_used(self.params, "params")
        check_used(self.kept, "state")
        if state_is not in STATE_IS:
            raise ArgumentValueError("state_is", " or ".join(map(repr, STATE_IS)), repr(state_is))
        self.state_is = state_is
        self.every, self.start = whole("every", every, 1), whole("start", start, 0)
        self.n_steps, self.n_exchanges = 0, 0
        self._in_consensus = False
        self._rows: List[float] = [0.0] * synk.size()
        self._own_steps = [0] * synk.size()  # of asynchronous runs
        #: The last asynchronous run with ``record=True``.
        self.log: List[Exchange] = []

    # -- in a training loop --------------------------------------------------------------------------------------

    def __call__(self) -> bool:
        """Count a step, and exchange if it is time; return whether ranks have exchanged."""
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
        """Take a step for each batch, and exchange as often as calls of the rule would: few commands for many steps.

        (A step of a `TrainFunction` with groups is several commands, and so is each of its steps here.)

        Asynchronously, by `EASGD`, `ASGD` and `Gossip`, no rank waits for another: each takes the next batch, all rows
        of it, and exchanges after every so many steps of its own. It is one command.

        Parameters
        ----------
        *args, **kwargs
            As for ``function.steps``, but for ``batches_s``, ``n_steps``, ``on_step`` and ``total``, and if it is
            asynchronous for ``num_slices`` and ``output_subset``.
        batches : sequence
            As for ``function.steps``: the rows of each step. A progress bar around them goes on with each exchange.
        asynchronous : bool
            Whether each batch is one rank's alone.
        record : bool
            Whether to have every exchange in ``rule.log`` then, a list of `Exchange`, from which the run can be
            repeated to the bit.
        staleness : int, optional
            How many exchanges a rank may be ahead of the slowest one that has batches left, when it begins a step. By
            default, any number.

        Returns
        -------
        array, or list of arrays
            The outputs of all steps, with a leading axis of steps, in the order of ``batches``.

        Notes
        -----
        Steps before an error or Ctrl-C that ends a command are not counted in ``n_steps``.
        """
        if self.function is None:
            raise ArgumentValueError("function", "one that makes the steps", "none", "give it to the rule")
        self._check_moment("run()")
        refused = {"batches_s", "n_steps", "on_step", "total"} | (
            {"num_slices", "output_subset"} if asynchronous else set()
        )
        for name in refused & set(kwargs):
            hint = "call the function for each batch, and the rule after it"
            raise ArgumentValueError(name, "not to be given to run(), which steps through the batches", "it", hint)
        if not asynchronous and (record or staleness is not None):
            raise ArgumentValueError("asynchronous", "True with record or staleness", "False")
        with Progress() as progress:
            batches = listed(progress.taken_off(batches))
            if not asynchronous:
                return self._run(args, kwargs, batches, progress)
            found = self._run_asynchronously(args, kwargs, batches, record, staleness) if batches else []
            progress.add(len(batches))
            return found

    def _run(self, args: Any, kwargs: Any, batches: List[Any], progress: Progress) -> Any:
        """Make the steps of all ranks together, and the rule's part between them."""
        parts: List[Any] = []
        begin = 0
        while begin < len(batches):
            if self._steps_in_parts:
                end = begin + 1
                parts.append(self._called(args, kwargs, batches[begin]))
            else:
                end = begin + self._until_next(len(batches) - begin)
                parts.append(self.function.steps(*args, batches=batches[begin:end], **kwargs))
            self._advance(end - begin)
            progress.add(end - begin)
            begin = end
        return self._joined(parts, kwargs.get("output_subset")) if parts else []

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """Have the parameters hold the rule's answer, the same on all ranks; afterwards each has its own again."""
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
                if not self.is_open:  # a rank has died, in restore() perhaps: the master has its own at least
                    restore.as_theano()
                    if synk.is_forked():  # the program has begun another session meanwhile
                        synk.broadcast(self.params)

    def finish(self) -> None:
        """Give all ranks the rule's answer for good, and the mean of their state if it is averaged."""
        self._check_moment("finish()")
        self._answer()  # first: a rule that has none refuses
        if self.kept and self.state_is == "averaged":
            synk.all_reduce(self.kept, weights=self._answer_weights)
        self._rows = [0.0] * len(self._rows)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> List[Any]:
        """The shared variables that a checkpoint needs besides the parameters: every rank's own values of them."""
        return []

    @property
    def counters(self) -> Dict[str, Any]:
        """What a checkpoint needs besides variables, as numbers and lists."""
        counted = {"steps": self.n_steps, "exchanges": self.n_exchanges, "rows": list(self._rows)}
        return dict(counted, own_steps=list(self._own_steps))

    @counters.setter
    def counters(self, counters: Dict[str, Any]) -> None:
        self.n_steps, self.n_exchanges = counters["steps"], counters["exchanges"]
        same = len(counters["rows"]) == len(self._rows)
        self._rows = list(counters["rows"]) if same else [0.0] * len(self._rows)
        self._own_steps = list(counters["own_steps"]) if same else [0] * len(self._rows)

    # -- asynchronous runs ---------------------------------------------------------------------------------------

    def _run_asynchronously(self, args: Any, kwargs: Any, batches: List[Any], record: bool, staleness: Any) -> Any:
        """Have ranks take the batches; whatever comes of it, all of them know the rule's values afterwards."""
        staleness = None if staleness is None else whole("staleness", staleness, 0)
        function = self.function if isinstance(self.function, synk.Function) else self.function.function
        if function is None:
            raise ArgumentValueError("function", "one whose step is one command", repr(self.function))
        if self.kept and self.state_is != "kept":
            raise ArgumentValueError("state_is", "'kept' if the rule is to be asynchronous", repr(self.state_is))
        variables, timeout = checked(self.params), kwargs.pop("timeout", None)
        session, before = variables.session, self.counters
        exchanges = self._exchanges(variables, len(batches), bool(record))
        try:
            found = run_asynchronously(function, session, exchanges, args, kwargs, batches, staleness, timeout)
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

    def _exchanges(self, variables: Any, n_batches: int, records: bool) -> Any:
        """Return what ranks do between their steps if these are asynchronous."""
        raise ArgumentValueError(
            "asynchronous",
            f"False, because by {type(self).__name__} all ranks meet",
            "True",
            "use EASGD, ASGD or Gossip",
        )

    def _settings(self, variables: Any, records: bool) -> Any:
        """Return what the exchanges of all rules need; their memory is the session's."""
        return variables, self.every, self._own_steps, records, f"asynchronous {type(self).__name__}"

    def _adopt_exchanges(self, exchanges: Any, is_cut_off: bool) -> None:
        """Take over what asynchronous ranks had in common, after a run or what was left of it."""
        raise NotImplementedError

    # -- what rules are made of ----------------------------------------------------------------------------------

    def _joined(self, parts: List[Any], output_subset: Any) -> Any:
        """Return the outputs of some steps, and of the next ones, as those of all."""
        function = self._gives_outputs
        form, subset = function._form, None if output_subset is None else function._positions(output_subset)
        return form.wrap([_joined_output(each) for each in zip(*(form.flat(part, subset) for part in parts))], subset)

    @property
    def _steps_in_parts(self) -> bool:
        """Whether a step is several commands: of a `TrainFunction` with groups, for example."""
        is_one = isinstance(self.function, synk.Function) or self.function.function is not None
        return not is_one and self.function.communicate_every <= 1

    @property
    def _gives_outputs(self) -> synk.Function:
        """The function whose outputs are those of a step."""
        if isinstance(self.function, synk.Function):
            return self.function
        found: synk.Function = self.function.function or self.function.gradient_fn
        return found

    def _called(self, args: Any, kwargs: Any, batch: Any) -> Any:
        """Make a step by a call; return its outputs as those of one step are returned."""
        results, function, chosen = self.function(*args, batch=batch, **kwargs), self._gives_outputs, None
        if kwargs.get("output_subset") is not None:
            chosen = function._positions(kwargs["output_subset"])
        ops = [function.output_modes[i] for i in (range(len(function.output_modes)) if chosen is None else chosen)]
        values = zip(function._form.flat(results, chosen), ops)
        of_step = [[value] if str(op).endswith("gather") else np.asarray(value)[None] for value, op in values]
        return function._form.wrap(of_step, chosen)

    def _advance(self, n_steps: int) -> bool:
        """Count steps, none of which but the last is one after which something is due."""
        self._check_moment("a step")
        self._count(n_steps)
        return self._due()

    def _count(self, n_steps: int) -> None:
        """Count steps, and the rows of the last call."""
        self._rows = self._with_rows_of_call(self._rows)
        self.n_steps += n_steps

    @property
    def is_open(self) -> bool:
        """Whether the session is open in which the rule was made."""
        return synk.is_forked() and self._session() is PROGRAM.session

    def _check_moment(self, what: str) -> None:
        """Raise if the rule's session is over, or ranks have lent it their parameters."""
        name = type(self).__name__
        PROGRAM.current()  # which raises if none is open
        if not self.is_open:
            advice = "make it again (synkhronos.extensions.checkpoint brings back what it was)"
            raise StateError(f"{name} was made in a session that is closed, and its ranks' values with it: {advice}")
        if self._in_consensus:
            raise StateError(f"{name}: {what} inside consensus(), at whose end every rank has its own values again")

    def _with_rows_of_call(self, rows: List[float]) -> List[float]:
        """Return rows and those of the function's last call."""
        last = None if self.function is None else self.function.last_rows
        if last is None or len(last) != len(rows):  # it was not called, or by other ranks before
            return rows
        return [before + float(more) for before, more in zip(rows, last)]

    def _due(self) -> bool:
        """Do what is due after this step; return whether ranks have exchanged."""
        if not self._is_time(self.n_steps):
            return False
        self._exchange()
        self._exchange_state()
        self.n_exchanges += 1
        self._rows = [0.0] * len(self._rows)
        return True

    def _is_time(self, n_steps: int) -> bool:
        return n_steps >= self.start and n_steps % self.every == 0

    def _until_next(self, most: int) -> int:
        """Return after how many steps something is due, but no more than so many."""
        return next((n for n in range(1, most) if self._is_time(self.n_steps + n)), most)

    @property
    def _weights(self) -> Optional[List[float]]:
        """The ranks' weights: their rows since the last exchange; None if all count the same."""
        return self._rows if any(self._rows) else None

    @property
    def _mixed(self) -> List[Any]:
        """What ranks mix where it is: parameters, and the state if it is averaged."""
        return [*self.params, *(self.kept if self.state_is == "averaged" else [])]

    #: Whether an exchange is one of `_mixed`, so that the state is in it.
    _mixes = False

    def _exchange_state(self) -> None:
        """Do with the state what shall become of it in an exchange of the parameters."""
        if self.kept and self.state_is == "averaged" and not self._mixes:
            synk.all_reduce(self.kept, weights=self._weights)
        elif self.kept and self.state_is == "reset":
            self._reset()

    @cached_property
    def _reset(self) -> Any:
        return assignment(self.kept, [like(variable, "zero", zero=True) for variable in self.kept])

    @cached_property
    def _keep_and_restore(self) -> Tuple[synk.Function, synk.Function]:
        own = [like(param, "own") for param in self.params]
        return assignment(own, self.params), assignment(self.params, own)

    @abstractmethod
    def _exchange(self) -> None:
        """Exchange."""

    def _answer(self) -> None:
        """Give the parameters of all ranks the values that the rule has found so far."""
        synk.all_reduce(self.params, weights=self._answer_weights)

    @property
    def _answer_weights(self) -> Optional[List[float]]:
        """The ranks' weights in that."""
        return self._weights


def whole(name: str, value: Any, least: int) -> int:
    """Return a number of steps.

    Raises
    ------
    TypeError, ValueError
        If it is not an int of at least so many.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ArgumentTypeError(name, "an int", f"{value!r} of type {type(value).__name__}")
    if value < least:
        raise ArgumentValueError(name, f"at least {least}", str(value))
    return int(value)


def real(name: str, value: Any, expected: str, is_right: Callable[[float], bool]) -> float:
    """Return a number.

    Raises
    ------
    TypeError, ValueError
        If it is none, or not finite, or not right.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentTypeError(name, "a number", f"{value!r} of type {type(value).__name__}")
    try:
        found = float(value)
    except OverflowError:  # of an int, or of a fraction
        found = math.inf
    if not math.isfinite(found) or not is_right(found):
        raise ArgumentValueError(name, expected, str(value))
    return found


def _joined_output(parts: Sequence[Any]) -> Any:
    """Return one output of all steps: an array, or a list of arrays if those of all steps do not fit together."""
    if all(isinstance(part, np.ndarray) and part.shape[1:] == parts[0].shape[1:] for part in parts):
        return np.concatenate(parts)
    return [step for part in parts for step in part]
