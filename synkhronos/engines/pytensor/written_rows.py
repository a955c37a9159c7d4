"""Numbers of rows in PyTensor's graphs: `graph.written_rows` for PyTensor's operations."""

from __future__ import annotations

from typing import Any, Sequence

from pytensor.tensor.random.op import RandomVariable

from ..graph.written_rows import WrittenRows
from . import scans
from .placing import PLACING


def _remade(node: Any, inputs: Sequence[Any]) -> Any:
    """Return another node: its types, in which there are lengths, follow from its inputs."""
    return node.op.make_node(*inputs)


WRITTEN_ROWS = WrittenRows(PLACING, (RandomVariable,), _remade, scans.with_inside)
