"""Formulas of PyTensor's operations."""

from __future__ import annotations

from typing import Any, Sequence

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.replace import clone_replace

from ..graph.formulas import Formulas
from .classes import CLASSES


def _inside(node: Any) -> Sequence[Any]:
    """Return what the graph inside computes."""
    inputs, outputs = CLASSES.inner(node.op)
    found: Sequence[Any] = clone_replace(list(outputs), replace=dict(zip(inputs, node.inputs)))
    return found


with_formulas = Formulas(CLASSES, {OpFromGraph: _inside}, of_rows=(OpFromGraph,))
FORMULAS = with_formulas.formulas
