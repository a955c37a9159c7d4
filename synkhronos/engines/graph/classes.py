"""The operations of a tensor library that have rules, and accessors that hide differences between libraries."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

Table = TypeVar("Table", bound="Classes")

#: A tuple of classes, for use with `isinstance`; () if the library has no such operation.
Kinds = Tuple[Type[Any], ...]


class ScanParts(NamedTuple):
    """Structure of a scan, with the attribute names of ``theano.scan_module.scan_op.Scan``."""

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
        """Number of states stored in arrays."""
        return self.n_mit_mot + self.n_mit_sot + self.n_sit_sot


def table(kind: Type[Table], *modules: Any, **own: Any) -> Table:
    """Return a table with the entries ``own``; each other entry is the only object that modules define by its name."""
    entries = dict(own)
    for name in {field.name for field in dataclasses.fields(kind)} - set(own):
        found = [vars(module)[name] for module in modules if name in vars(module)]
        assert found and all(one is found[0] for one in found), f"{name}: {found}"
        entries[name] = found[0]
    return kind(**entries)


@dataclasses.dataclass(frozen=True, eq=False)
class Classes:
    """The operations of a tensor library, under Theano's names."""

    #: The library's modules ``tensor`` and ``scalar``.
    tensor: Any
    scalar: Any
    io_toposort: Callable[..., Any]
    discrete_dtypes: Sequence[str]
    float_dtypes: Sequence[str]
    #: Maximum and minimum of scalars.
    Maximum: Type[Any]
    Minimum: Type[Any]
    #: Operations that round to integers.
    rounds: Kinds
    #: Homogeneous operations on one scalar, and their degrees.
    powers: Dict[Type[Any], Any]
    Constant: Type[Any]
    TensorType: Type[Any]
    Alloc: Type[Any]
    AllocEmpty: Type[Any]
    ARange: Type[Any]
    Assert: Type[Any]
    #: Argmax operations over all elements or along axes.
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
    #: Indexing of the first axis by a vector, if the library has a separate operation for it.
    rows_at: Kinds
    inc_rows_at: Kinds
    #: Operations that return their first input unchanged, such as operations that affect only gradients.
    views: Kinds
    #: Operations that change only the type of their input; () if there are none.
    rebroadcasts: Kinds
    batched_dots: Kinds
    #: The library's versions of `graph.operations`.
    AllReduce: Type[Any]
    WholeLength: Type[Any]
    InverseShare: Type[Any]
    TakeShare: Type[Any]
    PutShare: Type[Any]
    #: Maps inputs and an operation's index list to the entries of the index.
    get_idx_list: Callable[..., Any]
    #: Maps the node of an advanced index, and the position of its first index input, to the index's entries: positions
    #: of array inputs, and slices with positions of inputs as ends. None if the entries cannot be determined.
    advanced_entries: Callable[[Any, int], Optional[List[Any]]]
    #: Maps the node of a `Join` to its axis (None if it is computed) and the joined arrays.
    joined: Callable[[Any], Tuple[Optional[int], Sequence[Any]]]
    #: Maps the node of a `Split`, a sort or an argsort to its axis (None if it is computed).
    axis_of: Callable[[Any], Optional[int]]
    #: Maps a scan to its structure.
    steps: Callable[[Any], ScanParts]
    #: Maps an ``OpFromGraph`` to the inputs and outputs of its graph.
    inner: Callable[[Any], Tuple[Sequence[Any], Sequence[Any]]]
    #: Converts a variable to a type, without changing its value.
    as_type: Callable[[Any, Any], Any]
