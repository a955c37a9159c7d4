"""Detect and distribute values that the program has changed on the master since the last command::

    all values unchanged?  --- yes: nothing to do, as in most calls (0.8 us for 20 variables)
         | no
    which variables have changed?
         |
    an exact function: send them to all ranks        any other function: warn that ranks differ
      few bytes        with the command: `News`        (values of inputs and common streams are sent to all)
      more bytes       before it: `SendValues`

Most variables are checked without reading their values (`SharedEntry.has_changed`).

A variable is *marked* if its values may differ between ranks, for example after `scatter`, ``reduce(in_place=True)``,
`set_value` on one rank, or a call to a function that is not exact. The next call to an exact function that uses the
variable compares its values, and is refused if they differ. A marked random state is not compared, because the master's
state is then sent to all ranks.
"""

from __future__ import annotations

import logging
import pickle
from typing import Any, Container, Dict, List, NamedTuple, Optional, Sequence

from .. import engines
from ..errors import ArgumentValueError
from ..program.program import PROGRAM
from ..replication.command import jumped_from, keep_borrowed
from ..replication.replicator import replicator_of
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.news import MAX_NEWS_BYTES, News, news_of
from ..runtime.registry import Origin, SharedEntry
from ..runtime.session import Session
from .rank_values import coarsest, deviation, pair, values_by_rank

logger = logging.getLogger("synkhronos")


def watched(session: Session, engine: Any, shareds: Sequence[Any]) -> List[SharedEntry]:
    """Return the entries of dense, non-random variables, whose changes on the master alone are detected."""
    chosen = [each for each in shareds if engine.shared_type(each) is not None and not engine.is_random(each)]
    return entries_of(session, engine, chosen)


def entries_of(session: Session, engine: Any, shareds: Sequence[Any]) -> List[SharedEntry]:
    """Return the entries of variables in the rank registry, one per storage; none if there is only one rank."""
    if session.size == 1:
        return []
    numbers: Dict[Any, None] = dict.fromkeys(replicator_of(session).find(engine, each) for each in shareds)
    return [session.context.registry.shareds[number] for number in numbers]


def changed(session: Session, entries: Sequence[SharedEntry]) -> List[SharedEntry]:
    """Return the entries whose values the program has changed since the last check."""
    keeps = session.context.transport.keeps
    return [
        entry
        for entry in entries
        if entry.cell[0] is not entry.known and entry.has_changed(session.pool, keeps(entry.key, entry.cell[0]))
    ]


def is_set_by_program(shared: Any) -> bool:
    """Return whether the program has set a variable to a value that the other ranks do not have yet."""
    session, engine = PROGRAM.session, engines.find([shared])
    if session is None or session.closed or engine is None or replicator_of(session).find(engine, shared) is None:
        return False
    entries = watched(session, engine, [shared])
    for entry in changed(session, entries):
        entry.updated()  # so that the next command checks it again
    return any(entry.origin is Origin.PROGRAM for entry in entries)


class Pickled(NamedTuple):
    """The pickled value of a non-dense variable or a random stream; for ``begins`` see `SharedItem`."""

    number: int
    value: bytes
    begins: Optional[int]


class SendValues(Command):
    """Send the master's values of variables to all ranks: dense arrays by broadcast, all other values pickled."""

    title = "values of shared variables"

    def __init__(self, numbers: List[int], others: Sequence[Pickled]) -> None:
        self.numbers, self.others = numbers, others

    def run(self, context: RankContext) -> None:
        is_root, others, entries = context.rank == context.root, [], context.entries(self.numbers)
        for number, pickled, begins in self.others:
            entry = context.registry.shareds[number]
            value = entry.cell[0] if is_root else pickle.loads(pickled)
            if begins is not None:
                value = jumped_from(begins, entry.engine, entry.reference(), value, context.rank, context.size)
            others.append((entry, value, Origin.COMMON if begins is None else Origin.OWN))
        keys, arrays = context.bind(self.numbers, is_root and not context.transport.common.is_open)
        results = context.transport.broadcast(keys, arrays, context.root)
        if is_root:
            keep_borrowed(entries, results)
        context.transaction.commit_values(entries, results, others=others, same=True)


