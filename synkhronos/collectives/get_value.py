"""`synkhronos.get_value`."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np

from ..runtime.context import RankContext
from .arguments import checked
from .command import CollectiveCommand


class GetValue(CollectiveCommand):
    """Copy one rank's values to the master: arrays through shared memory, random states in the rank's answer."""

    title = "get_value"

    def __init__(self, rank: int, numbers: List[int], states: List[int]) -> None:
        super().__init__(numbers)
        self.rank, self.states = rank, states

    def run(self, context: RankContext) -> Tuple[Optional[List[np.ndarray]], List[Any]]:
        is_theirs = context.rank == self.rank
        keys, arrays = context.bind(self.numbers)
        gathered = context.transport.gather(keys, arrays if is_theirs else [None] * len(keys))
        values = None if gathered is None else [parts[self.rank].copy() for parts in gathered]
        held = [context.shareds[number] for number in self.states] if is_theirs else []
        return values, [engine.export(variable) for engine, variable in held]

    def finish(self, results: List[Any], context: RankContext) -> Tuple[List[np.ndarray], List[Any]]:
        return results[context.root][0], results[self.rank][1]


def get_value(rank: int, shared_vars: Any) -> Any:
    """Return a copy of one rank's values of the variables; nothing changes.

    Parameters
    ----------
    rank : int
        Whose.
    shared_vars : shared variable, or list or tuple of them
        Which; the states of random streams may be among them.

    Returns
    -------
    array (or random state), or list of these
        For a variable alone its value alone.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        If an argument is wrong.
    SharedMemoryError
        If there is no memory for the results; no value has changed then.
    WorkerError
        If something went wrong on another rank; no value has changed then.
    WorkerDied, WorkerTimeout
        If a rank ended, or did not answer in time; the session is closed then.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano
    >>> synk.fork(2)
    2
    >>> w = theano.shared(np.zeros(2), "w")
    >>> total = synk.function([], w.sum())
    >>> synk.set_value(1, w, [2., 6.])
    >>> synk.get_value(0, w), synk.get_value(1, w)
    (array([0., 0.]), array([2., 6.]))
    """
    variables = checked(shared_vars, states=True)
    rank = variables.check_rank(rank)
    numbers, states = (
        [number for number, random in zip(variables.numbers, variables.random) if random is wanted]
        for wanted in (False, True)
    )
    values, held = map(iter, variables.session.run(GetValue(rank, numbers, states)))
    return variables.one_or_list([next(held if random else values) for random in variables.random])
