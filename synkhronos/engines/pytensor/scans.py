"""Collectives inside ``pytensor.scan``: the token goes through its steps as one more recurrent state."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.scan.op import Scan

Order = Callable[[Sequence[Variable], Variable], Tuple[List[Variable], Variable]]


def inner_outputs(op: Any) -> Sequence[Variable]:
    """Return what the graph inside an operation computes; nothing for operations without one."""
    if isinstance(op, (Scan, OpFromGraph)):
        outputs: Sequence[Variable] = op.inner_outputs
        return outputs
    return ()


def in_order(
    op: Any, inputs: Sequence[Variable], token: Optional[Variable], order: Order
) -> Tuple[List[Variable], Optional[Variable]]:
    """Return the results of a scan with its inner graph in order, and a token of after it if it was given one."""
    raise NotImplementedError


def changing(node: Any, is_changing: Callable[[Variable], bool]) -> List[Variable]:
    """Return the inner inputs of a scan that change with those outer inputs for which ``is_changing`` says so."""
    raise NotImplementedError
