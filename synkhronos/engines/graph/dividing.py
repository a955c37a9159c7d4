"""Division of updates by elements: each rank computes its part of the elements of large new values.

::

    w - 0.1 * all_reduce(g)     becomes     part of w  -  0.1 * this rank's part of the reduction of g
    sqr(all_reduce(g)).sum()    becomes     all_reduce of the sum of sqr(this rank's part of the reduction of g)

This is the field's ZeRO-1. Only elementwise operations on arrays of one shape are divided, and reductions of their
results to one number (norms), together with the collective before them if nothing else needs its whole result. All
other values are computed whole, and each rank takes its part, which is a view. A rank's part is a vector of consecutive
elements, in C order.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from ...reductions import ReduceOp
from .collectives import unconditional
from .lengths import broadcastable
from .library import Library
from .rules.elementwise import accumulator

#: Minimum size of a variable whose update is divided: below it, the meetings of ranks take longer than the update.
DIVIDED_FROM_BYTES = 1 << 16


def divided(
    library: Library, expressions: Sequence[Any], targets: Sequence[Optional[Any]]
) -> Tuple[List[Any], List[str]]:
    """Return equivalent expressions, and why each is whole; "" for a vector with the rank's part of the value.

    ``targets`` are the variables whose new values the expressions are; None for an expression that must stay whole. The
    same arguments always give the same collectives in the same order.
    """
    division = _Division(library, expressions, targets)
    return division.results() if any(division.flags) else list(expressions), division.reasons


class _Division:
    """The variables that ranks compute in parts, and those that they compute whole."""

    def __init__(self, library: Library, expressions: Sequence[Any], targets: Sequence[Optional[Any]]) -> None:
        self.library, self.expressions, self.targets = library, expressions, targets
        self.whole: Set[Any] = set()
        self.reasons = [self._why_whole(new, target) for new, target in zip(expressions, targets)]
        self.flags = [not reason for reason in self.reasons]
        #: Numbers that each rank reduces from its part of an array, with the ops that combine the ranks' numbers.
        self.numbers = self._numbers()
        #: Expressions to compute in parts: new values, and the arrays of `numbers`.
        self._roots = [new for new, flag in zip(expressions, self.flags) if flag]
        self._need([new for new, flag in zip(expressions, self.flags) if not flag])
        wanted = self._wanted()
        while wanted:  # a value that is needed whole anyway is not also computed in parts
            self._need(wanted)
            wanted = self._wanted()
        #: Results of collectives; each rank needs only its part of them.
        self.reduced = {one for one in self._inputs(self._roots) if self._is_reduced(one) and one not in self.whole}
        self.new: Dict[Any, Any] = {}  # whole values in the new graph, if they differ
        self.parts: Dict[Any, Any] = {}

    def _why_whole(self, new: Any, target: Optional[Any]) -> str:
        value = None if target is None else target.container.storage[0]
        if target is None or not isinstance(target.type, self.library.TensorType) or not isinstance(value, np.ndarray):
            return "not an array with one value for all ranks"
        if value.nbytes < DIVIDED_FROM_BYTES:
            return f"smaller than {DIVIDED_FROM_BYTES:,} bytes"
        if value.dtype.kind != "f":
            return f"dtype {value.dtype}"
        if not self._is_elementwise(new) or target not in self._inputs([new]):
            return "not computed from its old value element by element"
        return ""

    def _numbers(self) -> Dict[Any, str]:
        """Return reductions of arrays with the shape of a divided update, and their ops; none of small arrays."""
        scalar, found, nbytes = self.library.scalar, {}, 0
        divided = [
            (set(self._arrays(new)), target.container.storage[0].nbytes)
            for new, target, flag in zip(self.expressions, self.targets, self.flags)
            if flag and target is not None
        ]
        for node in unconditional(self.library, self.expressions) if divided else ():
            if isinstance(node.op, self.library.CAReduce) and not broadcastable(node.outputs[0]):
                is_bool, arrays = node.inputs[0].dtype == "bool", set(self._arrays(node.inputs[0]))
                ops = {scalar.AND: "min", scalar.OR: "max"} if is_bool else {scalar.Add: "sum"}
                op = ops.get(type(node.op.scalar_op))  # not maxima, because a part may be empty
                sizes = [size for of_update, size in divided if arrays and arrays <= of_update]
                if op is not None and sizes:
                    found[node.outputs[0]] = op
                    nbytes += sizes[0]
        return found if nbytes >= 4 * DIVIDED_FROM_BYTES else {}

    def _is_elementwise(self, variable: Any) -> bool:
        """Return whether a value is computed element by element, from values of its own shape and from scalars."""
        node = variable.owner
        if node is None or not isinstance(node.op, self.library.Elemwise) or len(node.outputs) > 1:
            return False
        pattern = broadcastable(variable)
        if node.op.inplace_pattern or not pattern or any(pattern) or variable in self.whole:
            return False
        return all(_is_scalar(one) or not any(broadcastable(one)) for one in node.inputs)

    def _is_reduced(self, variable: Any) -> bool:
        return variable.owner is not None and isinstance(variable.owner.op, self.library.AllReduce)

    def _inputs(self, roots: Sequence[Any]) -> List[Any]:
        """Return the inputs of the elementwise operations that compute ``roots``, including scalars."""
        found: List[Any] = []
        ahead = list(dict.fromkeys(roots))
        seen = set(ahead)
        while ahead:
            variable = ahead.pop()
            if self._is_elementwise(variable):
                new = [one for one in dict.fromkeys(variable.owner.inputs) if one not in seen]
                seen.update(new)
                ahead += new
            else:
                found.append(variable)
        return found

    def _arrays(self, root: Any) -> List[Any]:
        return [one for one in self._inputs([root]) if not _is_scalar(one)]

    def _wanted(self) -> List[Any]:
        """Return what must also be computed whole to get the roots in parts."""
        return [need for need in map(self._needed_for, self._inputs(self._roots)) if need not in self.whole]

    def _needed_for(self, variable: Any) -> Any:
        if self._is_reduced(variable) and not _is_scalar(variable) and variable not in self.whole:
            return variable.owner.inputs[variable.owner.outputs.index(variable)]
        return variable

    def _need(self, variables: Sequence[Any]) -> None:
        ahead = list(variables)
        while ahead:
            variable = ahead.pop()
            if variable in self.whole:
                continue
            self.whole.add(variable)
            if variable in self.numbers:
                self._roots.append(variable.owner.inputs[0])
            elif variable.owner is not None:
                ahead += variable.owner.inputs

    def results(self) -> List[Any]:
        """Build the new graph; numbers that do not depend on each other have a common collective."""
        levels: Dict[Any, int] = {}
        groups: Dict[int, List[Any]] = {}
        for node in self.library.io_toposort([], self.expressions):
            level = max([levels.get(one, 0) for one in node.inputs], default=0)
            groups.setdefault(level, []).append(node)
            levels.update(dict.fromkeys(node.outputs, level + (node.outputs[0] in self.numbers)))
        for _, nodes in sorted(groups.items()):
            for node in nodes:
                if node.outputs[0] not in self.numbers:
                    self._build(node)
            for op in ("sum", "min", "max"):
                self._combine(op, [node for node in nodes if self.numbers.get(node.outputs[0]) == op])
        return [
            self._checked(new, target) if flag else self.new.get(new, new)
            for new, target, flag in zip(self.expressions, self.targets, self.flags)
        ]

    def _build(self, node: Any) -> None:
        library: Any = self.library
        inputs = [self.new.get(one, one) for one in node.inputs]
        whole = [i for i, one in enumerate(node.outputs) if one in self.whole]
        if isinstance(node.op, library.AllReduce) and len(whole) < len(node.outputs):
            reduced = [i for i, one in enumerate(node.outputs) if one in self.reduced]
            split = (library.AllReduce, whole, self.new), (library.ReduceParts, reduced, self.parts)
            for make, chosen, images in split:
                if chosen:
                    results = make(node.op.op, len(chosen))(*[inputs[i] for i in chosen], return_list=True)
                    images.update(zip([node.outputs[i] for i in chosen], results))
        elif whole and any(one is not other for one, other in zip(inputs, node.inputs)):
            for old, new in zip(node.outputs, node.clone_with_new_inputs(inputs).outputs):
                new.name = old.name
                self.new[old] = new
        elif self._is_elementwise(node.outputs[0]):
            (self.parts[node.outputs[0]],) = node.op.make_node(*map(self._part, node.inputs)).outputs

    def _combine(self, op: str, nodes: Sequence[Any]) -> None:
        """Combine the ranks' reductions of parts, in the dtypes of the accumulators."""
        if nodes:
            library: Any = self.library
            own = []
            for node in nodes:
                of_part = copy(node.op)
                of_part.axis = None
                if op == "sum":
                    of_part.dtype = of_part.acc_dtype = str(accumulator(node))
                own.append(of_part(self._part(node.inputs[0])))
            results = library.CombineParts(ReduceOp(op), len(own))(*own, return_list=True)
            for node, result in zip(nodes, results):
                self.new[node.outputs[0]] = library.tensor.cast(result, node.outputs[0].dtype)

    def _part(self, variable: Any) -> Any:
        if _is_scalar(variable):
            return self.new.get(variable, variable).dimshuffle("x")
        if variable not in self.parts:
            self.parts[variable] = self.library.TakePart()(self.new.get(variable, variable))
        return self.parts[variable]

    def _checked(self, new: Any, target: Any) -> Any:
        """Return a new value's part, which fails unless all values of the update have the variable's shape."""
        others = [
            one.owner.inputs[one.owner.outputs.index(one)] if one in self.reduced else one
            for one in self._arrays(new)
            if one is not target
        ]
        part = self._part(new)
        return self.library.CheckShapes()(part, target, *[self.new.get(one, one) for one in others]) if others else part


def _is_scalar(variable: Any) -> bool:
    return all(broadcastable(variable))
