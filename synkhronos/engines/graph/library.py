"""The names of a tensor library that a graph engine uses."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Type


class Library(NamedTuple):
    """The names of a tensor library; the engine that derives from `GraphEngine` imports it and fills them in.

    All have the meaning that they have in Theano.
    """

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
    #: The ``function`` of the library itself, even if a program has put another one in its place.
    function: Callable[..., Any]
    shared: Callable[..., Any]
    convert_function_input: Callable[[Any], Any]
    rebuild_collect_shared: Callable[..., Any]
    alias_root: Callable[[Any], Any]
    get_mode: Callable[[Any], Any]
    #: From nothing to a context in which no test values are computed.
    without_test_values: Callable[[], Any]
    graph_inputs: Callable[..., Any]
    io_toposort: Callable[..., Any]
    DebugMode: Type[Any]
    IfElse: Type[Any]
    Scan: Type[Any]
    cast: Callable[..., Any]
    Shape: Type[Any]
    Shape_i: Type[Any]
    #: The operations of `graph.operations`, made for the library.
    AllReduce: Type[Any]
    WholeLength: Type[Any]
    InverseShare: Type[Any]
    Share: Type[Any]
    TakeShare: Type[Any]
    #: From a vector of lengths, another, and a position, to the one with the element of the other there.
    counted: Callable[..., Any]
    #: From variables, and pairs of products of lengths, to variables that are checked; see `sharding.Builder`.
    checked: Callable[..., Any]
    #: From expressions to the `sharding.Graph` that computes them.
    graph_of: Callable[..., Any]
    #: From expressions, a mode and names of rewrites to equal expressions, to which all others of the mode's rewrites
    #: that may change values were applied, and a mode for what is left to do.
    rewritten: Callable[..., Any]
    #: From expressions, and what gives placements, to equal expressions of which more is known.
    with_formulas: Callable[..., Any]
    #: Reads numbers as rows; see `graph.written_rows`.
    written_rows: Any
    #: From a node to groups of positions: it is affine in the inputs of each group, if the others are fixed.
    affine_inputs: Callable[..., Any]
    #: From a part, and whether a variable is one, to the wider value that it is rounded from; see `graph.precision`.
    before_rounding: Any
    #: From an expression to an equal one in which all shapes are those of the graph's inputs.
    by_shapes_of_inputs: Callable[..., Any]
    #: From an operation to the outputs of the graph inside it, if there is one.
    inner_outputs: Callable[..., Any]
    #: Puts the collectives inside a scan in order.
    scan_in_order: Callable[..., Any]
    #: From a scan's node to the inputs of its inner graph that change with some of the node's inputs.
    changing_in_scan: Callable[..., Any]
    #: Whether the last inner output of a scan says when it ends.
    is_while: Callable[[Any], bool]
    #: From variables to expressions of their shapes, int64 vectors.
    shapes_of: Callable[..., Any]
    #: The mode for graphs that are so small that compiling them costs more than it saves.
    small: Any
