"""Propagation of placements: how a function's values are distributed over the ranks, and where collectives are needed.

::

    inputs    Shard(0)      x -----+
    shared    Replicate     w ---+ |
                                 v v
                            dot(x, w)   Shard(0)        an output: gathered
                                 |
                            sum over rows   Partial(sum)    an output: summed
                                 |
                            sqrt        needs the whole value: without a collective, the placement is unknown

Engines describe their graphs with the rules of this package, which is independent of ranks, arrays and engines.
"""

from .arithmetic import Arithmetic, Kind
from .axes import MIXED, ONE, TAKE_SHARE, Axes, AxisReduction, CheckedInput, Elementwise, Moved, along
from .chosen import Coordinate, Coordinates, Masked, Where
from .completion import Collective, GraphBuilder, complete, parts_of_rows
from .layout import ROWS, Product, Quotient, RowLayout, product
from .nested import Choice, Completed, Inner, LoopState, NestedGraph, ScanLoop
from .pieces import Divided, Joined
from .placements import REPLICATE, ZERO, Index, Partial, Placement, Replicate, Shard, Size, Stream, Unknown
from .propagate import Propagated, propagate
from .rule import Common, Node, NoRemainder, Opaque, PlacementRule, RuleResult, WithinRows
from .shapes import Changed, Drawn, Element, Filled, JoinedShape, Positions, Reshaped, ShapeOf
from .shares import Put, TakenShare
from .subscripts import Slice, Subscript
