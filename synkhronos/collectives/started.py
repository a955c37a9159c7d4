"""Non-blocking collectives: ``all_reduce(..., wait=False)``.

::

    all_reduce(x, into=z, wait=False)   every rank copies its x           (one command)
    ...                                 functions change x, for example training steps
    started.wait()                      the copies are reduced into z     (another command, all or nothing)

In shared memory, a reduction is faster than notifying the ranks, so ``wait()`` starts it. Between hosts, large values
are sent in the background: each host's ranks reduce them instead of copying them, and the hosts combine the results.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, List, Sequence, Tuple

from ..errors import StateError
from ..runtime.command import Command
from ..runtime.context import Kept, RankContext
from .arguments import Variables
from .command import CollectiveCommand


class Started:
    """A pending collective, returned by `all_reduce` with ``wait=False``.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> w, mean = theano.shared(np.zeros(2), "w"), theano.shared(np.zeros(2), "mean")
    >>> step = synk.function([], mean.sum(), updates=[(w, w + 1)])
    >>> synk.set_value(w, [2., 6.], rank=1)
    >>> started = synk.all_reduce(w, into=mean, wait=False)
    >>> step()
    array(0.)
    >>> started
    all_reduce of w, started
    >>> started.wait()
    >>> mean.get_value(), w.get_value()         # the mean of the earlier values, and the present value
    (array([1., 3.]), array([1., 1.]))
    """

    def __init__(self, variables: Variables, command: Command, others: Sequence[Any] = ()) -> None:
        self._session, self._command, self._names = variables.session, command, list(variables.names)
        self._numbers, self._kept = variables.numbers, [*variables.variables, *others]  # keeps variables alive
        self._is_over = False

    def __repr__(self) -> str:
        return f"{self._command.title} of {', '.join(self._names)}, {'done' if self._is_over else 'started'}"

    def wait(self) -> None:
        """Store the results in the target variables, on all ranks or on none.

        Raises
        ------
        StateError
            If `wait` or `drop` has already been called, or the session has been closed.
        TypeError, ValueError, SharedMemoryError, RankFailure
            See `all_reduce`. The copied values are lost.
        """
        with self._session.lock:
            if self._is_over:
                what = f"{self._command.title} of {', '.join(self._names)}"
                raise StateError(f"{what} has ended: wait() or drop() was called before")
            try:
                self._session.run(self._command)
            finally:
                self.drop()

    def drop(self) -> None:
        """Abandon the collective: store no result, and allow another collective on these variables."""
        under_way, pending = _under_way(self._session), self._session.context.kept(PendingReductions)
        for number in self._numbers:
            if under_way.get(number) is self:
                del under_way[number]
                pending.started.pop(number, None)  # other ranks keep their state until the next start
        self._is_over, self._kept = True, []


class PendingReductions(Kept):
    """By the number of the first variable: the state of `Transport.start`, and the shapes and dtypes of the arrays."""

    loss = "an all_reduce(wait=False) was pending, and the rank's part of it is lost"

    def __init__(self) -> None:
        self.started: Dict[int, Tuple[Any, List[Any]]] = {}


class StartReduction(CollectiveCommand):
    """Start reducing the variables' values in the background, or copy them, for the command ``reduction``."""

    title = "all_reduce"
    is_counted = False  # wait() counts the traffic

    def __init__(self, reduction: Any) -> None:
        super().__init__(reduction.numbers)
        self.reduction = reduction

    def run(self, context: RankContext) -> None:
        pending = context.kept(PendingReductions).started
        for number in self.numbers:  # left by an abandoned collective
            pending.pop(number, None)
        keys, arrays = context.bind(self.numbers)
        if self.reduction.feedback is not None:
            keys, arrays = self.reduction.feedback.add(context, self.numbers, keys, arrays)
        state = context.transport.start(keys, arrays, self.reduction.reduction, partial(context.name_of, self.numbers))
        pending[self.numbers[0]] = state, [(array.shape, array.dtype) for array in arrays]

    def finish(self, results: List[Any], context: RankContext) -> None:
        """Return None, because the reduction has only begun."""

    def details(self, context: RankContext) -> str:
        return f"{super().details(context)}, started"


def start(variables: Variables, command: Command, others: Sequence[Any]) -> Started:
    """Copy the variables' values on all ranks, or start reducing them; ``others`` are kept alive until `wait`."""
    session = variables.session
    with session.lock:
        check_not_started(variables)
        session.run(StartReduction(command))
        started = Started(variables, command, others)
        _under_way(session).update(dict.fromkeys(variables.numbers, started))
    return started


def check_not_started(variables: Variables) -> None:
    under_way = _under_way(variables.session)
    for number, name in zip(variables.numbers, variables.names):
        if number in under_way:
            raise StateError(f"{under_way[number]!r}: call its wait() before starting another reduction of {name}")


def _under_way(session: Any) -> Dict[int, Started]:
    """Return the pending collectives of a session, by the variables' numbers."""
    found: Dict[int, Started] = session.caches.setdefault("started", {})
    return found
