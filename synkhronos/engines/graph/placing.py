"""Assignment of placement rules to the operations of a tensor library."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any, Callable, Dict, Optional, Sequence, Set, Type

import numpy as np

from ...errors import ArgumentValueError
from ...sharding import ZERO, Axes, Changed, Element, JoinedShape, NestedGraph, Node, Opaque, PlacementRule
from .bounds import bounds
from .descriptions import described
from .lengths import Lengths, ndim
from .precision import ROUNDED
from .rules import along, elementwise, indices, nested, shapes

#: Maps a node to its rule, or to None if it has none.
Make = Callable[[Any], Optional[PlacementRule]]

#: Maps a dtype's kind to the kinds that a cast truncates its values to, so that the cast is not linear.
TRUNCATING = {"f": "iub", "c": "iub", "i": "b", "u": "b"}


class Placing:
    """Placement rules for a library's operations by class, inherited by subclasses; ``own`` adds this library's rules.

    ``others`` maps full names of classes to rules for operations of other libraries, which may not be installed.
    """

    def __init__(self, lengths: Lengths, own: Dict[Type[Any], Make], others: Optional[Dict[str, Make]] = None) -> None:
        self.lengths = lengths
        self._others = others or {}
        self.rules: Dict[Type[Any], Make] = {**common(lengths, self.graph_of), **own}
        self._added: Set[Type[Any]] = set()

    def graph_of(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> NestedGraph:
        """Return the graph of placement rules for a graph of the library."""
        nodes, known = [], {}
        order = list(self.lengths.classes.io_toposort(inputs, outputs))
        with self.lengths.among(order):
            for node in order:
                describe = partial(described, self.lengths.classes, node)
                nodes.append(Node(self.rule_of(node), tuple(node.inputs), tuple(node.outputs), describe))
                known.update({one: ZERO for one in node.inputs if self.is_zero(one)})
        known.update({output: ZERO for output in outputs if self.is_zero(output)})
        return NestedGraph(nodes, list(inputs), list(outputs), known)

    def rule_of(self, node: Any) -> PlacementRule:
        """Return the placement rule for a node; `Opaque` if its operation has none."""
        for cls in type(node.op).__mro__:
            if cls in self.rules:
                rule = self.rules[cls](node)
                if rule is not None:
                    return self._by_dtypes(node, rule)
        other = self._others.get(f"{type(node.op).__module__}.{type(node.op).__qualname__}", lambda node: None)(node)
        if other is not None:
            return self._by_dtypes(node, other)
        return Opaque(len(node.outputs))

    def _by_dtypes(self, node: Any, rule: PlacementRule) -> PlacementRule:
        if isinstance(rule, Axes):
            late = [group for group in rule.linear if self._is_late(node, group)]
            # A sum of bools is true if any element is true.
            is_bool = [getattr(output, "dtype", "") == "bool" for output in node.outputs]
            reduce = ["max" if b and op == "sum" else op for b, op in zip(is_bool, rule.reduce)]
            if late or reduce != list(rule.reduce):
                rule = copy(rule)  # the program may share one rule among nodes
                rule.late, rule.reduce = [*rule.late, *late], reduce
        if isinstance(rule, (Changed, Element, JoinedShape)):
            rule.otherwise = self._by_dtypes(node, rule.otherwise)
        return rule

    def _is_late(self, node: Any, group: Sequence[int]) -> bool:
        """Return whether a node needs whole values: it truncates or rounds them, or widens integers that may wrap."""
        after = [np.dtype(output.dtype) for output in node.outputs if hasattr(output, "dtype")]
        # `BeforeRounding` moves the casts of elementwise operations and reductions behind the collective.
        hides_casts = not isinstance(node.op, (self.lengths.classes.Elemwise, self.lengths.classes.CAReduce))
        for one in [node.inputs[i] for i in group]:
            before = np.dtype(getattr(one, "dtype", "float64"))
            if any(dtype.kind in TRUNCATING.get(before.kind, "") for dtype in after):
                return True
            if hides_casts and any(before.kind + to.kind in ROUNDED and not np.can_cast(before, to) for to in after):
                return True
            if before.kind in "iu" and any(dtype.kind in "fc" or dtype.itemsize > before.itemsize for dtype in after):
                if bounds(self.lengths, one).wraps:
                    return True
        return False

    def add_rule(self, cls: Type[Any], make: Callable[[Any, Sequence[int], Sequence[int]], PlacementRule]) -> None:
        """Register a rule for a user-defined operation; see `Engine.add_rule`."""
        known = next((base for base in cls.__mro__ if base in self.rules and base not in self._added), None)
        if known is not None:
            got = f"{cls.__name__}" if known is cls else f"{cls.__name__}, a subclass of {known.__name__}"
            raise ArgumentValueError("op", "an operation without a rule", got)
        self._added.add(cls)
        self.rules[cls] = lambda node: make(
            node, [ndim(one) for one in node.inputs], [ndim(one) for one in node.outputs]
        )

    def is_zero(self, variable: Any) -> bool:
        """Return whether a variable is a constant of zeros."""
        value = self.lengths.constant(variable)
        return isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and not value.any()


def common(lengths: Lengths, graph_of: nested.GraphOf) -> Dict[Type[Any], Make]:
    """Return the placement rules for the operations common to all libraries."""
    classes = lengths.classes
    found: Dict[Type[Any], Callable[[Lengths, Any], Optional[PlacementRule]]] = {
        classes.Elemwise: elementwise.elementwise,
        classes.CAReduce: elementwise.reduction,
        classes.DimShuffle: elementwise.moved,
        classes.Dot: along.dot,
        classes.CumOp: along.cumulative,
        classes.Shape: shapes.shape,
        classes.Shape_i: shapes.length,
        classes.Reshape: shapes.reshaped,
        classes.Alloc: shapes.filled,
        classes.AllocEmpty: shapes.empty,
        classes.ARange: shapes.counting,
        classes.MakeVector: shapes.vector,
        classes.Join: shapes.joined,
        classes.Split: shapes.split,
        classes.Assert: shapes.checked,
        classes.SpecifyShape: shapes.same_as_first,
        classes.DeepCopyOp: elementwise.same,
        classes.TensorFromScalar: elementwise.same,
        classes.ScalarFromTensor: elementwise.same,
        classes.Subtensor: indices.subtensor,
        classes.IncSubtensor: indices.inc_subtensor,
        classes.AdvancedSubtensor: indices.advanced_subtensor,
        classes.AdvancedIncSubtensor: indices.advanced_inc_subtensor,
        classes.IfElse: nested.choice,
        classes.AllReduce: nested.completed,
        classes.WholeLength: nested.whole_length,
        classes.InverseShare: nested.inverse_share,
        classes.TakeShare: nested.taken_share,
        classes.PutShare: nested.put_share,
        **dict.fromkeys(classes.argmaxes, elementwise.argmax),
        **dict.fromkeys(classes.sorts, along.sort),
        **dict.fromkeys(classes.views, elementwise.same),
        **dict.fromkeys(classes.rebroadcasts, shapes.rebroadcast),
        **dict.fromkeys(classes.batched_dots, along.batched_dot),
        **dict.fromkeys(classes.rows_at, indices.rows_at),
        **dict.fromkeys(classes.inc_rows_at, indices.inc_rows_at),
    }
    rules: Dict[Type[Any], Make] = {cls: partial(make, lengths) for cls, make in found.items()}
    rules[classes.Scan] = partial(nested.loop, lengths, graph_of)
    rules[classes.OpFromGraph] = partial(nested.inner, lengths, graph_of)
    return rules
