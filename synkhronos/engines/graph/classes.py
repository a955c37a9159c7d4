"""The operations of a tensor library that rules are about, and what has to be read differently from their nodes."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

#: One or several classes, as `isinstance` takes them; none if the library has no such operation.
Kinds = Tuple[Type[Any], ...]


class Steps(NamedTuple):
    """What a scan is made of; all names as in ``theano.scan_module.scan_op.Scan``."""

    n_seqs: int
    tap_array: Sequence[Sequence[int]]
    mit_mot_out_slices: Sequence[Sequence[int]]
    n_mit_mot: int
    n_mit_sot: int
    n_sit_sot: int
    n_nit_sot: int
    n_shared_outs: int
    as_while: bool
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    @property
    def n_buffers(self) -> int:
        """Number of states that are kept in arrays."""
        return self.n_mit_mot + self.n_mit_sot + self.n_sit_sot


class Classes(NamedTuple):
    """The operations of a tensor library; those with other names than in Theano have Theano's."""

    #: Its modules ``tensor`` and ``scalar``.
    tensor: Any
    scalar: Any
    io_toposort: Callable[..., Any]
    discrete_dtypes: Sequence[str]
    float_dtypes: Sequence[str]
    #: Operations on scalars.
    Maximum: Type[Any]
    Minimum: Type[Any]
    #: Those that make numbers whole.
    rounds: Kinds
    #: Homogeneous operations on one scalar, and their degrees.
    powers: Dict[Type[Any], Any]
    Constant: Type[Any]
    TensorType: Type[Any]
    Alloc: Type[Any]
    AllocEmpty: Type[Any]
    ARange: Type[Any]
    Assert: Type[Any]
    #: Of all elements, or along axes.
    argmaxes: Kinds
    CAReduce: Type[Any]
    CumOp: Type[Any]
    DeepCopyOp: Type[Any]
    DimShuffle: Type[Any]
    Dot: Type[Any]
    Elemwise: Type[Any]
    IfElse: Type[Any]
    Join: Type[Any]
    MakeVector: Type[Any]
    Nonzero: Type[Any]
    OpFromGraph: Type[Any]
    Reshape: Type[Any]
    Scan: Type[Any]
    ScalarFromTensor: Type[Any]
    Shape: Type[Any]
    Shape_i: Type[Any]
    sorts: Kinds
    SpecifyShape: Type[Any]
    Split: Type[Any]
    TensorFromScalar: Type[Any]
    Subtensor: Type[Any]
    IncSubtensor: Type[Any]
    AdvancedSubtensor: Type[Any]
    AdvancedIncSubtensor: Type[Any]
    #: The elements of the first axis at positions in a vector, if that is an operation of its own.
    rows_at: Kinds
    inc_rows_at: Kinds
    #: Operations whose output is their first input, but for its gradient, or for what else they do with it.
    views: Kinds
    #: And those that give it another type, or none of these.
    rebroadcasts: Kinds
    batched_dots: Kinds
    #: The operations of `graph.operations`, made for the library.
    AllReduce: Type[Any]
    WholeLength: Type[Any]
    InverseShare: Type[Any]
    TakeShare: Type[Any]
    PutShare: Type[Any]
    #: From inputs, and an operation's list, to the entries of an index.
    get_idx_list: Callable[..., Any]
    #: From the node of an advanced index, and the position of the first input that is in the index, to its entries:
    #: positions of arrays, and slices of positions; None if they cannot be told.
    advanced_entries: Callable[[Any, int], Optional[List[Any]]]
    #: From the node of a `Join` to its axis (None if it is computed) and what is joined.
    joined: Callable[[Any], Tuple[Optional[int], Sequence[Any]]]
    #: From the node of a `Split`, a sort or an argsort to its axis.
    axis_of: Callable[[Any], Optional[int]]
    #: From a scan to what it is made of.
    steps: Callable[[Any], Steps]
    #: From an ``OpFromGraph`` to the inputs and outputs of its graph.
    inner: Callable[[Any], Tuple[Sequence[Any], Sequence[Any]]]
    #: From a variable and a type to an equal variable that is taken for one of that type.
    as_type: Callable[[Any, Any], Any]
