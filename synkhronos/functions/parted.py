"""Shared variables of which ranks are meant to hold different values, which an exact function refuses.

In its graph they count as the same on all ranks. After `scatter`, ``reduce(in_place=True)`` or `set_value` of one rank,
and after a call of a function that is not exact, in which ranks update from their own rows or a rank without rows has
updated nothing, the master knows that they may not be, so the next call of an exact function that uses one looks.
Streams that all ranks have in common are not refused: the master's state is the serial program's, and is given to all.
"""

from __future__ import annotations

from typing import Any, Sequence

from ..errors import ArgumentValueError
from ..runtime.registry import Origin, SharedEntry
from ..runtime.session import Session
from .changes import entries_of
from .held import held
from .rounding import coarsest, deviation, pair


def note_parted(session: Session, engine: Any, shareds: Sequence[Any]) -> None:
    """Note that ranks may hold different values of variables that they have."""
    for entry in entries_of(session, engine, shareds):
        entry.origin = Origin.OWN


def refuse_parted(function: Any, session: Session, entries: Sequence[SharedEntry]) -> None:
    """Raise if ranks hold different values of a variable that may be parted; note it if they do not.

    Raises
    ------
    ArgumentValueError
        Names the first such variable, with both values.
    """
    for entry in [entry for entry in entries if entry.origin is Origin.OWN]:
        if function.engine.is_random(entry.reference()):
            entry.origin = Origin.PROGRAM  # all ranks are given the master's
            continue
        (parts,) = held(session, [entry.number])
        for rank, part in enumerate(parts):
            found = deviation(part, parts[session.root], coarsest([part.dtype]))
            if found is not None:
                value, other = pair(found)
                cells = [id(function.engine.storage(shared)) for shared in function.get_shared()]
                place = f"f.get_shared()[{cells.index(id(entry.cell))}]"
                name = entry.reference().name or place
                raise ArgumentValueError(
                    f"shared variable {entry.label(place)}",
                    f"the same value on all ranks, because function {function.name} is exact",
                    f"{value} on rank {rank}, {other} on the master{found.place}",
                    f"synk.broadcast({name}) gives all ranks the master's; if every rank has its own rows of it, name "
                    "it in sliceable_shareds",
                )
        entry.origin = Origin.COMMON
