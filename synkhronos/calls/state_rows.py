"""Shared variables with the batch's rows: one state per row, carried from call to call.

Between calls, the master's variable contains the rows of all ranks, so it behaves as in the serial program. During a
call, every rank has its own rows. ::

    the program          the master's variable         the other ranks'
    ------------------   -------------------------     -----------------------------------
    H.set_value(v)       v, all rows                   (old rows)
    f(X, Y)              its own rows                  their own rows: sent if H or the division has changed
                         all rows                      (their own rows), gathered if f updates H
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
from .rank_values import send_rank_values, values_by_rank


class RowState(NamedTuple):
    """A function's shared variable with the batch's rows, on the master."""

    entry: SharedEntry
    rows: RowsOfRanks
    axis: int
    is_updated: bool

    def part(self, begin: int, end: int) -> Any:
        whole = self.entry.engine.to_host(self.entry.cell[0])
        return whole[(*[slice(None)] * self.axis, slice(begin, end))]


def states_of(session: Session, engine: Any, axes: Dict[Any, int], updated: Sequence[Any]) -> List[RowState]:
    """Return a function's states, marked so that other functions reject them as ordinary variables; [] for one rank."""
    if session.size == 1 or not axes:
        return []
    changing = {engine.identity(shared) for shared in updated}
    found = []
    for shared, axis in axes.items():
        number = replicator_of(session).find(engine, shared)
        assert number is not None
        entry = session.context.registry.shareds[number]
        if entry.rows is None:
            entry.rows, entry.known = RowsOfRanks(axis), None
            session.caches.pop("collectives", None)  # this cache lists the variable as an ordinary variable
        found.append(RowState(entry, entry.rows, axis, engine.identity(shared) in changing))
    return found


def rows_of_states(engine: Any, axes: Dict[Any, int], n_rows: Optional[int], num_slices: Any = 1) -> Optional[int]:
    """Return a call's row count, by default its states' count; raise if counts differ or states would be sliced."""
    for i, (shared, axis) in enumerate(axes.items()):
        label, length = engine.label(shared, f"state {i}"), engine.storage(shared)[0].shape[axis]
        if isinstance(num_slices, (int, np.integer)) and num_slices > 1:
            expected = f"1, because {label} has the batch's rows, and a call uses all of these rows together"
            raise ArgumentValueError("num_slices", expected, str(num_slices), "call the function with fewer rows")
        if n_rows is None:
            n_rows = length
        elif length != n_rows:
            hint = f"{shared.name + '.' if shared.name else 'its '}set_value(value) sets the rows of all ranks"
            expected = f"the call's number of rows, {n_rows} along axis {axis}"
            raise ArgumentValueError(f"shared variable {label}", expected, str(length), hint)
    return n_rows


def axis_of_rows(shared: Any) -> Optional[int]:
    """Return the axis of the batch's rows of a variable in the current session; None if it has no such rows."""
    session, engine = PROGRAM.session, engines.find([shared])
    if session is None or session.closed or engine is None:
        return None
    number = replicator_of(session).find(engine, shared)
    rows = None if number is None else session.context.registry.shareds[number].rows
    return None if rows is None else rows.axis


def refuse_rows(function: Any, entries: Sequence[SharedEntry]) -> None:
    """Raise for a function that uses a variable as a whole although another function divides its rows."""
    for entry in entries:
        if entry.rows is not None:
            name = entry.reference().name or "it"
            raise ArgumentValueError(
                f"shared variable {entry.label()}",
                f"an input of the function {function.name or 'without a name'}, because another one divides its rows",
                "a variable that each rank uses as a whole",
                f"list synkhronos.sharded({name}, axis={entry.rows.axis}) in the function's inputs, or use as_theano",
            )


@contextmanager
def rows_on_ranks(session: Session, states: Sequence[RowState], all_ranks_call: bool) -> Iterator[None]:
    """Distribute the rows of states over the ranks in this block; afterwards, the master has all ranks' rows again.

    If the block fails, the ranks' current rows are gathered; if the ranks are gone, the old value is restored. With
    ``all_ranks_call``, ranks without rows also make calls, with one row that does not count.
    """
    wholes = [state.entry.cell[0] for state in states]
    bounds = split_rows(wholes[0].shape[states[0].axis], session.size, session.root)
    taken = [(0, min(1, bounds[-1][1])) if all_ranks_call and begin == end else (begin, end) for begin, end in bounds]
    news = [state for state in states if not state.rows.are_on_ranks(state.entry, taken)]
    are_out = False
    try:
        if news:
            values = [[state.part(*each) for each in taken] for state in news]
            send_rank_values(session, [state.entry.number for state in news], values)
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
    states: Sequence[RowState],
    wholes: Sequence[Any],
    bounds: Sequence[Tuple[int, int]],
    taken: Sequence[Tuple[int, int]],
    are_out: bool,
) -> None:
    """Set the master's updated variables to the gathered rows of all ranks, if possible; restore all other values."""
    changed = [state for state in states if state.is_updated]
    of_ranks: Dict[int, List[Any]] = {}
    try:
        if are_out and not session.closed:
            numbers = [state.entry.number for state in changed]
            of_ranks = dict(zip(numbers, values_by_rank(session, numbers)))
    finally:
        for state, whole in zip(states, wholes):
            entry, rows, parts = state.entry, state.rows, of_ranks.get(state.entry.number)
            rows.own, rows.is_away = entry.cell[0], False
            if parts is not None:
                counting = [part for part, (begin, end) in zip(parts, bounds) if begin < end] or [parts[session.root]]
                whole = entry.engine.to_device(entry.reference(), np.concatenate(counting, state.axis))
            entry.set(whole, Origin.COMMON)
            entry.known = None  # so that functions that use it as an ordinary variable check it: see `refuse_rows`
            rows.whole = whole if parts is not None or are_out and not state.is_updated else None
            rows.taken = list(taken)
