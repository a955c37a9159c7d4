"""Placement rules for selecting a rank's rows of a replicated value, and for the gradient of this operation."""

from __future__ import annotations

from typing import Sequence

from .placements import Partial, Placement, Replicate, Shard, Unknown
from .rule import PlacementRule, RuleResult, taken_whole


class TakenShare(PlacementRule):
    """Placement rule for selecting a rank's rows of a replicated value along an axis."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        whole, (one,) = taken_whole(inputs, [0], exact)
        if isinstance(one, Replicate) and one.power == 0:
            return RuleResult([Shard(self.axis, zero=one.zero)], whole)
        if isinstance(one, Shard):
            one = Unknown("divides rows that are already divided")
        return RuleResult(
            [one if isinstance(one, Unknown) else Unknown("selects a share of values that differ between ranks")]
        )


class Put(PlacementRule):
    """Placement rule for zeros shaped like the first input, with the second input in place of the rank's rows."""

    shapes_only = (0,)

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        like, rows = inputs
        if isinstance(like, Shard) or not (isinstance(rows, Shard) and rows.axis == self.axis):
            return RuleResult([Unknown("replaces the rank's rows with values that are not rows")])
        return RuleResult([Partial("sum", rows.power)])
