"""Order of collectives inside ``pytensor.scan``: the token of `graph.collectives` becomes an additional state.

::

    token --> [ step 0: c1 --> c2 ] --> [ step 1: c1 --> c2 ] --> ... --> token

A step's collectives follow all collectives of the previous step, and PyTensor cannot move a collective out of the loop.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Optional, Sequence, Tuple

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.scan.op import Scan
from pytensor.scan.utils import expand_empty

from .operations import AllReduce

#: Maps the outputs of an inner graph and a token to outputs with ordered collectives and the last token.
Order = Callable[[Sequence[Variable], Variable], Tuple[List[Variable], Variable]]


def inner_outputs(op: Any) -> Sequence[Variable]:
    """Return the outputs of an operation's inner graph; () if it has none."""
    if isinstance(op, (Scan, OpFromGraph)):
        outputs: Sequence[Variable] = op.inner_outputs
        return outputs
    return ()


def is_while(op: Scan) -> bool:
    """Return whether the last inner output of a scan is its stopping condition."""
    return bool(op.info.as_while)


def in_order(
    op: Scan, inputs: Sequence[Variable], token: Optional[Variable], order: Order
) -> Tuple[List[Variable], Optional[Variable]]:
    """Return the results of a scan with ordered collectives, and its last token (None without ``token``)."""
    before = AllReduce.first_token() if token is None else token
    state = before.type()
    # Copy the inner graph, because its expressions, which may be frozen, cannot move to another graph.
    inner = op.fgraph.unfreeze() if hasattr(op.fgraph, "unfreeze") else op.fgraph.clone()
    outputs, last = order(inner.outputs, state)
    # States with a single tap come last among the states, in inputs, outputs and taps.
    info = op.info
    n_inner_inputs = info.n_seqs + sum(map(len, info.tap_array))
    n_inner_outputs = info.n_mit_mot_outs + info.n_mit_sot + info.n_sit_sot
    n_outer_outputs = info.n_mit_mot + info.n_mit_sot + info.n_sit_sot
    n_outer_inputs = 1 + info.n_seqs + n_outer_outputs
    with_state = Scan(
        _inserted(inner.inputs, n_inner_inputs, state),
        _inserted(outputs, n_inner_outputs, last),
        dataclasses.replace(info, sit_sot_in_slices=(*info.sit_sot_in_slices, (-1,))),
        mode=op.mode,
        truncate_gradient=op.truncate_gradient,
        name=op.name,
        profile=op.profile,
        allow_gc=op.allow_gc,
        strict=op.strict,
    )
    states = expand_empty(pt.shape_padleft(before), inputs[0])
    results = list(with_state.make_node(*_inserted(inputs, n_outer_inputs, states)).outputs)
    after = results.pop(n_outer_outputs)
    return results, None if token is None else after[-1]


def with_inside(op: Scan, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Scan:
    """Return a scan with the same settings and a new inner graph."""
    return Scan(
        list(inputs),
        list(outputs),
        op.info,
        mode=op.mode,
        truncate_gradient=op.truncate_gradient,
        name=op.name,
        profile=op.profile,
        allow_gc=op.allow_gc,
        strict=op.strict,
    )


def changing(node: Any, is_changing: Callable[[Variable], bool]) -> List[Variable]:
    """Return a scan's inner inputs that may change: states if any outer input may, others if their outer input may."""
    op, inner = node.op, node.op.inner_inputs
    same = [
        *zip(op.inner_seqs(inner), op.outer_seqs(node.inputs)),
        *zip(op.inner_non_seqs(inner), op.outer_non_seqs(node.inputs)),
    ]
    unchanged = {one for one, other in same if not is_changing(other)}
    if not any(map(is_changing, node.inputs)):
        return []
    return [variable for variable in inner if variable not in unchanged]


def _inserted(variables: Sequence[Variable], position: int, variable: Variable) -> List[Variable]:
    return [*variables[:position], variable, *variables[position:]]
