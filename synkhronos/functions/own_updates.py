"""Updates that each rank makes from its own rows, in a function without ``exact``: what becomes of them is said.

When the function is built, and when its rows are first cut into slices, since no result shows it.
"""

from __future__ import annotations

import logging
from typing import Any, Container, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..engines.exact import check_rows
from ..reductions import MISSING, ReduceOp
from ..sharding import Placement, Shard, Unknown
from .default_ops import op_of

logger = logging.getLogger("synkhronos")


class OwnUpdate(NamedTuple):
    """An update whose new value follows from rows.

    Attributes
    ----------
    shared : shared variable
    label : str
        Its name in messages.
    op : ReduceOp or MISSING
        By which those of slices are put together; MISSING if they have to be the same.
    reduction : str, optional
        The op by which a collective makes the serial function's of the ranks' values; None if none does.
    why : str
        What the new value is on a rank.
    """

    shared: Any
    label: str
    op: Any
    reduction: Optional[str]
    why: str


def own_updates(
    engine: Any,
    snapshot: Any,
    placements: Sequence[Placement],
    updates: Sequence[Tuple[Any, Any]],
    sliceable: Container[Any],
) -> List[OwnUpdate]:
    """Return the updates of data that ranks make from their own rows.

    Parameters
    ----------
    engine, snapshot
    placements : list of Placement
        Of the outputs and of the updates' new values; see `Engine.placed`.
    updates : list of (shared variable, op)
        The updates that the user gave.
    sliceable : container of shared variables
        Those of which every rank has rows of its own.
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
                reduction, why = why.name, f"it is a part by '{why}'"
        op = ops.get(engine.identity(shared), ReduceOp("avg"))
        found.append(OwnUpdate(shared, engine.label(shared, f"updates[{i}]"), op, reduction, why))
    return found


def check_states(engine: Any, snapshot: Any, placements: Sequence[Placement], states: Mapping[Any, int]) -> None:
    """Refuse new values of variables with the batch's rows that are not, as far as is known, a rank's own rows.

    Parameters
    ----------
    engine, snapshot, placements
        As for `own_updates`.
    states : dict
        From the variables to the axes of their rows.
    """
    updated = engine.updated_in(snapshot)
    for shared, placement in zip(updated, placements[len(placements) - len(updated) :]):
        axis = states.get(shared)
        is_own = isinstance(placement, Unknown) or isinstance(placement, Shard) and placement.axis == axis
        if axis is not None and not is_own:
            check_rows(placement, axis, f"the update of {engine.label(shared)}")


def tell_of_ranks(name: str, found: Sequence[OwnUpdate]) -> None:
    """Say what is to be done with these updates: a collective, or ``exact``."""
    for reduction in dict.fromkeys(one.reduction for one in found):
        alike = [one for one in found if one.reduction == reduction]
        if reduction is not None:
            logger.info(
                "function %s: every rank makes %s from its own rows; a collective with op '%s' makes the serial "
                "function's of their values, as does building it with exact=True",
                name,
                _listed(alike),
                reduction,
            )
        else:
            logger.warning(
                "function %s: every rank makes %s from its own rows, and no collective makes the serial function's of "
                "their values: %s. Build the function with exact=True, or with exact=False if that is meant",
                name,
                _listed(alike),
                alike[0].why,
            )


def tell_of_slices(name: str, found: Sequence[OwnUpdate]) -> None:
    """Say which of these updates slices together do not make as all rows at once do."""
    wrong = [one for one in found if one.op is not MISSING and one.reduction != one.op.name]
    if wrong:
        logger.warning(
            "function %s: in slices %s is by '%s' of what every slice gives, which is not what all rows at once give: "
            "%s. Build the function with exact=True",
            name,
            _listed(wrong),
            wrong[0].op,
            wrong[0].why,
        )


def _listed(found: Sequence[OwnUpdate]) -> str:
    """Return what messages call these updates: the first, and how many there are besides."""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"the update of {found[0].label}{more}"
