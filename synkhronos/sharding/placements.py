"""How a value of a graph lies over the ranks: the placements that are propagated through it.

=====================  ================================================================================
`Replicate`            every rank has the serial program's value
`Shard` (axis)         every rank has its own rows, along that axis
`Partial` (op)         every rank has a part, and all parts together, by the op, are the serial value
`Size`                 a number (or a vector of them) that follows from how many rows the rank has
`Unknown` (why)        every rank has a value of which nothing is known
=====================  ================================================================================

After Xu et al., "GSPMD" (2021, arXiv 2105.04663) and the placements of PyTorch's DTensor, with one thing more. A
function that divides by its own number of rows, as every mean does, computes on each rank what the serial one does but
for a power of the rank's share of the rows. With ``n_r`` rows on rank r, and ``N`` on all of them::

    value on rank r = value (or part, or rows) in the serial program * (n_r / N) ** power

So a `Partial` by ``sum`` of power -1 is an average, weighted by rows.
"""

from __future__ import annotations

import enum
from fractions import Fraction
from typing import NamedTuple, Optional, Tuple, Union

Power = Union[int, Fraction]


class Order(enum.IntEnum):
    """What a rank's part of an axis is to the whole axis."""

    #: Its rows.
    ROWS = 0
    #: Its rows, each of which is several elements that follow each other: the axis was merged with some after it.
    MERGED = 1
    #: Elements that do not follow each other, because the axis was merged with one before it: they can be reduced, and
    #: the axes be separated again, but not be put together along the axis.
    STRIDED = 2
    #: Of any order: equal elements, or independent random numbers.
    ANY = 3


class Index(enum.IntEnum):
    """Whether values are positions of rows, which every rank counts from 0."""

    NO = 0
    ROWS = 1
    #: Computed from positions of rows: positions along an axis that was merged from rows and others.
    COMPUTED = 2


class Replicate(NamedTuple):
    """The same value on every rank; ``zero`` if its elements are 0, or do not matter, so that it is part of any sum."""

    power: Power = 0
    zero: bool = False

    def __str__(self) -> str:
        return "Replicate"


class Shard(NamedTuple):
    """The rank's own rows, along an axis; ``zero`` as in `Replicate`."""

    axis: int
    power: Power = 0
    order: Order = Order.ROWS
    index: Index = Index.NO
    zero: bool = False

    def __str__(self) -> str:
        return f"Shard({self.axis})"


class Partial(NamedTuple):
    """A part of the value, by ``sum``, ``max``, ``min`` or ``prod``."""

    op: str = "sum"
    power: Power = 0

    @property
    def reduction(self) -> Optional[str]:
        """The op of a collective that makes the whole of the parts; None if none does."""
        if self.op == "sum" and self.power == -1:
            return "avg"
        return self.op if self.power == 0 else None

    def __str__(self) -> str:
        return f"Partial({self.reduction or self.op})"


class Length(NamedTuple):
    """A number that follows from the number of rows of the rank.

    Attributes
    ----------
    power : int or None
        Of the share of rows: 0 if the number does not depend on it, None if it does in another way than as a power.
    is_rows : bool
        Whether it is the number of rows itself.
    """

    power: Optional[Power] = 0
    is_rows: bool = False


class Size(NamedTuple):
    """A number, or a vector of them, that follows from the number of rows of the rank: a length for each element."""

    lengths: Tuple[Length, ...]

    def __str__(self) -> str:
        return "Size"


class Unknown(NamedTuple):
    """A value of which nothing is known; ``why`` says it in the form "does this or that", of an operation."""

    why: str

    def __str__(self) -> str:
        return "Unknown"


Placement = Union[Replicate, Shard, Partial, Size, Unknown]

REPLICATE = Replicate()
ZERO = Replicate(zero=True)
