"""Checks and log messages for local updates, which each rank computes from its own rows."""

from __future__ import annotations

import logging
from typing import Any, Container, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..engines.exact import check_rows
from ..reductions import MISSING, ReduceOp
from ..sharding import Placement, Shard, Unknown
from .default_ops import op_of

logger = logging.getLogger("synkhronos")


class OwnUpdate(NamedTuple):
    """A local update: the new value depends on the rank's own rows."""

    shared: Any
    label: str  # the variable's name in messages
    op: Any  # combines the values of slices; MISSING if they must be equal
    reduction: Optional[str]  # op of a collective that yields the serial function's value; None if no collective does
    why: str  # how the new value depends on the rows


def own_updates(
    engine: Any,
    snapshot: Any,
    placements: Sequence[Placement],
    updates: Sequence[Tuple[Any, Any]],
    sliceable: Container[Any],
) -> List[OwnUpdate]:
    """Return the updates of dense, non-random variables that each rank computes from its own rows.

    The last ``placements`` belong to the updates' new values (see `Engine.placed`). Updates of ``sliceable`` variables
    are omitted, because each rank has its own rows of them.
    """
    ops = {engine.identity(shared): op for shared, op in updates}
    updated = engine.updated_in(snapshot)
    found = []
    for i, (shared, placement) in enumerate(zip(updated, placements[len(placements) - len(updated) :])):
        if engine.is_random(shared) or engine.shared_type(shared) is None or shared in sliceable:
            continue
        reduction, why = None, op_of(placement, is_float=False)
        if isinstance(why, ReduceOp):
            if why.name is None:  # the same on all ranks
                continue
            if why.name == "gather":
                why = "it has a row for each row of the inputs"
            else:
                reduction, why = why.name, f"op '{why}' combines its parts"
        op = ops.get(engine.identity(shared), ReduceOp("avg"))
        found.append(OwnUpdate(shared, engine.label(shared, f"updates[{i}]"), op, reduction, why))
    return found


def check_states(engine: Any, snapshot: Any, placements: Sequence[Placement], states: Mapping[Any, int]) -> None:
    """Raise if the update of a variable with the batch's rows (in ``states``) certainly does not yield such rows."""
    updated = engine.updated_in(snapshot)
    for shared, placement in zip(updated, placements[len(placements) - len(updated) :]):
        axis = states.get(shared)
        is_own = isinstance(placement, Unknown) or isinstance(placement, Shard) and placement.axis == axis
        if axis is not None and not is_own:
            check_rows(placement, axis, f"the update of {engine.label(shared)}")


def warn_of_ranks(name: str, found: Sequence[OwnUpdate]) -> None:
    """Log the local updates of a new function, with the remedy: a collective, or ``exact``."""
    for reduction in dict.fromkeys(one.reduction for one in found):
        alike = [one for one in found if one.reduction == reduction]
        if reduction is not None:
            logger.info(
                "function %s: every rank computes %s from its own rows; a collective with op '%s', or exact=True, "
                "yields the serial function's value",
                name,
                _listed(alike),
                reduction,
            )
        else:
            logger.warning(
                "function %s: every rank computes %s from its own rows, and no collective can combine the values into "
                "the serial result: %s. Build the function with exact=True, or with exact=False if this is intended",
                name,
                _listed(alike),
                alike[0].why,
            )


def warn_of_slices(name: str, found: Sequence[OwnUpdate]) -> None:
    """Warn, at the first call in slices, about local updates whose results depend on slicing."""
    wrong = [one for one in found if one.op is not MISSING and one.reduction != one.op.name]
    if wrong:
        logger.warning(
            "function %s: slicing changes the result of %s: it combines values of slices with '%s', but %s. "
            "Build the function with exact=True",
            name,
            _listed(wrong),
            wrong[0].op,
            wrong[0].why,
        )


def _listed(found: Sequence[OwnUpdate]) -> str:
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"the update of {found[0].label}{more}"