def send_master_values(
    session: Session, entries: Sequence[SharedEntry], dense: Container[int], in_command: bool = False
) -> Sequence[News]:
    """Send all ranks the values that the program has set on the master; separate random streams then start far apart.

    With ``in_command``, small dense values may be returned as `News` for the next command, before `mark_delivered`.
    """
    arrays = [entry for entry in entries if entry.number in dense]
    if in_command and len(arrays) == len(entries) and session.healing is None:
        if sum([entry.cell[0].size * entry.cell[0].dtype.itemsize for entry in arrays]) <= MAX_NEWS_BYTES:
            return [news_of(entry) for entry in arrays]
    if entries:
        others = [entry for entry in entries if entry.number not in dense]
        pickled = [Pickled(entry.number, *replicator_of(session).pickled(*entry)) for entry in others]
        try:
            session.run(SendValues([entry.number for entry in arrays], pickled))
        except BaseException:
            for entry in entries:
                entry.known = None  # so that the variable is checked again
            raise
    return ()


def mark_delivered(session: Session, news: Sequence[News]) -> None:
    """Record that a command has delivered the `News`; values that have changed since then are sent again."""
    shareds = session.context.registry.shareds
    for one in news:
        entry = shareds[one[0]]
        if not entry.may_have_changed():
            entry.origin = Origin.COMMON


def warn_of_changes(function: Any, session: Session, news: Sequence[SharedEntry]) -> None:
    """Warn about variables changed on the master alone; after ``fork(check=True)``, also show other ranks' values."""
    places = {id(function.engine.storage(shared)): i for i, shared in enumerate(function.get_shared())}
    names, lines = [], []
    values = values_by_rank(session, [entry.number for entry in news]) if function.program.check else None
    for i, entry in enumerate(news):
        place = f"f.get_shared()[{places[id(entry.cell)]}]"
        shared = entry.reference()
        both = "" if values is None else _both(values[i], session.root)
        names.append(entry.engine.label(shared, place) + both)
        lines.append(shared.name or place)
    if names:
        logger.warning(
            "function %s: %s %s changed on the master alone since the last command, so the other ranks continue with "
            "the old value%s: synk.broadcast(%s) sends them the new value%s, and exact=True does so automatically",
            function.name or "without a name",
            ", ".join(names),
            *("was", "", lines[0], "") if len(names) == 1 else ("were", "s", f"[{', '.join(lines)}]", "s"),
        )


def _both(parts: Sequence[Any], root: int) -> str:
    """Return the master's value and another rank's value at their largest difference, as text."""
    eps = coarsest([parts[root].dtype])
    for rank, part in enumerate(parts):
        found = deviation(parts[root], part, eps)
        if found is not None:
            value, other = pair(found)
            return f" ({value} on the master, {other} on rank {rank}{found.place.replace(' at', ',')})"
    return " (equal up to rounding)"


def mark_divergent(session: Session, engine: Any, shareds: Sequence[Any]) -> None:
    """Mark variables whose values may differ between ranks."""
    for entry in entries_of(session, engine, shareds):
        entry.origin = Origin.OWN


def check_in_sync(function: Any, session: Session, entries: Sequence[SharedEntry]) -> None:
    """Raise if a marked variable differs between ranks; clear the marks of equal variables."""
    own = Origin.OWN
    for entry in [entry for entry in entries if entry.origin is own]:
        if function.engine.is_random(entry.reference()):
            entry.origin = Origin.PROGRAM  # the master's state will be sent to all ranks
            continue
        (parts,) = values_by_rank(session, [entry.number])
        for rank, part in enumerate(parts):
            found = deviation(part, parts[session.root], coarsest([part.dtype]))
            if found is not None:
                value, other = pair(found)
                cells = [id(function.engine.storage(shared)) for shared in function.get_shared()]
                place = f"f.get_shared()[{cells.index(id(entry.cell))}]"
                name = entry.reference().name or place
                raise ArgumentValueError(
                    f"shared variable {entry.label(place)}",
                    f"the same value on all ranks, because the function {function.name or 'without a name'} is exact",
                    f"{value} on rank {rank}, {other} on the master{found.place}",
                    f"synk.broadcast({name}) sends the master's value to all ranks; if every rank has its own rows of "
                    f"{name}, list {name} in sliceable_shareds",
                )
        entry.origin = Origin.COMMON
