"""Means over the ranks in separate variables, with or without blocking, and the rows that weight them.

In 16 bits, ranks send differences from the last mean, which is equal on all ranks. The differences are small if the
ranks have stayed close to each other. The rounding error is added to the next exchange (error feedback).
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence

import synkhronos as synk
from synkhronos.extending import EXCHANGE_FORMATS

from ..arguments import choice
from ..shared_variables import assignment, like, local_function


class Means:
    """Means of variables over the ranks, stored in ``values`` and equal on all ranks.

    Variables that are exchanged in 16 bits must be equal on all ranks initially. ``state`` belongs in a checkpoint.
    With ``delayed``, `start` stores the current values in ``before``. Rules set ``begun``, the step of unmerged means,
    and ``then``, which is called when pending means arrive.
    """

    def __init__(self, variables: Sequence[Any], exchange: Optional[str] = None, delayed: bool = False) -> None:
        self.exchange = None if exchange is None else choice("exchange", exchange, *EXCHANGE_FORMATS)
        self.variables = self._sent = list(variables)
        self.values = [like(variable, "mean") for variable in variables]
        self.state: List[Any] = []
        self._options: Dict[str, Any] = {"into": self.values}
        if exchange is not None:
            self._sent = [like(variable, "difference", zero=True) for variable in variables]
            errors = [like(variable, "error", zero=True) for variable in variables]
            self.state = [*self.values, *errors]
            # Never called, but creates the error variables on all ranks, for a checkpoint loaded before any exchange.
            self._reads_errors = synk.function([], [(error, None) for error in errors])
            self._options = {"exchange": exchange, "feedback": errors}
            triples = list(zip(self.values, self.variables, self._sent))
            self._subtract = local_function((difference, value - x) for value, x, difference in triples)
            self._add = local_function((value, value - difference) for value, _, difference in triples)
        self.before = [like(variable, "before") for variable in variables] if delayed else []
        self._note = assignment(self.before, self.variables) if delayed else None
        self.begun: Optional[int] = None
        self.then: Callable[[], object] = lambda: None
        self._under_way: Any = None
        self._drops: Any = None

    def take(self, weights: Any = None) -> None:
        """Compute the means of the current values, and wait for them."""
        self.drop()
        self._all_reduce(weights)
        self._finish()

    def drop(self) -> None:
        """Drop pending means left over from an interrupted step."""
        if self._under_way is not None:
            self._drops()
            self._under_way = None

    def start(self, weights: Any = None) -> None:
        """Start computing the means of the current values; `arrive` completes the computation."""
        self._complete()  # means that a Ctrl-C has left pending; they are not used
        if self._note is not None:
            self._note()
        self._under_way = self._all_reduce(weights, wait=False)
        # Garbage collection of a rule drops its pending mean, so that a new mean can start and `close` need not wait.
        self._drops = weakref.finalize(self, self._under_way.drop)
        self._drops.atexit = False

    def is_due(self, n_steps: int, delay: int) -> bool:
        """Return whether means were started at least ``delay`` steps ago, and are not merged yet."""
        return self.begun is not None and n_steps >= self.begun + delay

    def arrive(self) -> bool:
        """Wait until the pending means are in `values`; return whether any were pending. A failure drops the means."""
        try:
            were_pending = self._complete()
            if were_pending:
                self.then()
        except BaseException:
            self.begun = None
            raise
        return were_pending

    def _complete(self) -> bool:
        if self._under_way is None:
            return False
        under_way, self._under_way = self._under_way, None
        self._drops.detach()
        under_way.wait()
        self._finish()
        return True

    def _all_reduce(self, weights: Any, **options: Any) -> Any:
        if self.exchange is not None:
            self._subtract()
        return synk.all_reduce(self._sent, weights=weights, **self._options, **options)

    def _finish(self) -> None:
        if self.exchange is not None:
            self._add()


class RowCount:
    """Rows that each rank has processed since the last exchange: the weights of the next one."""

    def __init__(self) -> None:
        self.rows: List[float] = [0.0] * synk.size()

    @property
    def weights(self) -> Optional[List[float]]:
        """The ranks' weights; None, for equal weights, if no rows were counted."""
        return self.rows if any(self.rows) else None

    def add(self, function: Any) -> None:
        """Add the rows of the function's last call, if any; ignore calls with a different number of ranks."""
        last = None if function is None else function.last_rows
        if last is not None and len(last) == len(self.rows):
            self.rows = [before + float(more) for before, more in zip(self.rows, last)]

    def clear(self) -> None:
        self.rows = [0.0] * len(self.rows)

    def restore(self, rows: Sequence[float]) -> None:
        """Set the rows from a checkpoint; clear them if the number of ranks is different."""
        self.rows = list(rows) if len(rows) == len(self.rows) else [0.0] * len(self.rows)
