"""How the values in a function's graph lie over the ranks, and what it takes to compute what the serial program does.

::

    inputs    Shard(0)      x -----+
    shared    Replicate     w ---+ |
                                 v v
                            dot(x, w)   Shard(0)        an output: gathered
                                 |
                            sum over rows   Partial(sum)    an output: summed
                                 |
                            sqrt        needs the whole: a collective, or nothing is known

``placements``   what there is: replicated, rows, parts
``layout``       how rows lie in an axis
``rule``         what a rule says of an operation; kinds: ``axes``, ``pieces``, ``shapes``, ``subscripts``,
                 ``chosen``, ``shares``, ``nested``
``arithmetic``   what becomes of numbers of rows that are computed with
``propagate``    through a whole graph

Engines describe their graphs with these rules. All of it is pure: nothing here knows ranks, arrays or an engine.
"""

from .arithmetic import Arithmetic, Kind
from .axes import MIXED, ONE, TAKE_SHARE, Axes, Checked, Elementwise, Moved, Reduction, along
from .chosen import Coordinate, Coordinates, Masked, Where
from .completion import Builder, Collective, complete, parts_of_rows
from .layout import ROWS, Layout, Product, Quotient, product
from .nested import Choice, Completed, Graph, Inner, Loop, State
from .pieces import Divided, Joined
from .placements import REPLICATE, ZERO, Index, Partial, Placement, Replicate, Shard, Size, Stream, Unknown
from .propagate import Propagated, propagate
from .rule import Common, Node, NotNegative, Opaque, Placed, Rule
from .shapes import Changed, Drawn, Element, Filled, Positions, Reshaped, ShapeOf, Together
from .shares import Put, Taken
from .subscripts import Slice, Subscript

__all__ = [
    "MIXED",
    "Masked",
    "ONE",
    "TAKE_SHARE",
    "REPLICATE",
    "ROWS",
    "ZERO",
    "Arithmetic",
    "Axes",
    "Changed",
    "Kind",
    "Quotient",
    "Checked",
    "Builder",
    "Collective",
    "complete",
    "parts_of_rows",
    "Choice",
    "Common",
    "Completed",
    "Coordinate",
    "Coordinates",
    "Divided",
    "Drawn",
    "Element",
    "Elementwise",
    "Filled",
    "Graph",
    "Index",
    "Inner",
    "Joined",
    "Layout",
    "Loop",
    "Moved",
    "Node",
    "NotNegative",
    "Opaque",
    "Partial",
    "Placed",
    "Placement",
    "Positions",
    "Product",
    "product",
    "Propagated",
    "Put",
    "Reduction",
    "Replicate",
    "Reshaped",
    "Rule",
    "Shard",
    "ShapeOf",
    "Size",
    "Slice",
    "State",
    "Stream",
    "Subscript",
    "Taken",
    "Together",
    "Unknown",
    "Where",
    "along",
    "propagate",
]
