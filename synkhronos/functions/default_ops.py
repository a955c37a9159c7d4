"""The ops of a function's outputs: given by the user, or such that the output is what the serial function returns.

========================  ==========================================================================
placement of the output   op, if none was given
========================  ==========================================================================
`Shard` (axis)            ``gather``, along that axis
`Partial`                 that which makes the whole of the parts: ``avg``, ``sum``, ``min``, ...
`Size`                    ``sum``: rows are counted
`Replicate`               ``avg`` for floats (of equal values it is that value), else None
`Unknown`                 ``avg`` for a float of 0 dimensions, with a warning; else it must be given
========================  ==========================================================================
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Optional

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
    """Return the op of an output.

    Parameters
    ----------
    op : ReduceOp or MISSING
        As the user gave it.
    output : Output
    placement : Placement, optional
        None if the engine does not know.
    name : str
        The function's, for messages.
    is_exact : bool
        Whether it is an error if nothing is known of the placement.
    advise : callable
        Returns what to do then, if it is about inputs; see `advice.advice`.

    Raises
    ------
    ArgumentTypeError
        If the op does not suit the output's type; if there is none, and none can be found.
    """
    if output.type is None:
        if op is MISSING or op.name is not None:
            raise ArgumentTypeError(
                output.label,
                "a dense array, which can be reduced",
                "an output that is not one",
                "give it as (variable, None) to have the master's own",
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
        expected = "an op, because it cannot be found out how the ranks' values make the serial function's"
        hint = "give it as (variable, op): 'gather', 'avg', 'sum', 'prod', 'min', 'max' or None (the master's own)"
        hint = hint if advice is None else f"{advice}; or {hint}"
        raise ArgumentTypeError(output.label, expected, f"none: {found}", hint)
    logger.warning(
        "function %s: %s is averaged over the ranks, which may not be what the serial function returns: %s. "
        "%sive it an op, (variable, op), to say what you want",
        name,
        output.label,
        found,
        "G" if advice is None else f"{advice[0].upper()}{advice[1:]}; or g",
    )
    return ReduceOp("avg")


def op_of(placement: Placement, is_float: bool) -> Any:
    """Return the op that makes the serial function's value of the ranks'; if there is none, say why.

    None, which takes one rank's, if all have it; ``avg`` of equal values is that value for floats, too.
    """
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
        return "it depends on how many rows each rank has"
    if isinstance(placement, Shard):
        if placement.is_gathered:
            return ReduceOp("gather", axis=placement.axis)
        if not placement.layout.in_order:
            return "its rows are in another order than in the serial program, because axes were merged"
    return "it depends on how many rows each rank has"


def contradiction(op: str, placement: Placement) -> Optional[str]:
    """Return what a given op makes of an output, if that is not what the serial function returns."""
    if op == "gather":
        if isinstance(placement, Shard) and placement.is_gathered and placement.axis:
            return f"it has its rows along axis {placement.axis}: leave out the op, and it is gathered along that axis"
        if isinstance(placement, Shard) and not placement.layout.in_order:
            return "its rows are in another order than in the serial program, because axes were merged"
        return None  # (of anything else: the value of each rank)
    if isinstance(placement, Partial) and placement.reduction not in (None, op):
        expected = placement.reduction
        if {op, expected} == {"avg", "sum"}:
            size = "n times" if op == "sum" else "an n-th of"
            return f"it is a part by '{expected}': with n ranks this is about {size} what the serial function returns"
        return f"it is a part by '{expected}', which is what gives the serial function's value"
    if isinstance(placement, Shard):
        return (
            "it has a row for each row of the inputs: rows of different ranks are put together, where the serial "
            "function returns all of them, as op 'gather' does"
        )
    if isinstance(placement, Replicate) and placement.power == 0 and op in ("sum", "prod"):
        what = "n times" if op == "sum" else "the n-th power of"
        return f"all ranks have the same value: with n ranks this is {what} what the serial function returns"
    return None
