"""The values that every rank holds of shared variables, brought to the master, and back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Sequence

import numpy as np

from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.registry import Origin
from ..runtime.session import Session


class HeldValues(Command):
    """Copy every rank's values of dense variables to the master.

    Parameters
    ----------
    numbers : list of int
        The variables, in the registry.
    """

    title = "values of shared variables"

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> Optional[List[List[np.ndarray[Any, Any]]]]:
        gathered = context.transport.gather(*context.bind(self.numbers))
        return None if gathered is None else [[np.array(part) for part in parts] for parts in gathered]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]


def held(session: Session, numbers: Sequence[int]) -> List[List[np.ndarray[Any, Any]]]:
    """Return, for each of the variables, its values by rank; nothing changes."""
    found: List[List[np.ndarray[Any, Any]]] = session.run(HeldValues(list(numbers))) if numbers else []
    return found


class PutBack(Command):
    """Give every rank its values of variables, those of dense arrays.

    Parameters
    ----------
    numbers : list of int
    handles : list of (list of handle)
        For each variable, where the values of all ranks lie.
    """

    title = "values of shared variables, put back"

    def __init__(self, numbers: List[int], handles: List[List[Any]]) -> None:
        self.numbers, self.handles = numbers, handles

    def run(self, context: RankContext) -> None:
        entries = [context.shareds[number] for number in self.numbers]
        values = [np.array(context.pools.attach(handles[context.rank])) for handles in self.handles]
        news = [entry.engine.to_device(entry.reference(), value) for entry, value in zip(entries, values)]

        def change() -> None:
            for entry, new in zip(entries, news):
                entry.set(new, Origin.UNDONE)

        if context.deposits is None:
            context.commit(change)
        else:
            context.begin_changes(self.numbers)
            change()
            context.commit_changes(self.numbers, None)


@contextmanager
def put_back(session: Session, numbers: Sequence[int]) -> Iterator[None]:
    """On leaving, give all ranks the values that they have on entering, unless the session has ended."""
    values = held(session, numbers)
    try:
        yield
    finally:
        if numbers and not session.closed:
            give_rank_values(session, numbers, values)


def give_rank_values(session: Session, numbers: Sequence[int], values: Sequence[Sequence[Any]]) -> None:
    """Give every rank its value of each of the variables: ``values[i][rank]``."""
    kept = [[_in_pool(session, value) for value in parts] for parts in values]
    handles = [[session.pool.handle(array) for array in arrays] for arrays in kept]
    session.run(PutBack(list(numbers), handles))


def _in_pool(session: Session, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy where every rank can read it."""
    array = session.pool.allocate(value.shape, value.dtype)
    np.copyto(array, value)
    return array
