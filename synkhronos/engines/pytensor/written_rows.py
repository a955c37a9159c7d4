"""Numbers of rows in PyTensor's graphs: `graph.written_rows` for PyTensor's operations.

Types have lengths here, those of inputs, too, and of the variables inside a scan.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from pytensor.scan.op import Scan
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import TensorType

from ..graph.written_rows import WrittenRows
from . import scans
from .placing import PLACING
from .traversal import io_toposort


def _remade(op: Any, node: Any, inputs: Sequence[Any]) -> Any:
    if isinstance(op, Scan):
        op = _with_lengths_of(op, op.make_node(*node.inputs) if op is not node.op else node, inputs)
    return op.make_node(*inputs)


def _with_lengths_of(op: Scan, node: Any, inputs: Sequence[Any]) -> Scan:
    """Return a scan inside which no length is known that is not known of its inputs."""
    loop: Any = PLACING.rule_of(node)
    pairs = [(outer, inner, 1) for outer, inner in loop.sequences]
    pairs += [(outer, inner, 0) for outer, inner in loop.fixed]
    pairs += [(state.outer, inner, int(state.has_steps)) for state in loop.states for inner in state.inputs]
    new: Dict[Any, Any] = {}
    for outer, inner, skipped in pairs:
        variable = loop.graph.inputs[inner]
        shape: Tuple[Optional[int], ...] = getattr(inputs[outer].type, "shape", ())[skipped:]
        own = getattr(variable.type, "shape", ())
        common = tuple(length if length == other else None for length, other in zip(own, shape))
        if common != own:
            new[variable] = TensorType(variable.dtype, shape=common)(variable.name)
    if not new:
        return op
    own_inputs = [new.get(one, one) for one in loop.graph.inputs]
    for one in io_toposort(loop.graph.inputs, loop.graph.outputs):
        found = _remade(one.op, one, [new.get(variable, variable) for variable in one.inputs])
        new.update(zip(one.outputs, found.outputs))
    outputs: List[Any] = [new.get(one, one) for one in loop.graph.outputs]
    return scans.with_inside(op, own_inputs, outputs)


WRITTEN_ROWS = WrittenRows(PLACING, (RandomVariable,), _remade, scans.with_inside)
