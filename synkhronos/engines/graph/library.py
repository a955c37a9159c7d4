"""Table of the objects that graph engines use from a tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Sequence, Type

from ...sharding import NestedGraph
from .catching import Catcher
from .classes import Classes
from .flags import CompileFlags
from .placing import Placing
from .scans import Scans


@dataclass(frozen=True, eq=False)
class Library(Classes):
    """Objects of a tensor library under Theano's names; each subclass of `GraphEngine` supplies them."""

    Op: Type[Any]
    Variable: Type[Any]
    SharedVariable: Type[Any]
    TensorSharedVariable: Type[Any]
    Container: Type[Any]
    Function: Type[Any]
    SymbolicInput: Type[Any]
    SymbolicOutput: Type[Any]
    In: Type[Any]
    Out: Type[Any]
    Tag: Type[Any]  # of variables and nodes
    #: The library's own ``function``, even if a program has replaced it.
    function: Catcher
    shared: Callable[..., Any]
    convert_function_input: Callable[[Any], Any]
    rebuild_collect_shared: Callable[..., Any]
    alias_root: Callable[[Any], Any]
    get_mode: Callable[[Any], Any]
    without_test_values: Callable[[], Any]
    graph_inputs: Callable[..., Any]
    DebugMode: Type[Any]
    #: Further operations of `graph.operations`.
    Share: Type[Any]
    Draft: Type[Any]
    ReduceParts: Type[Any]
    CombineParts: Type[Any]
    TakePart: Type[Any]
    CheckShapes: Type[Any]
    placing: Placing
    #: Maps expressions and a mode to equivalent expressions and the mode for the remaining rewrites. The third argument
    #: names rewrites to skip; None skips all except the merging of equal operations. See `graph.rewrites`.
    rewritten: Callable[..., Any]
    #: Maps expressions and a placement function to equivalent expressions with fewer unknown placements.
    with_formulas: Callable[..., Any]
    #: Replaces literal numbers of rows; see `graph.written_rows`.
    written_rows: Any
    #: Maps a partial, and a predicate for partials, to the wider value before rounding; see `graph.precision`.
    before_rounding: Any
    #: Replaces shapes in a graph with shapes of its inputs where they can be inferred.
    infer_shapes: Callable[[Any], None]
    clone_replace: Callable[..., Any]
    FunctionGraph: Type[Any]
    ShapeFeature: Type[Any]
    MergeFeature: Type[Any]
    scans: Scans
    #: Returns the ``__reduce__`` value of an object that the library cannot pickle, else NotImplemented.
    reduce: Callable[[Any], Any]
    #: The mode for functions that are called rarely or never: it compiles quickly, without optimization.
    small: Any
    #: The library's flags for compiling; see `graph.flags`.
    flags: CompileFlags

    def graph_of(self, outputs: Sequence[Any]) -> NestedGraph:
        """Return the graph of placement rules for expressions."""
        return self.placing.graph_of([], outputs)
