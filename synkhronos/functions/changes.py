"""Shared variables that the program has changed on the master alone, which parts the ranks.

``w.set_value(...)`` puts another object into the storage of the master's variable. After each command the master notes
which object every storage holds, so that a call can look whether it is still there (`Plans.are_known`). Values that are
written in place cannot be seen: those of ``get_value(borrow=True)``, and what Theano's own functions update. A
function's `as_theano` updates in place, too, but says so.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Optional, Sequence

from ..replication.replicator import replicator_of
from ..runtime.registry import SharedEntry
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


def note_changed(session: Optional[Session], engine: Any, shareds: Sequence[Any]) -> None:
    """Note that the program has changed variables on the master, be it in place."""
    if session is not None and not session.closed:
        for number in [replicator_of(session).find(engine, shared) for shared in shareds]:
            if number is not None:
                session.context.shareds[number].known = None


def tell(function: Any, session: Session, entries: Sequence[SharedEntry]) -> None:
    """Log which variables of the function the program has changed on the master alone, each once.

    If the program is to be checked, what ranks hold is brought together to say it with both values.
    """
    places = {id(function.engine.storage(shared)): i for i, shared in enumerate(function.get_shared())}
    names, lines = [], []
    news = [entry for entry in entries if entry.cell[0] is not entry.known and not entry.told]
    values = held(session, [entry.number for entry in news]) if function.program.check else None
    for i, entry in enumerate(news):
        entry.told = True
        place = f"f.get_shared()[{places[id(entry.cell)]}]"
        shared = entry.reference()
        both = "" if values is None else _both(values[i], session.root)
        names.append(entry.engine.label(shared, place) + both)
        lines.append(shared.name or place)
    if names:
        logger.warning(
            "function %s: %s %s changed on the master alone since the last command, by set_value or as_theano, so the "
            "other ranks go on with the old value%s: synk.broadcast(%s) gives them the new one%s",
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
