"""`synkhronos.set_value`: overwrite variables on one rank."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Sequence

from ..runtime.context import RankContext
from ..runtime.registry import Origin
from ..transports.base import Pending
from .arguments import checked, or_rank_first
from .command import CollectiveCommand, taken


class SetValue(CollectiveCommand):
    """Overwrite variables on one rank with selected rows of values in shared memory.

    A selection of None means all rows. ``states`` maps positions in ``numbers`` to values outside shared memory.
    """

    title = "set_value"

    def __init__(
        self, rank: int, numbers: List[int], handles: List[Any], selections: List[Any], states: Dict[int, Any]
    ) -> None:
        super().__init__(numbers)
        self.rank, self.handles, self.selections, self.states = rank, handles, selections, states

    def reads(self, context: RankContext) -> Iterable[Any]:
        return self.handles

    def unsaved(self, failed: bool) -> Sequence[int]:
        return [self.numbers[i] for i in self.states]

    def run(self, context: RankContext) -> None:
        dense: List[int] = []
        pending: Pending = []
        states: List[Any] = []
        if context.rank == self.rank:
            chosen = [i for i in range(len(self.numbers)) if i not in self.states]
            dense = [self.numbers[i] for i in chosen]
            values = [context.pools.attach(self.handles[i]) for i in chosen]
            pending = taken(context, dense, values, [self.selections[i] for i in chosen])
            states = [(context.registry.shareds[self.numbers[i]], state) for i, state in self.states.items()]

        def change() -> None:
            for entry, state in states:
                entry.set(state, Origin.OWN)
            for number in self.numbers:
                context.registry.shareds[number].origin = Origin.OWN

        context.transaction.commit_values(context.entries(dense), pending, change)


@or_rank_first
def set_value(shared_vars: Any, values: Any, rank: int, batch: Any = None) -> None:
    """Overwrite the variables on one rank: ``x_rank := values``.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        The variables to overwrite, which may include the states of random streams. If no function uses a variable yet,
        the ranks store its value for later functions.
    values : Data or array of any shape ``shape``, or list of them
        One value per variable (no list for a single variable), as for the variable's own ``set_value``. Afterwards, the
        variable has this shape on the rank; with ``batch``, its length is the number of selected rows.
    rank : int
        The rank, from 0 to n_ranks - 1. As in the 2017 version, it may come first: ``set_value(1, w, value)``.
    batch : int, slice, list, tuple or 1-D integer array, optional
        The rows of the values to use; all by default.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`. If a rank died, the values may have been set; otherwise, no value has changed.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> w = theano.shared(np.zeros(2), "w")
    >>> synk.set_value(w, [2., 6.], rank=1)
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
