"""Likely reasons why a value differs from the serial function's value, as text; without side effects."""

from __future__ import annotations

from typing import Optional, Sequence

from ..reductions import ReduceOp
from ..sharding import Placement, Replicate, Unknown
from .default_ops import contradiction

NOTHING_FOUND = (
    "the function's graph shows no reason; rounding errors can grow if they decide a comparison or are divided by a "
    "number near 0, or an operation may compute a different result on fewer rows"
)


def of_ranks(name: str, by_master: bool, has_rows: bool) -> str:
    """Return why a variable's values may differ between ranks; ``by_master``: only the master has changed it."""
    if by_master:
        return (
            f"it was changed on the master alone, by set_value or as_theano: synk.broadcast({name}) sends the value to "
            "all ranks"
        )
    rows = f"; if every rank has its own rows of it, list it: sliceable_shareds=[{name}]" if has_rows else ""
    return (
        "scatter, set_value on one rank, or updates from each rank's own rows have changed it: "
        f"synk.broadcast({name}) sends the master's value to all ranks{rows}"
    )


def of_output(op: ReduceOp, placement: Optional[Placement], apart: Sequence[str]) -> str:
    """Return why an output may differ; ``apart`` names the variables that differ between ranks."""
    if apart:
        return _follows(apart)
    if isinstance(placement, Unknown):
        return f"it has op '{op}', but {placement.why}"
    against = None if placement is None else contradiction(str(op.name), placement)
    if against is not None:
        return f"it has op '{op}', but {against}"
    if placement is None:
        return f"combining the ranks' results with op '{op}' may be wrong: try 'sum', 'avg', 'gather' or another op"
    return NOTHING_FOUND


def of_update(
    name: str, placement: Optional[Placement], is_exact: bool, mean_agrees: bool, apart: Sequence[str]
) -> str:
    """Return why a variable's new value may differ; ``mean_agrees``: the ranks' mean equals the serial value."""
    if apart:
        return _follows(apart)
    if is_exact or isinstance(placement, Replicate):
        return NOTHING_FOUND
    own = "every rank has updated it from its own rows alone"
    if mean_agrees:
        return f"{own}; the mean over the ranks agrees: call synk.all_reduce({name}) after each call, or use exact=True"
    why = f" ({placement.why})" if isinstance(placement, Unknown) else ""
    return f"{own}{why}: build the function with exact=True"


def _follows(apart: Sequence[str]) -> str:
    return f"the difference may come from {', '.join(apart)}, whose values differed between the ranks"
