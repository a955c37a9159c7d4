"""The rule of `synkhronos.sharding` for each of PyTensor's operations."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Optional, Sequence, Type

from pytensor.graph.op import Op
from pytensor.graph.traversal import io_toposort

from ...sharding import Graph, Node, Opaque, Rule

RULES: Dict[Type[Op], Callable[[Any], Optional[Rule]]] = {}


def graph_of(inputs: Sequence[Any], outputs: Sequence[Any]) -> Graph:
    """Return a graph as the rules see it."""
    nodes = [
        Node(Opaque(len(node.outputs)), tuple(node.inputs), tuple(node.outputs), partial(str, node))
        for node in io_toposort(inputs, outputs)
    ]
    return Graph(nodes, list(inputs), list(outputs), {})


def add_rule(cls: Type[Op], make: Callable[[Any, Sequence[int], Sequence[int]], Rule]) -> None:
    """Give an operation of the program's own a rule; see `Engine.add_rule`."""
    raise NotImplementedError
