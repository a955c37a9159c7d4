"""Gather every rank's values of shared variables on the master, and set them on the ranks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Sequence

import numpy as np

from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.registry import Origin
from ..runtime.session import Session


class GatherValues(Command):
    """Gather every rank's values of dense variables on the master."""

    title = "values of shared variables"

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> Optional[List[List[np.ndarray[Any, Any]]]]:
        gathered = context.transport.gather(*context.bind(self.numbers))
        return None if gathered is None else [[np.array(part) for part in parts] for parts in gathered]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]


def values_by_rank(session: Session, numbers: Sequence[int]) -> List[List[np.ndarray[Any, Any]]]:
    """Return the values of each variable by rank, without changing them."""
    found: List[List[np.ndarray[Any, Any]]] = session.run(GatherValues(list(numbers))) if numbers else []
    return found


class SetValues(Command):
    """Set every rank's values of dense variables; ``handles[i][rank]`` locates a rank's value of variable i."""

    title = "setting values of shared variables"

    def __init__(self, numbers: List[int], handles: List[List[Any]]) -> None:
        self.numbers, self.handles = numbers, handles

    def run(self, context: RankContext) -> None:
        entries = context.entries(self.numbers)
        values = [np.array(context.pools.attach(handles[context.rank])) for handles in self.handles]
        news = [entry.engine.to_device(entry.reference(), value) for entry, value in zip(entries, values)]

        def change() -> None:
            for entry, new in zip(entries, news):
                entry.set(new, Origin.UNDONE)

        context.transaction.protect(entries)
        context.transaction.commit(change)


@contextmanager
def preserve_values(session: Session, numbers: Sequence[int]) -> Iterator[None]:
    """On exit, restore the values that the variables had on every rank on entry, unless the session is closed."""
    values = values_by_rank(session, numbers)
    try:
        yield
    finally:
        if numbers and not session.closed:
            give_rank_values(session, numbers, values)


def give_rank_values(session: Session, numbers: Sequence[int], values: Sequence[Sequence[Any]]) -> None:
    """Set the i-th variable to ``values[i][rank]`` on every rank."""
    kept = [[_in_pool(session, value) for value in parts] for parts in values]
    handles = [[session.pool.handle(array) for array in arrays] for arrays in kept]
    session.run(SetValues(list(numbers), handles))


def _in_pool(session: Session, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy a value into memory that every rank can read; return the copy."""
    array = session.pool.allocate(value.shape, value.dtype)
    np.copyto(array, value)
    return array
