"""Operations of `synkhronos.ops` in graphs that nobody follows: what `vectorize_graph` repeats, or an optimizer calls.

::

    Blockwise{AllReduce{avg}, ()->()}      once for every element of a batch
    MinimizeOp                             whenever SciPy wants to know the objective

How often they are computed is not known, nor what they make of rows; if nobody finds them, they are the identity.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

from pytensor.compile.builders import OpFromGraph
from pytensor.scan.op import Scan

from ...errors import ArgumentValueError
from .operations import AllReduce, Share
from .traversal import io_toposort


def refuse_hidden(outputs: Sequence[Any]) -> None:
    """Refuse a graph in which one of them is inside an operation other than ``scan`` and ``OpFromGraph``."""
    for node in io_toposort([], outputs):
        if isinstance(node.op, (Scan, OpFromGraph)):
            refuse_hidden(node.op.inner_outputs)
            continue
        found = _inside(node.op)
        if found is not None:
            raise ArgumentValueError(
                "all_reduce" if isinstance(found, AllReduce) else "shard",
                "an operation of the function's own graph, or inside scan",
                f"{found} inside {node.op}, which may compute it any number of times",
                "use it on what that operation is given, or on its result",
            )


def _inside(op: Any) -> Optional[Any]:
    """Return one of the operations that is computed inside another."""
    core = getattr(op, "core_op", None)  # of a Blockwise
    if core is not None:
        return core if isinstance(core, (AllReduce, Share)) else _inside(core)
    for node in io_toposort([], getattr(op, "inner_outputs", ())):
        found = node.op if isinstance(node.op, (AllReduce, Share)) else _inside(node.op)
        if found is not None:
            return found
    return None
