"""A rank's rows of a value that all ranks have, and what it adds to the gradient of that value."""

from __future__ import annotations

from typing import Sequence

from .placements import Partial, Placement, Replicate, Shard, Unknown
from .rule import Placed, Rule, taken_whole


class Taken(Rule):
    """The rank's rows, along an axis."""

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        whole, (one,) = taken_whole(inputs, [0], exact)
        if isinstance(one, Replicate) and one.power == 0:
            return Placed([Shard(self.axis, zero=one.zero)], whole)
        if isinstance(one, Shard):
            one = Unknown("takes the rank's share of rows that are divided already")
        return Placed([one if isinstance(one, Unknown) else Unknown("takes a share of what ranks hold differently")])


class Put(Rule):
    """Zeros in the shape of the first input, with the second as the rank's rows."""

    shapes_only = (0,)

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        like, rows = inputs
        if isinstance(like, Shard) or not (isinstance(rows, Shard) and rows.axis == self.axis):
            return Placed([Unknown("puts something else than the rank's rows where these were taken")])
        return Placed([Partial("sum", rows.power)])
