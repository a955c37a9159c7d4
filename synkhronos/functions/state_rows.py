"""Shared variables that have the batch's rows: the state of each row, from call to call.

Outside of calls the master's variable holds the rows of all ranks, so that everything that the program does to it is
the serial program's: ``get_value``, ``set_value``, functions of the engine. In a call every rank holds its own. ::

    the program          the master's variable         the other ranks'
    ------------------   -------------------------     -----------------------------------
    H.set_value(v)       v, all rows                   (rows of before)
    f(X, Y)              its own rows                  their own rows: sent, if H has changed, or ranks take others
                         all rows                      (their own rows), brought together, if f updates H
    H.get_value()        all rows                      (their own rows)
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .. import engines
from ..errors import ArgumentValueError
from ..partition import split_rows
from ..program.program import PROGRAM
from ..replication.replicator import replicator_of
from ..runtime.registry import Origin, RowsOfRanks, SharedEntry
from ..runtime.session import Session
from .held import give_rank_values, held


class State(NamedTuple):
    """A shared variable of a function that has the batch's rows, as the master knows it.

    Attributes
    ----------
    entry : SharedEntry
    rows : RowsOfRanks
        What the ranks have.
    axis : int
        Of its rows.
    is_updated : bool
        Whether the function updates it.
    """

    entry: SharedEntry
    rows: RowsOfRanks
    axis: int
    is_updated: bool

    def part(self, begin: int, end: int) -> Any:
        """Return some of all rows, which the master has."""
        whole = self.entry.engine.to_host(self.entry.cell[0])
        return whole[(*[slice(None)] * self.axis, slice(begin, end))]


def states_of(session: Session, engine: Any, axes: Dict[Any, int], updated: Sequence[Any]) -> List[State]:
    """Return the states of a function that the ranks have; on one rank there is nothing to divide.

    From then on other functions, and collectives, must not take them for ordinary variables.
    """
    if session.size == 1 or not axes:
        return []
    changing = {engine.identity(shared) for shared in updated}
    found = []
    for shared, axis in axes.items():
        number = replicator_of(session).find(engine, shared)
        assert number is not None
        entry = session.context.shareds[number]
        if entry.rows is None:
            entry.rows, entry.known = RowsOfRanks(axis), None
            session.caches.pop("collectives", None)  # they have taken it for an ordinary variable
        found.append(State(entry, entry.rows, axis, engine.identity(shared) in changing))
    return found


def rows_of_states(engine: Any, axes: Dict[Any, int], n_rows: Optional[int], num_slices: Any = 1) -> Optional[int]:
    """Return the number of rows of a call, those of its states if it has no other.

    Raises
    ------
    ArgumentValueError
        If a state has another number of rows, or the call is to be made in slices.
    """
    for i, (shared, axis) in enumerate(axes.items()):
        label, length = engine.label(shared, f"state {i}"), engine.storage(shared)[0].shape[axis]
        if isinstance(num_slices, (int, np.integer)) and num_slices > 1:
            expected = f"1, because {label} has the batch's rows, all of which a call takes at once"
            raise ArgumentValueError("num_slices", expected, str(num_slices), "call it with fewer rows")
        if n_rows is None:
            n_rows = length
        elif length != n_rows:
            hint = f"{shared.name + '.' if shared.name else 'its '}set_value(value) takes the rows of all ranks"
            expected = f"as many rows as the call, {n_rows} along axis {axis}"
            raise ArgumentValueError(f"shared variable {label}", expected, str(length), hint)
    return n_rows


def axis_of_rows(shared: Any) -> Optional[int]:
    """Return the axis along which a variable has the batch's rows in the program's session; None if it has not."""
    session, engine = PROGRAM.session, engines.find([shared])
    if session is None or session.closed or engine is None:
        return None
    number = replicator_of(session).find(engine, shared)
    rows = None if number is None else session.context.shareds[number].rows
    return None if rows is None else rows.axis


def refuse_rows(function: Any, entries: Sequence[SharedEntry]) -> None:
    """Refuse a function that takes for the same on all ranks what another one has named as rows."""
    for entry in entries:
        if entry.rows is not None:
            name = entry.reference().name or "it"
            raise ArgumentValueError(
                f"shared variable {entry.label()}",
                f"to be named in function {function.name}, too, because in another one every rank has its rows of it",
                "a variable of which each rank uses the whole",
                f"list synkhronos.sharded({name}, axis={entry.rows.axis}) in its inputs, or call it by as_theano",
            )


@contextmanager
def on_ranks(session: Session, states: Sequence[State], joint: bool) -> Iterator[None]:
    """Have every rank hold its own rows of states meanwhile; afterwards the master has those of all.

    If what is done meanwhile fails, the ranks' rows are brought together as they are then; if there are no ranks any
    more, the master has those of before.

    Parameters
    ----------
    session : Session
    states : sequence of State
        Of equal numbers of rows.
    joint : bool
        Whether ranks without rows make calls, too: with one row, which does not count.
    """
    wholes = [state.entry.cell[0] for state in states]
    bounds = split_rows(wholes[0].shape[states[0].axis], session.size, session.root)
    taken = [(0, min(1, bounds[-1][1])) if joint and begin == end else (begin, end) for begin, end in bounds]
    news = [state for state in states if not state.rows.are_on_ranks(state.entry, taken)]
    are_out = False
    try:
        if news:
            values = [[state.part(*each) for each in taken] for state in news]
            give_rank_values(session, [state.entry.number for state in news], values)
        for state in states:
            if state not in news:
                state.entry.set(state.rows.own, Origin.UNDONE)
            state.rows.is_away = True
        are_out = True
        yield
    finally:
        _bring_home(session, states, wholes, bounds, taken, are_out)


def _bring_home(
    session: Session,
    states: Sequence[State],
    wholes: Sequence[Any],
    bounds: Sequence[Tuple[int, int]],
    taken: Sequence[Tuple[int, int]],
    are_out: bool,
) -> None:
    """Give the master's variables the rows of all ranks; those of before if these do not have theirs, or are gone."""
    changed = [state for state in states if state.is_updated]
    of_ranks: Dict[int, List[Any]] = {}
    try:
        if are_out and not session.closed:
            numbers = [state.entry.number for state in changed]
            of_ranks = dict(zip(numbers, held(session, numbers)))
    finally:
        for state, whole in zip(states, wholes):
            entry, rows, parts = state.entry, state.rows, of_ranks.get(state.entry.number)
            rows.own, rows.is_away = entry.cell[0], False
            if parts is not None:
                counting = [part for part, (begin, end) in zip(parts, bounds) if begin < end] or [parts[session.root]]
                whole = entry.engine.to_device(entry.reference(), np.concatenate(counting, state.axis))
            entry.set(whole, Origin.COMMON)
            entry.known = None  # so that whoever takes it for an ordinary variable looks: see `refuse_rows`
            rows.whole = whole if parts is not None or are_out and not state.is_updated else None
            rows.taken = list(taken)
