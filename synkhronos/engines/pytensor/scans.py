"""Scans of PyTensor; see `graph.scans`."""

from __future__ import annotations

import dataclasses
from typing import Sequence

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.scan.op import Scan
from pytensor.scan.utils import expand_empty

from ..graph.scans import Scans
from .classes import CLASSES

_SETTINGS = ("mode", "truncate_gradient", "name", "profile", "allow_gc", "strict")


def _remade(op: Scan, inputs: Sequence[Variable], outputs: Sequence[Variable], has_token: bool = False) -> Scan:
    info = op.info
    if has_token:
        info = dataclasses.replace(info, sit_sot_in_slices=(*info.sit_sot_in_slices, (-1,)))
    return Scan(list(inputs), list(outputs), info, **{name: getattr(op, name) for name in _SETTINGS})


SCANS = Scans(
    CLASSES,
    lambda op: op.inner_inputs,
    lambda op: op.inner_outputs if isinstance(op, (Scan, OpFromGraph)) else (),
    _remade,
    lambda token, n_steps: expand_empty(pt.shape_padleft(token), n_steps),
)
