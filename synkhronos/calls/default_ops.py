"""The ops of a function's outputs: the user's ops, or else ops that yield the serial function's values.

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
