"""Collectives of which the program does not wait for the result: ``all_reduce(..., wait=False)``.

::

    all_reduce(x, into=z, wait=False)   every rank copies its x         (one command)
    ...                                 functions change x: steps, say
    started.wait()                      the copies are reduced, into z  (another; on all ranks or on none)

In shared memory a reduction takes less time than telling ranks to make it meanwhile, so it is made at ``wait()``.
Between hosts, what is large travels meanwhile: the ranks of each host reduce their values instead of copying them, and
processes that compute nothing do the rest.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ..errors import StateError
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..transports.base import Key
from .arguments import Variables
from .command import CollectiveCommand


class Started:
    """A collective that was started; made by `all_reduce`, one for each call with ``wait=False``.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano
    >>> synk.fork(2)
    2
    >>> w, mean = theano.shared(np.zeros(2), "w"), theano.shared(np.zeros(2), "mean")
    >>> step = synk.function([], mean.sum(), updates=[(w, w + 1)])
    >>> synk.set_value(1, w, [2., 6.])
    >>> started = synk.all_reduce(w, into=mean, wait=False)
    >>> step()
    array(0.)
    >>> started
    all_reduce of w, started
    >>> started.wait()
    >>> mean.get_value(), w.get_value()         # the mean of what they were, and what they are
    (array([1., 3.]), array([1., 1.]))
    """

    def __init__(self, variables: Variables, command: Command, others: Sequence[Any] = ()) -> None:
        self._session, self._command, self._names = variables.session, command, list(variables.names)
        self._numbers, self._kept = variables.numbers, [*variables.variables, *others]  # which must live as long
        self._is_over = False

    def __repr__(self) -> str:
        return f"{self._command.title} of {', '.join(self._names)}, {'done' if self._is_over else 'started'}"

    def wait(self) -> None:
        """Put the results where they belong, on all ranks or on none.

        If something goes wrong no value has changed, and the values that were copied are lost.

        Raises
        ------
        StateError
            If it was waited for before, or the session in which it was started has been closed.
        TypeError, ValueError, SharedMemoryError, WorkerError, WorkerDied, WorkerTimeout
            As `all_reduce`.
        """
        with self._session.lock:
            if self._is_over:
                what = f"{self._command.title} of {', '.join(self._names)}"
                raise StateError(f"{what} is over: it was waited for before, or dropped")
            try:
                self._session.run(self._command)
            finally:
                self.drop()

    def drop(self) -> None:
        """Give it up: no result arrives, and another of these variables may be started."""
        under_way = _under_way(self._session)
        for number in self._numbers:
            if under_way.get(number) is self:
                del under_way[number]
                self._session.context.started.pop(number, None)  # (other ranks keep theirs until the next is started)
        self._is_over, self._kept = True, []


class Start(CollectiveCommand):
    """Begin to reduce variables' values, or keep copies of them.

    Parameters
    ----------
    reduction : AllReduce
        What ``wait()`` runs.
    """

    title = "all_reduce"
    is_counted = False  # wait() counts what travels

    def __init__(self, reduction: Any) -> None:
        super().__init__(reduction.numbers)
        self.reduction = reduction

    def run(self, context: RankContext) -> None:
        for number in self.numbers:  # of one that was given up
            context.begun.pop(number, None)
        if self.reduction.begin(context):
            return
        keys = [start_key(context, number) for number in self.numbers]
        values = [context.shareds[number].cell[0] for number in self.numbers]
        context.started.update(zip(self.numbers, context.transport.copies(keys, values)))

    def finish(self, results: List[Any], context: RankContext) -> None:
        """Return nothing."""

    def details(self, context: RankContext) -> str:
        return f"{super().details(context)}, started"


def start(variables: Variables, command: Command, others: Sequence[Any]) -> Started:
    """Have all ranks copy the variables' values, or begin to reduce them, for a command that comes later.

    Parameters
    ----------
    variables : Variables
    command : Command
        What ``wait()`` runs.
    others : sequence of shared variable
        That take results or errors then.

    Raises
    ------
    StateError
        If one of a variable is under way.
    """
    session = variables.session
    with session.lock:
        check_not_started(variables)
        session.run(Start(command))
        started = Started(variables, command, others)
        _under_way(session).update(dict.fromkeys(variables.numbers, started))
    return started


def check_not_started(variables: Variables) -> None:
    """Refuse another of variables of which one is under way.

    Raises
    ------
    StateError
        If one of a variable is under way.
    """
    under_way = _under_way(variables.session)
    for number, name in zip(variables.numbers, variables.names):
        if number in under_way:
            raise StateError(f"{under_way[number]!r}: wait() for it before another of {name} is started")


def start_key(context: RankContext, number: int) -> Key:
    """Return what transports know the copy of a variable's value by."""
    return (*context.shareds[number].key, "started")


def _under_way(session: Any) -> Dict[int, Started]:
    """Return what was started in a session and not waited for, by the numbers of the variables."""
    found: Dict[int, Started] = session.caches.setdefault("started", {})
    return found
