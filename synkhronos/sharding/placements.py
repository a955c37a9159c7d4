"""How a value of a graph lies over the ranks: the placements that are propagated through it.

=====================  ================================================================================
`Replicate`            every rank has the serial program's value
`Shard` (axis)         every rank has its own rows, along that axis
`Partial` (op)         every rank has a part, and all parts together, by the op, are the serial value
`Size`                 a number (or a vector of them) that follows from how many rows the rank has
`Unknown` (why)        every rank has a value of which nothing is known
`Stream`               the state of a random stream, of which every rank has its own, or all the same
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
from typing import Any, NamedTuple, Optional, Tuple, Union

from .layout import MERGED, ONE_ELEMENT, ROWS, Layout, Product

Power = Union[int, Fraction]


class Index(enum.IntEnum):
    """Whether values are positions of rows, which every rank counts from 0."""

    NO = 0
    #: Positions along an axis with rows, all of them valid.
    ROWS = 1
    #: A multiple of them, the size of a row, and an offset in the row, of which nothing is known.
    COMPUTED = 2


class Replicate(NamedTuple):
    """The same value on every rank; ``zero`` if its elements are 0, or do not matter, so that it is part of any sum."""

    power: Power = 0
    zero: bool = False

    def __str__(self) -> str:
        return "Replicate"


class Shard(NamedTuple):
    """The rank's own rows, along an axis.

    Attributes
    ----------
    axis : int
    power : number
    layout : Layout
        How the rows lie in the axis.
    zero : bool
        As in `Replicate`.
    uniform : bool
        Whether all elements are equal, or independent random numbers of one distribution, so that they may be in any
        order.
    loose : bool
        Whether they are random numbers of which there may be more, or fewer, than rows: some have to be taken.
    positions : Index
        Whether values are positions of rows.
    of : Layout
        If so, the layout of the axis along which they are positions.
    size : Product
        Of what they are multiples: of so many elements each is the first.
    """

    axis: int
    power: Power = 0
    layout: Layout = ROWS
    zero: bool = False
    uniform: bool = False
    loose: bool = False
    positions: Index = Index.NO
    of: Layout = ROWS
    size: Product = ONE_ELEMENT

    @property
    def is_gathered(self) -> bool:
        """Whether what the ranks have, put together along the axis, is the serial program's value."""
        is_piece = self.layout.in_order or self.layout.is_unordered
        return self.power == 0 and is_piece and not self.loose and self.positions == Index.NO

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
    """A number that follows from the number of rows of the rank: ``rows ** power * times``.

    Attributes
    ----------
    power : int or None
        Of the share of rows: 0 if the number does not depend on it, None if it does in another way than as a power.
    layout : Layout, optional
        Of the axis whose length it is; None if it is not known to be that of one with rows.
    times : Product, optional
        None if it is not known, or may be no whole number.
    """

    power: Optional[Power] = 0
    layout: Optional[Layout] = None
    times: Optional[Product] = None

    @property
    def of_axis(self) -> Layout:
        """How the rows lie in an axis of this length."""
        if self.layout is not None:
            return self.layout
        if self.times is None:
            return MERGED
        return ROWS if self.times == ONE_ELEMENT else Layout(None, None, self.times)

    @property
    def is_rows(self) -> bool:
        """Whether it is the number of rows itself."""
        return self.power == 1 and self.of_axis == ROWS

    @property
    def is_counted(self) -> bool:
        """Whether it is how many elements of rows were chosen, which no one knows but those that have them."""
        return self.layout is not None and not self.layout.is_even


class Size(NamedTuple):
    """A number, or a vector of them, that follows from the number of rows of the rank: a length for each element."""

    lengths: Tuple[Length, ...]

    def __str__(self) -> str:
        return "Size"


class Stream(NamedTuple):
    """The state of a random stream.

    Attributes
    ----------
    key : object
        The variable that holds it at first.
    common : bool
        Whether all ranks draw the same numbers from it.
    """

    key: Any
    common: bool = False

    def __str__(self) -> str:
        return "Stream"


class Unknown(NamedTuple):
    """A value of which nothing is known.

    Attributes
    ----------
    why : str
        In the form "does this or that", of an operation.
    stream : object, optional
        The key of a stream: more would be known if all ranks drew the same numbers from it.
    is_late : bool
        Whether more would be known if parts were put together inside the graph, because of their dtypes alone.
    """

    why: str
    stream: Any = None
    is_late: bool = False

    def __str__(self) -> str:
        return "Unknown"


Placement = Union[Replicate, Shard, Partial, Size, Stream, Unknown]

REPLICATE = Replicate()
ZERO = Replicate(zero=True)
