"""Placements: how a value of a graph is distributed over the ranks.

=====================  ================================================================================
`Replicate`            every rank has the serial program's value
`Shard` (axis)         every rank has its own rows, along that axis
`Partial` (op)         every rank has a part; combining all parts with the op yields the serial value
`Size`                 a number (or vector of numbers) that depends on the rank's number of rows
`Unknown` (why)        the value's relation to the serial value is unknown
`Stream`               the state of a random stream, separate on every rank or common to all ranks
=====================  ================================================================================

Based on Xu et al., "GSPMD" (2021, arXiv 2105.04663) and PyTorch's DTensor, with one addition. A function that divides
by its number of rows, such as a mean, yields the serial result up to a power of the rank's share of rows. If rank r has
``n_r`` of ``N`` rows::

    value on rank r = value (or part, or rows) in the serial program * (n_r / N) ** power

A `Partial` with op ``sum`` and power -1 is therefore an average weighted by rows.
"""

from __future__ import annotations

import enum
from fractions import Fraction
from typing import Any, NamedTuple, Optional, Tuple, Union

from .layout import MERGED, ONE_ELEMENT, ROWS, Product, RowLayout

Power = Union[int, Fraction]


class Index(enum.IntEnum):
    """Whether values are positions of rows, which every rank counts from 0."""

    NO = 0
    #: Valid positions along an axis with rows.
    ROWS = 1
    #: Positions times the size of a row, plus an unknown offset within the row.
    COMPUTED = 2


class Replicate(NamedTuple):
    """A value equal on all ranks, up to ``power``; ``zero`` if it is 0 or irrelevant, and so valid in any sum."""

    power: Power = 0
    zero: bool = False

    def __str__(self) -> str:
        return "Replicate"


class Shard(NamedTuple):
    """The rank's own rows, along an axis."""

    axis: int
    power: Power = 0
    layout: RowLayout = ROWS  # of the rows in the axis
    zero: bool = False  # see `Replicate`
    uniform: bool = False  # elements are equal or i.i.d. random numbers, so their order is irrelevant
    loose: bool = False  # random numbers whose count may differ from the number of rows; some must be selected
    positions: Index = Index.NO  # whether values are positions of rows
    of: RowLayout = ROWS  # for positions: the layout of the axis that they index
    size: Product = ONE_ELEMENT  # for positions: the distance between neighbors, in elements

    @property
    def is_gathered(self) -> bool:
        """Whether concatenating the ranks' values along the axis yields the serial program's value."""
        is_piece = self.layout.in_order or self.layout.is_unordered
        return self.power == 0 and is_piece and not self.loose and self.positions == Index.NO

    def __str__(self) -> str:
        return f"Shard({self.axis})"


class Partial(NamedTuple):
    """A rank's part of a value; ``op`` (``sum``, ``max``, ``min`` or ``prod``) combines all parts."""

    op: str = "sum"
    power: Power = 0

    @property
    def reduction(self) -> Optional[str]:
        """The op of the collective that combines all parts into the whole; None if no collective can."""
        if self.op == "sum" and self.power == -1:
            return "avg"
        return self.op if self.power == 0 else None

    def __str__(self) -> str:
        return f"Partial({self.reduction or self.op})"


class Length(NamedTuple):
    """A number that depends on the rank's number of rows: ``rows ** power * times``."""

    power: Optional[Power] = 0  # 0 for a fixed number; None if no power applies
    layout: Optional[RowLayout] = None  # of the axis with this length, if known
    times: Optional[Product] = None  # None if unknown, or if it might not be whole

    @property
    def of_axis(self) -> RowLayout:
        """The layout of the rows in an axis of this length."""
        if self.layout is not None:
            return self.layout
        if self.times is None:
            return MERGED
        return ROWS if self.times == ONE_ELEMENT else RowLayout(None, None, self.times)

    @property
    def is_rows(self) -> bool:
        return self.power == 1 and self.of_axis == ROWS

    @property
    def is_counted(self) -> bool:
        """Whether this is the number of elements that a mask chooses, which only the rank with these rows can count."""
        return self.layout is not None and not self.layout.is_even


class Size(NamedTuple):
    """A number or vector that depends on the rank's number of rows; ``lengths[k]`` describes element k."""

    lengths: Tuple[Length, ...]

    def __str__(self) -> str:
        return "Size"


class Stream(NamedTuple):
    """The state of a random stream."""

    key: Any  # the variable with its initial state
    common: bool = False  # whether all ranks draw the same numbers from it

    def __str__(self) -> str:
        return "Stream"


class Unknown(NamedTuple):
    """A value whose relation to the serial program's value is unknown."""

    why: str  # a predicate whose subject is an operation, such as "depends on all rows"
    stream: Any = None  # key of a random stream; the value would be known if all ranks drew the same numbers from it
    is_late: bool = False  # whether the value would be known if partial values were combined before a cast

    def __str__(self) -> str:
        return "Unknown"


Placement = Union[Replicate, Shard, Partial, Size, Stream, Unknown]

REPLICATE = Replicate()
ZERO = Replicate(zero=True)
