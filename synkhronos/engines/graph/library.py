"""Table of the objects that graph engines use from a tensor library."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Type

from .catching import Catcher
from .flags import CompileFlags


class Library(NamedTuple):
    """Objects of a tensor library under Theano's names; each subclass of `GraphEngine` supplies them."""

    Variable: Type[Any]
    Constant: Type[Any]
    SharedVariable: Type[Any]
    TensorSharedVariable: Type[Any]
    Container: Type[Any]
    TensorType: Type[Any]
    Function: Type[Any]
    SymbolicInput: Type[Any]
    SymbolicOutput: Type[Any]
    In: Type[Any]
    Out: Type[Any]
    #: The library's own ``function``, even if a program has replaced it.
    function: Catcher
    shared: Callable[..., Any]
    convert_function_input: Callable[[Any], Any]
    rebuild_collect_shared: Callable[..., Any]
    alias_root: Callable[[Any], Any]
    get_mode: Callable[[Any], Any]
    without_test_values: Callable[[], Any]
    graph_inputs: Callable[..., Any]
    io_toposort: Callable[..., Any]
    DebugMode: Type[Any]
    IfElse: Type[Any]
    Scan: Type[Any]
    cast: Callable[..., Any]
    Shape: Type[Any]
    Shape_i: Type[Any]
    #: The library's versions of `graph.operations`.
    AllReduce: Type[Any]
    WholeLength: Type[Any]
    InverseShare: Type[Any]
    Share: Type[Any]
    TakeShare: Type[Any]
    Draft: Type[Any]
    #: See `Lengths.counted` and `Lengths.checked`.
    counted: Callable[..., Any]
    checked: Callable[..., Any]
    #: Maps expressions to the graph of their placement rules (`sharding.NestedGraph`).
    graph_of: Callable[..., Any]
    #: Maps expressions and a mode to equivalent expressions and the mode for the remaining rewrites. The third argument
    #: names rewrites to skip; None skips all except the merging of equal operations. See `graph.rewrites`.
    rewritten: Callable[..., Any]
    #: Maps expressions and a placement function to equivalent expressions with fewer unknown placements.
    with_formulas: Callable[..., Any]
    #: Replaces literal numbers of rows; see `graph.written_rows`.
    written_rows: Any
    #: Maps a node to the groups of inputs that it is affine in; see `Affine`.
    affine_inputs: Callable[..., Any]
    #: Maps a partial, and a predicate for partials, to the wider value before rounding; see `graph.precision`.
    before_rounding: Any
    #: Maps an expression to an equivalent expression that uses only shapes of the graph's inputs, if possible.
    by_shapes_of_inputs: Callable[..., Any]
    #: Maps an operation to the outputs of its inner graph, or to () if it has none.
    inner_outputs: Callable[..., Any]
    #: Functions of the engine's own ``scans`` module.
    scan_in_order: Callable[..., Any]
    changing_in_scan: Callable[..., Any]
    is_while: Callable[[Any], bool]
    #: Maps variables to their shapes, as int64 vectors.
    shapes_of: Callable[..., Any]
    #: The mode for functions that are called rarely or never: it compiles quickly, without optimization.
    small: Any
    #: The library's flags for compiling; see `graph.flags`.
    flags: CompileFlags
