"""The values that every rank holds of shared variables, brought to the master, and back."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from ..replication.command import jumped_from
from ..replication.replicator import replicator_of
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.registry import SharedEntry
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


class Pickled(NamedTuple):
    """The value of a variable that is not a dense array, or of a random stream, which begins there on one rank.

    Attributes
    ----------
    number : int
    value : bytes
    begins : int or None
        As of a `SharedItem`.
    """

    number: int
    value: bytes
    begins: Optional[int]


class PutBack(Command):
    """Give every rank its values of variables.

    Parameters
    ----------
    numbers : list of int
        Those of dense arrays.
    handles : list of (list of handle)
        For each of these, where the values of all ranks lie.
    others : sequence of Pickled
    """

    title = "values of shared variables, put back"

    def __init__(self, numbers: List[int], handles: List[List[Any]], others: Sequence[Pickled] = ()) -> None:
        self.numbers, self.handles, self.others = numbers, handles, others

    def undeposited(self, failed: bool) -> Sequence[int]:
        return () if failed else self.numbers

    def run(self, context: RankContext) -> None:
        entries = [context.shareds[number] for number in self.numbers]
        values = [np.array(context.pools.attach(handles[context.rank])) for handles in self.handles]
        news = [entry.engine.to_device(entry.reference(), value) for entry, value in zip(entries, values)]
        for number, pickled, begins in self.others:
            entry, value = context.shareds[number], pickle.loads(pickled)
            if begins is not None:
                value = jumped_from(begins, entry.engine, entry.reference(), value, context.rank, context.size)
            entries.append(entry)
            news.append(value)

        def change() -> None:
            for entry, new in zip(entries, news):
                entry.cell[0] = new

        context.commit(change)


@contextmanager
def put_back(session: Session, numbers: Sequence[int]) -> Iterator[None]:
    """On leaving, give all ranks the values that they have on entering, unless the session has ended."""
    values = held(session, numbers)
    entries = [session.context.shareds[number] for number in numbers]
    were_known = [entry.cell[0] is entry.known for entry in entries]
    try:
        yield
    finally:
        if numbers and not session.closed:
            kept = [[_in_pool(session, value) for value in parts] for parts in values]
            handles = [[session.pool.handle(array) for array in arrays] for arrays in kept]
            session.run(PutBack(list(numbers), handles))
            for entry, was_known in zip(entries, were_known):
                entry.known = entry.cell[0] if was_known else None


def give(entries: Sequence[SharedEntry], session: Session) -> None:
    """Give all ranks what the program has put into the master's variables since the last command.

    Random streams go on far apart on each rank, as after `fork`.
    """
    entries = [entry for entry in entries if entry.cell[0] is not entry.known]
    if entries:
        kept: Dict[int, Any] = {}  # by number: arrays that lie in the pool until all ranks have read them
        others: List[Pickled] = []
        for entry in entries:
            engine, shared = entry
            if engine.is_random(shared) or engine.shared_type(shared) is None:
                others.append(Pickled(entry.number, *replicator_of(session).pickled(engine, shared)))
            else:
                kept[entry.number] = _in_pool(session, engine.to_host(entry.cell[0]))
        handles = [[session.pool.handle(array)] * session.size for array in kept.values()]
        session.run(PutBack(list(kept), handles, others))
        for entry in entries:
            entry.known = entry.cell[0]


def _in_pool(session: Session, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy where every rank can read it."""
    array = session.pool.allocate(value.shape, value.dtype)
    np.copyto(array, value)
    return array
