"""The ops of outputs, by default those that yield the serial function's values; and updates from each rank's own rows.

========================  ==========================================================================
placement of the output   default op
========================  ==========================================================================
`Shard` (axis)            ``gather``, along that axis
`Partial`                 the op that combines the parts: ``avg``, ``sum``, ``min``, ...
`Size`                    ``sum`` of the ranks' counts; None if the counts are equal
`Replicate`               ``avg`` for floats (the mean of equal values), else None
`Unknown`                 an error; if not exact, ``avg`` with a warning for a scalar float
========================  ==========================================================================
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Container, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..engines.exact import check_rows
from ..errors import ArgumentTypeError
from ..reductions import MISSING, ReduceOp, check_dtype
from ..sharding import TAKE_SHARE, Partial, Placement, Replicate, Shard, Size, Unknown

logger = logging.getLogger("synkhronos")


def output_op(
    op: Any,
    output: Any,
    placement: Optional[Placement],
    name: str,
    is_exact: bool,
    advise: Callable[[], Optional[str]] = lambda: None,
) -> ReduceOp:
    """Return the op of an output: the user's op, or else an op inferred from the output's placement (if known)."""
    if output.type is None:
        if op is MISSING or op.name is not None:
            raise ArgumentTypeError(
                output.label,
                "a dense array, which can be reduced",
                "another kind of output",
                "write (variable, None), which returns the master's own value",
            )
        none: ReduceOp = op
        return none
    if op is not MISSING:
        check_dtype(op, output.type.dtype, output.label)
        why = None if placement is None or op.name is None else contradiction(op.name, placement)
        if why is not None:
            logger.warning("function %s: %s has op '%s', but %s", name, output.label, op, why)
        return ReduceOp.for_output(op, output.type.dtype, output.label)
    if placement is None:
        return ReduceOp.for_output(MISSING, output.type.dtype, output.label)
    found = op_of(placement, output.type.dtype.kind in "fc")
    if isinstance(found, ReduceOp):
        if found.name not in ("avg", None):
            logger.info("function %s: %s has op '%s', because it is %s", name, output.label, found, placement)
        return found
    advice = advise()
    found = str(found) if advice is None else str(found).replace(TAKE_SHARE, "")
    if is_exact or output.type.ndim > 0 or output.type.dtype.kind not in "fc":
        expected = "an op, because Synkhronos cannot infer how to combine the ranks' values into the serial result"
        hint = "write (variable, op): 'gather', 'avg', 'sum', 'prod', 'min', 'max' or None (the master's own value)"
        hint = hint if advice is None else f"{advice}; or {hint}"
        raise ArgumentTypeError(output.label, expected, f"none: {found}", hint)
    logger.warning(
        "function %s: %s is averaged over the ranks, so it may differ from the serial function's value: %s. "
        "%sive the output an explicit op, as (variable, op)",
        name,
        output.label,
        found,
        "G" if advice is None else f"{advice[0].upper()}{advice[1:]}; or g",
    )
    return ReduceOp("avg")


def op_of(placement: Placement, is_float: bool) -> Any:
    """Return the op that yields the serial function's value, or a str that explains why none does."""
    if isinstance(placement, Unknown):
        return placement.why
    if isinstance(placement, Replicate) and placement.power == 0:
        return ReduceOp("avg" if is_float else None)
    if isinstance(placement, Partial) and placement.reduction is not None:
        return ReduceOp(placement.reduction)
    if isinstance(placement, Size):
        if all(length.power == 0 for length in placement.lengths):
            return ReduceOp(None)
        if all(length.power == 1 for length in placement.lengths):
            return ReduceOp("sum")
        return "its value depends on the number of rows of each rank"
    if isinstance(placement, Shard):
        if placement.is_gathered:
            return ReduceOp("gather", axis=placement.axis)
        if not placement.layout.in_order:
            return "its rows are in a different order than in the serial program, because axes were merged"
    return "its value depends on the number of rows of each rank"


def contradiction(op: str, placement: Placement) -> Optional[str]:
    """Return why an op does not yield the serial function's value; None if there is no known reason."""
    if op == "gather":
        if isinstance(placement, Shard) and placement.is_gathered and placement.axis:
            return f"its rows are along axis {placement.axis}: omit the op to gather along that axis"
        if isinstance(placement, Shard) and not placement.layout.in_order:
            return "its rows are in a different order than in the serial program, because axes were merged"
        return None  # (if the value has no rows, gather returns every rank's value)
    if isinstance(placement, Partial) and placement.reduction not in (None, op):
        expected = placement.reduction
        if {op, expected} == {"avg", "sum"}:
            size = "n times" if op == "sum" else "1/n of"
            return f"op '{expected}' combines its parts, so on n ranks the result is about {size} the serial value"
        return f"only op '{expected}' combines its parts into the serial value"
    if isinstance(placement, Shard):
        return (
            "it has a row for each row of the inputs, so the op combines rows of different ranks, whereas the serial "
            "function returns every row, as with op 'gather'"
        )
    if isinstance(placement, Replicate) and placement.power == 0 and op in ("sum", "prod"):
        what = "n times the serial value" if op == "sum" else "the n-th power of the serial value"
        return f"all ranks have the same value, so on n ranks the result is {what}"
    return None


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
