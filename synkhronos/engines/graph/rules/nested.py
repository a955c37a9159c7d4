"""Placement rules for branches, loops, inner graphs, and the operations of `synkhronos.ops`."""

from __future__ import annotations

from typing import Any, Callable, List

from ....sharding import (
    Choice,
    Common,
    Completed,
    Inner,
    LoopState,
    NestedGraph,
    PlacementRule,
    Put,
    ScanLoop,
    TakenShare,
)
from ..lengths import Lengths

#: Maps the inputs and outputs of a graph to its graph of rules.
GraphOf = Callable[..., NestedGraph]


def inner(lengths: Lengths, graph_of: GraphOf, node: Any) -> PlacementRule:
    return Inner(graph_of(*lengths.classes.inner(node.op)))


def choice(lengths: Lengths, node: Any) -> PlacementRule:
    return Choice(node.op.n_outs)


def loop(lengths: Lengths, graph_of: GraphOf, node: Any) -> PlacementRule:
    steps, n_steps = lengths.classes.steps(node.op), 0
    outer, inner, of_outputs = 1, 0, 0
    sequences = []
    for _ in range(steps.n_seqs):
        sequences.append((outer, inner))
        outer, inner = outer + 1, inner + 1
    states: List[LoopState] = []
    for k, taps in enumerate(steps.tap_array):
        outputs = steps.mit_mot_out_slices[k] if k < steps.n_mit_mot else [0]
        states.append(
            LoopState(outer, list(range(inner, inner + len(taps))), list(range(of_outputs, of_outputs + len(outputs))))
        )
        outer, inner, of_outputs = outer + 1, inner + len(taps), of_outputs + len(outputs)
    collected = list(range(of_outputs, of_outputs + steps.n_nit_sot))
    of_outputs += steps.n_nit_sot
    for _ in range(steps.n_shared_outs):
        states.append(LoopState(outer, [inner], [of_outputs], has_steps=False))
        outer, inner, of_outputs = outer + 1, inner + 1, of_outputs + 1
    numbers = list(range(outer, outer + steps.n_nit_sot))
    outer += steps.n_nit_sot
    fixed = list(zip(range(outer, len(node.inputs)), range(inner, len(steps.inputs))))
    graph = graph_of(steps.inputs, steps.outputs)
    until = of_outputs if steps.as_while else None
    return ScanLoop(graph, sequences, states, collected, fixed, [n_steps, *numbers], until)


def completed(lengths: Lengths, node: Any) -> PlacementRule:
    return Completed(node.op.n, node.op.op.name)


def whole_length(lengths: Lengths, node: Any) -> PlacementRule:
    return Common()


def inverse_share(lengths: Lengths, node: Any) -> PlacementRule:
    return Common(power=-1)


def taken_share(lengths: Lengths, node: Any) -> PlacementRule:
    return TakenShare(node.op.axis)


def put_share(lengths: Lengths, node: Any) -> PlacementRule:
    return Put(node.op.axis)
