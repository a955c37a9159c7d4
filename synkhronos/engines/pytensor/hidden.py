"""Rejection of `synkhronos.ops` nested in operations where they would not act as collectives.

::

    Blockwise{AllReduce{avg}, ()->()}      would run once for every element of a batch
    MinimizeOp                             would run whenever SciPy evaluates the objective
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

from pytensor.compile.builders import OpFromGraph
from pytensor.scan.op import Scan

from ...errors import ArgumentValueError
from .operations import AllReduce, Share
from .traversal import io_toposort


def refuse_hidden(outputs: Sequence[Any]) -> None:
    """Raise ArgumentValueError if `synkhronos.ops` are nested in operations other than ``scan`` and ``OpFromGraph``."""
    for node in io_toposort([], outputs):
        if isinstance(node.op, (Scan, OpFromGraph)):
            refuse_hidden(node.op.inner_outputs)
            continue
        found = _inside(node.op)
        if found is not None:
            raise ArgumentValueError(
                "all_reduce" if isinstance(found, AllReduce) else "shard",
                "an operation in the function's own graph or in a scan",
                f"{found} inside {node.op}, which may run the inner operation any number of times",
                "apply it to the inputs or the result of the enclosing operation",
            )


def _inside(op: Any) -> Optional[Any]:
    """Return an operation of `synkhronos.ops` nested in another operation, or None."""
    core = getattr(op, "core_op", None)  # the operation of a Blockwise
    if core is not None:
        return core if isinstance(core, (AllReduce, Share)) else _inside(core)
    for node in io_toposort([], getattr(op, "inner_outputs", ())):
        found = node.op if isinstance(node.op, (AllReduce, Share)) else _inside(node.op)
        if found is not None:
            return found
    return None
