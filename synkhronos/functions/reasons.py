"""What a value may come from that is not the serial function's. Pure."""

from __future__ import annotations

from typing import Optional, Sequence

from ..reductions import ReduceOp
from ..sharding import Placement, Replicate, Unknown
from .default_ops import contradiction

NOTHING_FOUND = (
    "the function's graph gives no reason; rounding can grow, where it decides a comparison or is divided by something "
    "near 0; or an operation computes something else on fewer rows"
)


def of_ranks(name: str, by_master: bool, has_rows: bool) -> str:
    """Return why ranks may hold different values of a variable.

    Parameters
    ----------
    name : str
        The variable, as the program may call it.
    by_master : bool
        Whether the master has changed it alone.
    has_rows : bool
        Whether it has an axis of rows.
    """
    if by_master:
        return f"it was changed on the master alone, by set_value or as_theano: synk.broadcast({name}) gives it to all"
    rows = f"; if it has rows of which every rank has its own, sliceable_shareds=[{name}] says so" if has_rows else ""
    return (
        "scatter, set_value of one rank, or updates from each rank's own rows have made it different: "
        f"synk.broadcast({name}) gives all ranks the master's{rows}"
    )


def of_output(op: ReduceOp, placement: Optional[Placement], apart: Sequence[str]) -> str:
    """Return why an output may differ.

    Parameters
    ----------
    op : ReduceOp
        Of the output.
    placement : Placement, optional
        What propagation has found for it, if anything.
    apart : sequence of str
        The variables of which ranks hold different values.
    """
    if apart:
        return _follows(apart)
    if isinstance(placement, Unknown):
        return f"it has op '{op}', but {placement.why}"
    against = None if placement is None else contradiction(str(op.name), placement)
    if against is not None:
        return f"it has op '{op}', but {against}"
    if placement is None:
        return f"the ranks' results, put together by op '{op}', may not make it: 'sum', 'avg', 'gather' or another may"
    return NOTHING_FOUND


def of_update(
    name: str, placement: Optional[Placement], is_exact: bool, mean_agrees: bool, apart: Sequence[str]
) -> str:
    """Return why the new value of a variable may differ; parameters as above.

    ``mean_agrees`` says that the mean over the ranks is the serial function's value.
    """
    if apart:
        return _follows(apart)
    if is_exact or isinstance(placement, Replicate):
        return NOTHING_FOUND
    own = "every rank has updated it from its own rows alone"
    if mean_agrees:
        return f"{own}; the mean over the ranks agrees, so synk.all_reduce({name}) after the call, or exact=True"
    why = f" ({placement.why})" if isinstance(placement, Unknown) else ""
    return f"{own}{why}: build the function with exact=True"


def _follows(apart: Sequence[str]) -> str:
    return f"it may follow from {', '.join(apart)}, of which the ranks held different values"
