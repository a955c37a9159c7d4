"""`synkhronos.get_value`."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np

from ..runtime.command import Command
from ..runtime.context import RankContext
from .variables import Variables, keys_and_arrays


class GetValue(Command):
    """Copy one rank's values to the master: arrays through shared memory, random states in the rank's answer."""

    def __init__(self, rank: int, numbers: List[int], states: List[int]) -> None:
        self.rank, self.numbers, self.states = rank, numbers, states

    def run(self, context: RankContext) -> Tuple[Optional[List[np.ndarray]], List[Any]]:
        keys, arrays = keys_and_arrays(context, self.numbers)
        gathered = context.transport.gather(keys, arrays)
        values = None if gathered is None else [parts[self.rank].copy() for parts in gathered]
        held = [context.shareds[number] for number in self.states] if context.rank == self.rank else []
        return values, [engine.export(variable) for engine, variable in held]


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
        Where an argument is wrong.

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
    variables = Variables(shared_vars, states=True)
    rank = variables.check_rank(rank)
    session = variables.session
    numbers, states = (
        [number for number, random in zip(variables.numbers, variables.random) if random is wanted]
        for wanted in (False, True)
    )
    answers = session.run(GetValue(rank, numbers, states))
    values, held = iter(answers[session.root][0]), iter(answers[rank][1])
    return variables.one_or_list([next(held if random else values) for random in variables.random])
