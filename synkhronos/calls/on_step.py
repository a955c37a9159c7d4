"""The ``on_step`` callback of `Function.steps` with the values that it changes on the master, and progress bars.

If ``on_step`` changes a value that all ranks of an exact function need, the command ends after that step. If a rank
then dies, the steps are repeated with the old values, but without calling ``on_step`` again::

    the master's variable     steps 0, 1     on_step(1)     a rank dies     steps 0, 1     the command ends
    ----------------------    -----------    -----------    ------------    -----------    ----------------
    rate, not updated         old            new, noted     new             old, again     new
    w, updated                w0, w1         new, noted     w0 (`Deposits`) w0, w1         new

Any other change applies to the master alone, from the next step on. The command then cannot be repeated.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..runtime.borrowed import Borrowed
from ..runtime.registry import Origin, SharedEntry
from ..runtime.session import Session
from .changes import changed as find_changed
from .plan import FunctionVariables


class StepProgress:
    """Progress bars with tqdm's interface around arguments of `Function.steps`; the ``with`` block closes them."""

    def __init__(self) -> None:
        self._bars: List[Any] = []

    def __bool__(self) -> bool:
        return bool(self._bars)

    def taken_off(self, batches: Any) -> Any:
        """Return the iterable inside a progress bar and register the bar; return other arguments unchanged."""
        inner = getattr(batches, "iterable", None)
        if inner is None or not callable(getattr(batches, "update", None)):
            return batches
        self._bars.append(batches)
        return inner

    def add(self, n_steps: int) -> None:
        for bar in self._bars:
            bar.update(n_steps)

    def __enter__(self) -> StepProgress:
        return self

    def __exit__(self, *error: Any) -> None:
        for bar in self._bars:
            bar.close()


class OnStep:
    """Callback after each of the master's steps; a call returns whether to continue the command.

    ``alone`` lists variables changed on the master alone; it is recorded only if dead ranks are replaced.
    """

    def __init__(
        self, call: Any, progress: StepProgress, session: Session, variables: FunctionVariables, is_exact: bool
    ) -> None:
        self._call, self._progress, self._session, self._variables = call, progress, session, variables
        self._sent = variables.sent if is_exact else []
        self._others = [entry for entry in variables.used if session.healing is not None and entry not in self._sent]
        self._before: Dict[SharedEntry, Any] = {}
        self._changed: List[Tuple[SharedEntry, Any, Optional[Borrowed]]] = []
        self.alone: List[str] = []
        self.has_ended = False

    def __call__(self, i: int, outputs: List[Any]) -> bool:
        self._progress.add(1)
        if self._call is None:
            return True
        if self._sent or self._others:
            self._variables.record_step()
        try:
            answer = self._call(i, outputs)
        finally:
            self._find_changes()
        self.has_ended = isinstance(answer, (bool, np.bool_)) and not answer
        return not (self.has_ended or self._changed)

    def _find_changes(self) -> None:
        changed = [entry for entry in self._sent if entry.may_have_changed()]
        for entry in changed:
            entry.updated()  # otherwise, a write into an updated array would be attributed to the function
        self._changed = [(entry, entry.cell[0], entry.borrowed) for entry in changed]
        deposits = self._session.context.transaction.deposits
        if deposits is not None:
            deposits.leave(changed)
        if not self.alone:
            self.alone = [entry.label() for entry in self._others if entry.may_have_changed()]

    def begin(self, updated: Sequence[int]) -> None:
        """Begin or repeat the steps with the old values; `Deposits` restores the values of updated variables."""
        if not self._before:
            self._before = {entry: entry.cell[0] for entry in self._sent}
            find_changed(self._session, [entry for entry in self._others if entry.known is None])  # start tracking them
        for entry, *_ in self._changed:
            if entry.number not in updated:
                entry.set(self._value_of_before(entry), Origin.UNDONE)

    def _value_of_before(self, entry: SharedEntry) -> Any:
        healing, before = self._session.healing, self._before[entry]
        assert healing is not None
        value = healing.common_value(entry.number, self._session.pools)
        if not isinstance(before, np.ndarray):
            return entry.engine.to_device(entry.reference(), value)
        found = np.empty_like(before, subok=False)  # keeps the memory layout, which affects the bits of results
        np.copyto(found, value)
        return found

    def put_again(self) -> None:
        for entry, value, borrowed in self._changed:
            if entry.cell[0] is not value:
                entry.set(value, Origin.PROGRAM)
                entry.borrowed = borrowed

    def end(self) -> None:
        self.put_again()
        self._changed, self._before = [], {}
