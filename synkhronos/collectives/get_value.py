"""`synkhronos.get_value`: return one rank's values on the master."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from ..kernels.copy import copy_into
from ..runtime.context import RankContext
from .arguments import checked, or_rank_first
from .command import CollectiveCommand, Joint
from .results import ResultMemory


class GetValue(CollectiveCommand):
    """Copy one rank's values to the master: arrays through shared memory, random states in the rank's answer."""

    title = "get_value"

    def __init__(self, numbers: List[int], rank: int, states: Sequence[int]) -> None:
        super().__init__([number for number in numbers if number not in states])
        self.rank, self.states = rank, states

    def run(self, context: RankContext) -> Tuple[Optional[List[np.ndarray[Any, Any]]], List[Any]]:
        is_theirs = context.rank == self.rank
        keys, arrays = context.bind(self.numbers, is_theirs and context.rank != context.root)
        gathered = context.transport.gather(keys, arrays if is_theirs else [None] * len(keys))
        values = None if gathered is None else self.answer(gathered, context)[0]
        held = context.entries(self.states) if is_theirs else []
        return values, [engine.export(variable) for engine, variable in held]

    def joint(self, context: RankContext) -> Optional[Joint]:
        return None if self.states else Joint("gather", self.rank)

    def answer(self, results: Any, context: RankContext) -> Tuple[List[np.ndarray[Any, Any]], List[Any]]:
        return [copied(parts[self.rank], context) for parts in results], []

    def finish(self, results: List[Any], context: RankContext) -> Tuple[List[np.ndarray[Any, Any]], List[Any]]:
        return results[context.root][0], results[self.rank][1] if self.states else []


def copied(value: np.ndarray[Any, Any], context: RankContext) -> np.ndarray[Any, Any]:
    copy = context.kept(ResultMemory).empty(value.shape, value.dtype)
    copy_into(copy, value)
    return copy


@or_rank_first
def get_value(shared_vars: Any, rank: int) -> Any:
    """Return a copy of one rank's values of the variables, without changing them.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        The variables, which may include the states of random streams.
    rank : int
        The rank, from 0 to n_ranks - 1. As in the 2017 version, it may come first: ``get_value(1, w)``.

    Returns
    -------
    array (or random state), or list of these
        The variable's value on that rank; for a list of variables, a list of values.

    Raises
    ------
    TypeError, ValueError, StateError, SharedMemoryError, RankFailure
        See `synkhronos.errors`.

    Examples
    --------
    >>> import numpy as np, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2)
    >>> w = theano.shared(np.zeros(2), "w")
    >>> synk.set_value(w, [2., 6.], rank=1)
    >>> synk.get_value(w, rank=0), synk.get_value(w, rank=1)
    (array([0., 0.]), array([2., 6.]))
    """
    variables = checked(shared_vars, states=True)
    rank = variables.check_rank(rank)
    states = [number for number, random in zip(variables.numbers, variables.random) if random]
    values, held = map(iter, variables.run(GetValue, rank, tuple(states)))
    return variables.one_or_list([next(held if random else values) for random in variables.random])
