"""Scans of Theano; see `graph.scans`."""

from __future__ import annotations

from typing import Any, Sequence

from theano import tensor
from theano.compile.builders import OpFromGraph
from theano.gof import Variable
from theano.scan_module.scan_op import Scan
from theano.scan_module.scan_utils import expand_empty

from ..graph.scans import Scans
from .classes import CLASSES


def _inner_outputs(op: Any) -> Sequence[Variable]:
    if isinstance(op, Scan):
        outputs: Sequence[Variable] = op.outputs
        return outputs
    return op.local_outputs if isinstance(op, OpFromGraph) else ()


def _remade(op: Scan, inputs: Sequence[Variable], outputs: Sequence[Variable], has_token: bool = False) -> Scan:
    info = op.info.copy()
    if has_token:
        info.update(n_sit_sot=op.n_sit_sot + 1, tap_array=[*op.tap_array, [-1]])
    return Scan(list(inputs), list(outputs), info)


SCANS = Scans(
    CLASSES,
    lambda op: op.inputs,
    _inner_outputs,
    _remade,
    lambda token, n_steps: expand_empty(tensor.unbroadcast(tensor.shape_padleft(token), 0), n_steps),
)
