"""Table of PyTensor's classes and accessors for the rules that all engines share; see `graph.classes`."""

from __future__ import annotations

import importlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
from pytensor import printing, raise_op, scalar, tensor
from pytensor.compile import builders
from pytensor.compile import ops as compile_ops
from pytensor.compile.ops import ViewOp
from pytensor.graph import basic
from pytensor.graph.basic import Apply, Constant
from pytensor.scan import op as scan_op
from pytensor.tensor import basic as tensor_basic
from pytensor.tensor import blas, elemwise, extra_ops, math, subtensor
from pytensor.tensor import type as type_module
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.type import TensorType

from ..graph.classes import Classes, ScanParts, table
from . import operations, traversal
from .traversal import io_toposort

try:
    from pytensor.conditional.op import IfElse
except ImportError:  # before PyTensor 3.3
    from pytensor.ifelse import IfElse


def is_sparse(type_: Any) -> bool:
    """Return whether a type describes sparse matrices, which have tensor types in PyTensor."""
    return isinstance(type_, TensorType) and getattr(type_, "format", None) is not None


def _advanced_entries(node: Any, first: int) -> Optional[List[Any]]:
    return list(subtensor.get_idx_list([None, *range(first, len(node.inputs))], node.op.idx_list))


def _axis(op: Any, variable: Any) -> Optional[int]:
    """Return an operation's axis: an attribute since PyTensor 3.1, an input in 3.0; None if the axis is computed."""
    if hasattr(op, "axis"):
        return int(op.axis)
    return int(np.asarray(variable.data)) if isinstance(variable, Constant) else None


def _joined(node: Any) -> Tuple[Optional[int], Sequence[Any]]:
    return _axis(node.op, node.inputs[0]), node.inputs if hasattr(node.op, "axis") else node.inputs[1:]


def _axis_of(node: Any) -> Optional[int]:
    return _axis(node.op, node.inputs[-1] if len(node.inputs) < 3 else node.inputs[1])


def computed_of(values: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> List[Any]:
    """Return the outputs of an inner graph for new inputs; PyTensor 3.1 and later cannot clone its nodes."""
    new: Dict[Any, Any] = dict(zip(inputs, values))
    for node in io_toposort(inputs, outputs):
        copy = Apply(node.op, [new.get(one, one) for one in node.inputs], [one.type(one.name) for one in node.outputs])
        new.update(zip(node.outputs, copy.outputs))
    return [new.get(one, one) for one in outputs]


def _own(inputs: Sequence[Any], outputs: Sequence[Any]) -> Tuple[Sequence[Any], Sequence[Any]]:
    """Copy a graph with new inputs, because PyTensor shares input variables among all inner graphs."""
    copies = [one.type(one.name) for one in inputs]
    return copies, computed_of(copies, inputs, outputs)


def _steps(op: Any) -> ScanParts:
    info = op.info
    inputs, outputs = _own(op.inner_inputs, op.inner_outputs)
    names = ("n_seqs", "tap_array", "mit_mot_out_slices", "n_mit_mot", "n_mit_sot", "n_sit_sot", "n_nit_sot")
    known: Dict[str, Any] = {name: getattr(info, name) for name in names}
    return ScanParts(
        n_shared_outs=info.n_untraced_sit_sot,
        as_while=info.as_while,
        inputs=inputs,
        outputs=outputs,
        **known,
    )


# The attribute pytensor.tensor.shape is a function, not this module.
shape = importlib.import_module("pytensor.tensor.shape")
CLASSES = table(
    Classes,
    *(tensor_basic, math, shape, basic, compile_ops, elemwise, subtensor, raise_op, extra_ops, builders, scan_op),
    *(type_module, operations, traversal),
    tensor=tensor,
    scalar=scalar,
    Maximum=scalar.ScalarMaximum,
    Minimum=scalar.ScalarMinimum,
    rounds=(scalar.Floor, scalar.Ceil, scalar.RoundHalfToEven, scalar.RoundHalfAwayFromZero, scalar.Trunc),
    powers={scalar.Sqr: 2, scalar.Sqrt: 0.5, scalar.Abs: 1, scalar.Reciprocal: -1, scalar.Sign: 0},
    argmaxes=(math.Argmax,),
    IfElse=IfElse,
    sorts=(SortOp, ArgSortOp),
    rows_at=tuple(getattr(subtensor, name) for name in ("AdvancedSubtensor1",) if hasattr(subtensor, name)),
    inc_rows_at=tuple(getattr(subtensor, name) for name in ("AdvancedIncSubtensor1",) if hasattr(subtensor, name)),
    views=(printing.Print, extra_ops.CpuContiguous),
    rebroadcasts=(ViewOp,),
    batched_dots=(blas.BatchedDot,),
    advanced_entries=_advanced_entries,
    joined=_joined,
    axis_of=_axis_of,
    steps=_steps,
    inner=lambda op: _own(op.inner_inputs, op.inner_outputs),
    as_type=lambda variable, type_: type_.filter_variable(variable),
)
