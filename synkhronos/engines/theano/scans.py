"""Order of collectives inside ``theano.scan``; see `graph.collectives` and `engines.pytensor.scans`."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

from theano import tensor
from theano.compile.builders import OpFromGraph
from theano.gof import Variable
from theano.scan_module.scan_op import Scan
from theano.scan_module.scan_utils import expand_empty

from .operations import AllReduce

#: Maps the outputs of an inner graph and a token to outputs with ordered collectives and the last token.
Order = Callable[[Sequence[Variable], Variable], Tuple[List[Variable], Variable]]


def inner_outputs(op: Any) -> Sequence[Variable]:
    """Return the outputs of an operation's inner graph; () if it has none."""
    if isinstance(op, Scan):
        outputs: Sequence[Variable] = op.outputs
        return outputs
    return op.local_outputs if isinstance(op, OpFromGraph) else ()


def is_while(op: Scan) -> bool:
    """Return whether the last inner output of a scan is its stopping condition."""
    return bool(op.as_while)


def in_order(
    op: Scan, inputs: Sequence[Variable], token: Optional[Variable], order: Order
) -> Tuple[List[Variable], Optional[Variable]]:
    """Return the results of a scan with ordered collectives, and its last token (None without ``token``)."""
    before = AllReduce.first_token() if token is None else token
    state = before.type()
    outputs, last = order(op.outputs, state)
    # States with a single tap come last among the states, in inputs, outputs and taps.
    n_inner_inputs = op.n_seqs + sum(map(len, op.tap_array))
    n_inner_outputs = op.n_mit_mot_outs + op.n_mit_sot + op.n_sit_sot
    n_outer_inputs, n_outer_outputs = 1 + op.n_seqs + op.n_outs, op.n_outs
    info = op.info.copy()
    info.update(n_sit_sot=op.n_sit_sot + 1, tap_array=list(op.tap_array) + [[-1]])
    with_state = Scan(_inserted(op.inputs, n_inner_inputs, state), _inserted(outputs, n_inner_outputs, last), info)
    states = expand_empty(tensor.unbroadcast(tensor.shape_padleft(before), 0), inputs[0])
    results = list(with_state.make_node(*_inserted(inputs, n_outer_inputs, states)).outputs)
    after = results.pop(n_outer_outputs)
    return results, None if token is None else after[-1]


def with_inside(op: Scan, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Scan:
    """Return a scan with the same settings and a new inner graph."""
    return Scan(list(inputs), list(outputs), op.info.copy())


def changing(node: Any, is_changing: Callable[[Variable], bool]) -> List[Variable]:
    """Return a scan's inner inputs that may change: states if any outer input may, others if their outer input may."""
    op, inner = node.op, node.op.inputs
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
