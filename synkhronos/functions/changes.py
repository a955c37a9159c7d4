"""Shared variables that the program has changed on the master, by whatever means, since the last command.

Whether it has is found without a look at most values (`SharedEntry.has_changed`). ::

    are all known?  --- yes: nothing is done, as in most calls (0.3 us for 20 variables)
         | no
    which have changed?
         |
    an exact function: all ranks are given them      another function: the log says that ranks differ (as in 2017)
      few bytes        with the command: `News`        but the values of inputs, and common streams, are given to all
      others           before it: `GiveValues`
"""

from __future__ import annotations

import logging
import pickle
from typing import Any, Container, Dict, List, NamedTuple, Optional, Sequence

from .. import engines
from ..program.program import PROGRAM
from ..replication.command import jumped_from, keep_borrowed
from ..replication.replicator import replicator_of
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.news import MAX_NEWS_BYTES, News
from ..runtime.registry import Origin, SharedEntry
from ..runtime.session import Session
from .held import held
from .rounding import coarsest, deviation, pair

logger = logging.getLogger("synkhronos")


def watched(session: Session, engine: Any, shareds: Sequence[Any]) -> List[SharedEntry]:
    """Return the entries of variables that the master should not change alone: of random streams each has its own."""
    chosen = [each for each in shareds if engine.shared_type(each) is not None and not engine.is_random(each)]
    return entries_of(session, engine, chosen)


def entries_of(session: Session, engine: Any, shareds: Sequence[Any]) -> List[SharedEntry]:
    """Return the entries of variables that other ranks have as well, each storage once."""
    if session.size == 1:
        return []
    numbers: Dict[Any, None] = dict.fromkeys(replicator_of(session).find(engine, each) for each in shareds)
    return [session.context.shareds[number] for number in numbers]


def changed(session: Session, entries: Sequence[SharedEntry]) -> List[SharedEntry]:
    """Return those of the variables whose values the program has changed since this was asked last."""
    keeps = session.context.transport.keeps
    return [
        entry
        for entry in entries
        if entry.cell[0] is not entry.known and entry.has_changed(session.pool, keeps(entry.key, entry.cell[0]))
    ]


def is_set_by_program(shared: Any) -> bool:
    """Return whether the program has set a variable that the other ranks are still to be given by exact functions."""
    session, engine = PROGRAM.session, engines.find([shared])
    if session is None or session.closed or engine is None or replicator_of(session).find(engine, shared) is None:
        return False
    entries = watched(session, engine, [shared])
    for entry in changed(session, entries):
        entry.updated()  # so that the next command looks at it again
    return any(entry.origin is Origin.PROGRAM for entry in entries)


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


class GiveValues(Command):
    """Give all ranks the master's values of variables.

    Parameters
    ----------
    numbers : list of int
        Those of dense arrays.
    others : sequence of Pickled
    """

    title = "values of shared variables"

    def __init__(self, numbers: List[int], others: Sequence[Pickled]) -> None:
        self.numbers, self.others = numbers, others

    def run(self, context: RankContext) -> None:
        is_root, news, origins = context.rank == context.root, [], []
        for number, pickled, begins in self.others:
            entry = context.shareds[number]
            value = entry.cell[0] if is_root else pickle.loads(pickled)
            if begins is not None:
                value = jumped_from(begins, entry.engine, entry.reference(), value, context.rank, context.size)
            news.append((entry, value))
            origins.append(Origin.COMMON if begins is None else Origin.OWN)
        keys, arrays = context.bind(self.numbers)
        results = context.transport.broadcast(keys, arrays, context.root)
        if is_root:
            keep_borrowed([context.shareds[number] for number in self.numbers], results)
        if context.deposits is not None:
            context.deposits.tell(news)

        def change() -> None:
            for (entry, value), origin in zip(news, origins):
                entry.set(value, origin)

        context.commit_values(self.numbers, results, change, same=True)


def give(
    session: Session, entries: Sequence[SharedEntry], dense: Container[int], in_command: bool = False
) -> Sequence[News]:
    """Give all ranks the values that the program has put into the master's variables.

    Random streams go on far apart on each rank, as after `fork`.

    Parameters
    ----------
    entries : sequence of SharedEntry
    dense : container of int
        The numbers of those that are dense arrays, and no random states.
    in_command : bool
        Whether few bytes may travel with the next command, which must follow.

    Returns
    -------
    sequence of News
        What is to travel with it, to be given to `were_given` then.
    """
    arrays = [entry for entry in entries if entry.number in dense]
    if in_command and len(arrays) == len(entries) and session.healing is None:
        if sum([entry.cell[0].size * entry.cell[0].dtype.itemsize for entry in arrays]) <= MAX_NEWS_BYTES:
            return [News.of(entry) for entry in arrays]
    if entries:
        others = [entry for entry in entries if entry.number not in dense]
        pickled = [Pickled(entry.number, *replicator_of(session).pickled(*entry)) for entry in others]
        try:
            session.run(GiveValues([entry.number for entry in arrays], pickled))
        except BaseException:
            for entry in entries:
                entry.known = None  # it is looked at again
            raise
    return ()


def were_given(session: Session, news: Sequence[News]) -> None:
    """Note that a command has taken news along, and has succeeded; what did not is given again."""
    for number, *_ in news:
        entry = session.context.shareds[number]
        if not entry.may_have_changed():
            entry.origin = Origin.COMMON


def tell(function: Any, session: Session, news: Sequence[SharedEntry]) -> None:
    """Log which variables of the function the program has changed on the master alone.

    If the program is to be checked, what ranks hold is brought together to say it with both values.
    """
    places = {id(function.engine.storage(shared)): i for i, shared in enumerate(function.get_shared())}
    names, lines = [], []
    values = held(session, [entry.number for entry in news]) if function.program.check else None
    for i, entry in enumerate(news):
        place = f"f.get_shared()[{places[id(entry.cell)]}]"
        shared = entry.reference()
        both = "" if values is None else _both(values[i], session.root)
        names.append(entry.engine.label(shared, place) + both)
        lines.append(shared.name or place)
    if names:
        logger.warning(
            "function %s: %s %s changed on the master alone since the last command, so the other ranks go on with the "
            "old value%s: synk.broadcast(%s) gives them the new one%s, and exact=True does so by itself",
            function.name or "without a name",
            ", ".join(names),
            *("was", "", lines[0], "") if len(names) == 1 else ("were", "s", f"[{', '.join(lines)}]", "s"),
        )


def _both(parts: Sequence[Any], root: int) -> str:
    """Return the master's value and the other ranks', where they differ most."""
    eps = coarsest([parts[root].dtype])
    for rank, part in enumerate(parts):
        found = deviation(parts[root], part, eps)
        if found is not None:
            value, other = pair(found)
            return f" ({value} on the master, {other} on rank {rank}{found.place.replace(' at', ',')})"
    return " (by no more than rounding)"
