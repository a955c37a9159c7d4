"""Table of Theano's classes and accessors for the rules that all engines share; see `graph.classes`."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from theano import gradient, ifelse, printing, scalar, tensor
from theano.compile import builders
from theano.compile import ops as compile_ops
from theano.compile.ops import Rebroadcast, ViewOp
from theano.gof import Constant, graph
from theano.scan_module import scan_op
from theano.tensor import basic, blas, elemwise, extra_ops, opt, subtensor
from theano.tensor.elemwise import DimShuffle
from theano.tensor.sort import ArgSortOp, SortOp

from ..graph.classes import Classes, ScanParts, table
from . import operations


def _advanced_entries(node: Any, first: int) -> Optional[List[Any]]:
    entries: List[Any] = []
    for i, entry in enumerate(node.inputs[first:], first):
        if isinstance(entry.type, tensor.TensorType):
            entries.append(i)
        elif _is_whole_slice(entry):
            entries.append(slice(None))
        else:
            return None
    return entries


def _is_whole_slice(entry: Any) -> bool:
    if isinstance(entry, Constant):
        return bool(entry.data == slice(None, None, None))
    return entry.owner is not None and all(getattr(one, "data", 0) is None for one in entry.owner.inputs)


def _number(variable: Any) -> Optional[int]:
    while variable.owner is not None and isinstance(variable.owner.op, (DimShuffle, Rebroadcast, ViewOp)):
        variable = variable.owner.inputs[0]
    return int(variable.data) if isinstance(variable, Constant) and variable.ndim == 0 else None


def _joined(node: Any) -> Tuple[Optional[int], Sequence[Any]]:
    return _number(node.inputs[0]), node.inputs[1:]


def _axis_of(node: Any) -> Optional[int]:
    return _number(node.inputs[1])


def _steps(op: Any) -> ScanParts:
    return ScanParts(**{name: getattr(op, name) for name in ScanParts._fields})


CLASSES = table(
    Classes,
    *(basic, scalar.basic, graph, compile_ops, elemwise, subtensor, opt, extra_ops, ifelse, builders, scan_op, tensor),
    operations,
    tensor=tensor,
    scalar=scalar,
    rounds=(scalar.Floor, scalar.Ceil, scalar.RoundHalfToEven, scalar.RoundHalfAwayFromZero, scalar.Trunc),
    powers={scalar.Sqr: 2, scalar.Sqrt: 0.5, scalar.Abs: 1, scalar.Inv: -1, scalar.Sgn: 0},
    argmaxes=(basic.MaxAndArgmax, basic.Argmax),
    sorts=(SortOp, ArgSortOp),
    rows_at=(subtensor.AdvancedSubtensor1,),
    inc_rows_at=(subtensor.AdvancedIncSubtensor1,),
    views=(
        *(printing.Print, extra_ops.CpuContiguous),
        *(gradient.ConsiderConstant, gradient.ZeroGrad, gradient.DisconnectedGrad),
        *(gradient.GradScale, gradient.GradClip),
    ),
    rebroadcasts=(Rebroadcast, ViewOp),
    batched_dots=(blas.BatchedDot,),
    advanced_entries=_advanced_entries,
    joined=_joined,
    axis_of=_axis_of,
    steps=_steps,
    inner=lambda op: (op.local_inputs, op.local_outputs),
    as_type=lambda variable, type_: tensor.patternbroadcast(variable, type_.broadcastable),
)
