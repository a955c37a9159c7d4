"""`synkhronos.set_value`."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Sequence

from ..runtime.context import RankContext
from ..runtime.registry import Origin
from ..transports.base import Pending
from .arguments import checked
from .command import CollectiveCommand, taken


class SetValue(CollectiveCommand):
    """Overwrite variables on one rank.

    Parameters
    ----------
    rank : int
        The rank whose variables are overwritten.
    numbers : list of int
        The variables.
    handles, selections : list
        The values in shared memory, and their rows that are meant (None: all).
    states : dict of int to random state
        The values that are not in shared memory, by position.
    """

    title = "set_value"

    def __init__(
        self, rank: int, numbers: List[int], handles: List[Any], selections: List[Any], states: Dict[int, Any]
    ) -> None:
        super().__init__(numbers)
        self.rank, self.handles, self.selections, self.states = rank, handles, selections, states

    def reads(self, context: RankContext) -> Iterable[Any]:
        return self.handles

    def undeposited(self, failed: bool) -> Sequence[int]:
        return [self.numbers[i] for i in self.states]

    def run(self, context: RankContext) -> None:
        dense: List[int] = []
        pending, states = Pending([]), []
        if context.rank == self.rank:
            chosen = [i for i in range(len(self.numbers)) if i not in self.states]
            dense = [self.numbers[i] for i in chosen]
            values = [context.pools.attach(self.handles[i]) for i in chosen]
            pending = taken(context, dense, values, [self.selections[i] for i in chosen])
            states = [(context.shareds[self.numbers[i]], state) for i, state in self.states.items()]

        def change() -> None:
            for entry, state in states:
                entry.set(state, Origin.OWN)
            for number in self.numbers:
                context.shareds[number].origin = Origin.OWN

        context.commit_values(dense, pending, change)


def set_value(rank: int, shared_vars: Any, values: Any, batch: Any = None) -> None:
    """Overwrite the variables on one rank: ``x_rank := values``.

    Parameters
    ----------
    rank : int
        The rank, from 0 to n_ranks - 1, whose variables are overwritten.
    shared_vars : shared variable, or list or tuple of them
        What is to be overwritten; the states of random streams may be among them.
        If no function uses a variable yet, the ranks keep its value for one that does.
    values : Data or array of any shape ``shape``, or list of them
        One per variable (not in a list if the variable is not); whatever the variable's own ``set_value`` takes.
        Afterwards the variable has that shape on that rank (with ``batch``, as many rows as it selects).
    batch : int, slice, list, tuple or 1-D integer array, optional
        The rows of the values to take; all by default.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        If an argument is wrong; no value has changed then.
    SharedMemoryError
        If there is no memory for the results; no value has changed then.
    WorkerError
        If something went wrong on another rank; no value has changed then.
    WorkerDied, WorkerTimeout
        If a rank ended, or did not answer in time; the session is closed then, and the survivors hold either all the
        old values or all the new ones.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano
    >>> synk.fork(2)
    2
    >>> w = theano.shared(np.zeros(2), "w")
    >>> total = synk.function([], w.sum())
    >>> synk.set_value(1, w, [2., 6.])
    >>> synk.gather(w)
    array([[0., 0.],
           [2., 6.]])
    """
    variables = checked(shared_vars, states=True, unused=True)
    rank = variables.check_rank(rank)
    with variables.session.lock:
        staged = variables.stage(values, batch)
        for i, value in enumerate(staged):
            if value.rows is not None:
                variables.check_count(i, len(value.rows), "the selected rows of the values for")
        variables.session.run(
            SetValue(
                rank,
                variables.numbers,
                [value.handle for value in staged],
                [value.rows for value in staged],
                {i: value.array for i, value in enumerate(staged) if value.handle is None},
            )
        )
