"""Detection of shared variables that differ between ranks; exact functions reject them.

A variable is *marked* if its values may differ, for example after `scatter`, ``reduce(in_place=True)``, `set_value` on
one rank, or a call to a function that is not exact. The next call to an exact function that uses the variable compares
its values. A marked random state is not compared, because the master's state is then sent to all ranks.
"""

from __future__ import annotations

from typing import Any, Sequence

from ..errors import ArgumentValueError
from ..runtime.registry import Origin, SharedEntry
from ..runtime.session import Session
from .changes import entries_of
from .rank_values import values_by_rank
from .rounding import coarsest, deviation, pair


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
