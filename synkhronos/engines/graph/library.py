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
    change_flags: Callable[..., Any]
    graph_inputs: Callable[..., Any]
    io_toposort: Callable[..., Any]
    DebugMode: Type[Any]
    IfElse: Type[Any]
    Scan: Type[Any]
    Shape: Type[Any]
    Shape_i: Type[Any]
    #: The operation of `synkhronos.ops.all_reduce`, made for the library.
    AllReduce: Type[Any]
    #: From variables and the name of an op to their results of one such operation.
    all_reduce: Callable[..., Any]
    #: The operation that makes lengths those of all ranks; and from an expression and a position to one of its results.
    WholeLength: Type[Any]
    whole_length: Callable[..., Any]
    #: The operation that gives the factor from the rows of a rank to those of all; and from parts of a sum to numbers
    #: whose average over the rows of all ranks is that sum.
    InverseShare: Type[Any]
    as_average: Callable[..., Any]
    #: What the operations of `synkhronos.ops.shard` have in common; and from a variable and an axis to the rank's rows.
    Share: Type[Any]
    take_share: Callable[..., Any]
    #: From a vector of lengths, another, and a position, to the one with the element of the other there.
    counted: Callable[..., Any]
    #: From variables, and pairs of products of lengths, to variables that are checked; see `sharding.Builder`.
    checked: Callable[..., Any]
    #: From expressions to the `sharding.Graph` that computes them.
    graph_of: Callable[..., Any]
    #: From expressions, and what gives placements, to equal expressions of which more is known.
    with_formulas: Callable[..., Any]
    #: From a node to groups of positions: it is affine in the inputs of each group, if the others are fixed.
    affine_inputs: Callable[..., Any]
    #: From an expression to an equal one in which all shapes are those of the graph's inputs.
    by_shapes_of_inputs: Callable[..., Any]
    #: From an operation to the outputs of the graph inside it, if there is one.
    inner_outputs: Callable[..., Any]
    #: Puts the collectives inside a scan in order.
    scan_in_order: Callable[..., Any]
    #: From a scan's node to the inputs of its inner graph that change with some of the node's inputs.
    changing_in_scan: Callable[..., Any]
    #: From variables to expressions of their shapes, int64 vectors.
    shapes_of: Callable[..., Any]
    #: The mode for graphs that are so small that compiling them costs more than it saves.
    small: Any
