"""`synkhronos.set_value`."""

from __future__ import annotations

from typing import Any, Dict, List

from ..runtime.command import Command
from ..runtime.context import RankContext
from .variables import Variables, keep


class SetValue(Command):
    """Overwrite variables on one rank.

    Parameters
    ----------
    rank : int
        Whose.
    numbers : list of int
        The variables.
    handles, selections : list
        The values in shared memory, and their rows that are meant (None: all).
    states : dict of int to random state
        The values that are not in shared memory, by position.
    """

    def __init__(
        self, rank: int, numbers: List[int], handles: List[Any], selections: List[Any], states: Dict[int, Any]
    ) -> None:
        self.rank, self.numbers, self.handles, self.selections, self.states = rank, numbers, handles, selections, states

    def run(self, context: RankContext) -> None:
        results: List[Any] = [None] * len(self.numbers)
        if context.rank == self.rank:
            for i, (number, handle, selection) in enumerate(zip(self.numbers, self.handles, self.selections)):
                if i in self.states:
                    results[i] = self.states[i]
                    continue
                key, values = ("shared", number), context.pools.attach(handle)
                if selection is None:
                    results[i] = context.transport.store(key, values)
                else:
                    result = context.transport.allocate(key, (len(selection),) + values.shape[1:], values.dtype)
                    results[i] = selection.take(values, out=result)
        keep(context, self.numbers, results)


def set_value(rank: int, shared_vars: Any, values: Any, batch: Any = None) -> None:
    """Overwrite the variables on one rank: ``x_rank := values``.

    Parameters
    ----------
    rank : int
        Whose.
    shared_vars : shared variable, or list or tuple of them
        What is to be overwritten; the states of random streams may be among them.
    values : Data or array, or list of them
        One per variable (alone for a variable alone); whatever the variable's own ``set_value`` takes.
    batch : int, slice, list, tuple or 1-D integer array, optional
        The rows of the values to take; all by default.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        Where an argument is wrong; no value has changed then.

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
    variables = Variables(shared_vars, states=True)
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
