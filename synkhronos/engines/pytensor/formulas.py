"""Formulas that replace PyTensor's operations; see `graph.formulas`."""

from __future__ import annotations

from typing import Any, Sequence

from pytensor.compile.builders import OpFromGraph

from ..graph.formulas import Formulas
from .classes import CLASSES, computed_of


def _inside(node: Any) -> Sequence[Any]:
    return computed_of(node.inputs, node.op.inner_inputs, node.op.inner_outputs)


with_formulas = Formulas(CLASSES, {OpFromGraph: _inside}, of_rows=(OpFromGraph,))
FORMULAS = with_formulas.formulas
