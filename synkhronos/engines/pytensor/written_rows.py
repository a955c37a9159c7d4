"""Replacement of literal numbers of rows for PyTensor, whose types include lengths, even inside a scan."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from pytensor.compile import builders
from pytensor.compile.builders import OpFromGraph
from pytensor.scan.op import Scan
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType

from ..graph.written_rows import WrittenRowsReader
from .classes import CLASSES
from .placing import PLACING
from .scans import SCANS
from .traversal import io_toposort

#: Operations that build their own graph; older versions of PyTensor lack them.
SYMBOLIC: Tuple[Any, ...] = tuple(getattr(builders, name) for name in ("SymbolicOp",) if hasattr(builders, name))


def _remade(op: Any, node: Any, inputs: Sequence[Any]) -> Any:
    if isinstance(op, SYMBOLIC):
        return op(*inputs, return_list=True)[0].owner  # because its graph depends on the types of its inputs
    if isinstance(op, OpFromGraph):
        inner, outputs = CLASSES.inner(op)
        shapes = {one: _shape(outer) for one, outer in zip(inner, inputs)}
        found = _with_lengths(inner, outputs, shapes)
        return (op if found is None else OpFromGraph(*found, inline=op.is_inline, name=op.name)).make_node(*inputs)
    if isinstance(op, Scan):
        loop: Any = PLACING.rule_of(op.make_node(*node.inputs) if op is not node.op else node)
        pairs = [(outer, inner, 1) for outer, inner in loop.sequences]
        pairs += [(outer, inner, 0) for outer, inner in loop.fixed]
        pairs += [(state.outer, inner, int(state.has_steps)) for state in loop.states for inner in state.inputs]
        shapes = {loop.graph.inputs[inner]: _shape(inputs[outer])[skipped:] for outer, inner, skipped in pairs}
        found = _with_lengths(loop.graph.inputs, loop.graph.outputs, shapes)
        op = op if found is None else SCANS.remade(op, *found)
    return op.make_node(*inputs)


def _shape(variable: Any) -> Tuple[Optional[int], ...]:
    """Return the lengths in a variable's type; () if it is not an array."""
    return tuple(getattr(variable.type, "shape", ()))


def _with_lengths(
    inputs: Sequence[Any], outputs: Sequence[Any], shapes: Dict[Any, Tuple[Optional[int], ...]]
) -> Optional[Tuple[List[Any], List[Any]]]:
    """Return a graph whose inputs' types keep only lengths that agree with ``shapes``; None if no type changes."""
    new: Dict[Any, Any] = {}
    for one, shape in shapes.items():
        common = tuple(length if length == other else None for length, other in zip(_shape(one), shape))
        if common != _shape(one):
            new[one] = TensorType(one.dtype, shape=common)(one.name)
    if not new:
        return None
    own = [new.get(one, one) for one in inputs]
    for node in io_toposort(inputs, outputs):
        found = _remade(node.op, node, [new.get(variable, variable) for variable in node.inputs])
        new.update(zip(node.outputs, found.outputs))
    return own, [new.get(one, one) for one in outputs]


WRITTEN_ROWS = WrittenRowsReader(PLACING, (RandomVariable,), _remade, SCANS.remade)
