"""Division of updates by elements: each rank computes its part of the elements of large new values.

::

    w - 0.1 * all_reduce(g)     becomes     part of w  -  0.1 * this rank's part of the reduction of g

This is the field's ZeRO-1. Only elementwise operations on arrays of one shape are divided, together with the collective
before them if nothing else needs its whole result. All other values are computed whole, and each rank takes its part,
which is a view. A rank's part is a vector of consecutive elements, in C order.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from .lengths import broadcastable
from .library import Library

#: Minimum size of a variable whose update is divided: below it, the meetings of ranks take longer than the update.
DIVIDED_FROM_BYTES = 1 << 16


def divided(
    library: Library, expressions: Sequence[Any], targets: Sequence[Optional[Any]]
) -> Tuple[List[Any], List[str]]:
    """Return equivalent expressions, and why each is whole; "" for a vector with the rank's part of the value.

    ``targets`` are the variables whose new values the expressions are; None for an expression that must stay whole.
    """
    division = _Division(library, expressions, targets)
    return division.results(expressions) if any(division.flags) else list(expressions), division.reasons


class _Division:
    """The variables that ranks compute in parts (``parts``), and those that they compute whole."""

    def __init__(self, library: Library, expressions: Sequence[Any], targets: Sequence[Optional[Any]]) -> None:
        self.library = library
        self.whole: Set[Any] = set()
        self.reasons = [self._why_whole(new, target) for new, target in zip(expressions, targets)]
        self.flags = [not reason for reason in self.reasons]
        self._news = [new for new, flag in zip(expressions, self.flags) if flag]
        self._targets = [target for target, flag in zip(targets, self.flags) if flag]
        wanted = [new for new, flag in zip(expressions, self.flags) if not flag]
        while wanted:  # a value that is needed whole anyway is not also computed in parts
            self._need(wanted)
            ends = self._inputs(self._news)
            wanted = [need for one in ends for need in self._needed_for(one) if need not in self.whole]
        #: Results of collectives; each rank needs only its part of them.
        self.reduced = {one for one in self._inputs(self._news) if self._is_reduced(one) and one not in self.whole}

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

    def _inputs(self, news: Sequence[Any]) -> Set[Any]:
        """Return the inputs of the elementwise operations that compute ``news``, including scalars."""
        found: Set[Any] = set()
        ahead, seen = list(news), set(news)
        while ahead:
            variable = ahead.pop()
            if self._is_elementwise(variable):
                new = [one for one in variable.owner.inputs if one not in seen]
                seen.update(new)
                ahead += new
            else:
                found.add(variable)
        return found

    def _needed_for(self, variable: Any) -> List[Any]:
        """Return what must be computed whole to get a part of a value."""
        if self._is_reduced(variable) and not _is_scalar(variable) and variable not in self.whole:
            return [variable.owner.inputs[variable.owner.outputs.index(variable)]]
        return [variable]

    def _need(self, variables: Sequence[Any]) -> None:
        ahead = list(variables)
        while ahead:
            variable = ahead.pop()
            if variable not in self.whole:
                self.whole.add(variable)
                ahead += [] if variable.owner is None else variable.owner.inputs

    def results(self, expressions: Sequence[Any]) -> List[Any]:
        library: Any = self.library
        new: Dict[Any, Any] = {}
        for node in library.io_toposort([], list(self.whole)):
            inputs = [new.get(one, one) for one in node.inputs]
            kept = [i for i, one in enumerate(node.outputs) if one in self.whole]
            if isinstance(node.op, library.AllReduce) and len(kept) < len(node.outputs):
                results = library.AllReduce(node.op.op, len(kept))(*[inputs[i] for i in kept], return_list=True)
                new.update(zip([node.outputs[i] for i in kept], results))
            elif any(one is not other for one, other in zip(inputs, node.inputs)):
                new.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs))
        parts = self._parts_of_collectives(new)
        self._add_targets(parts, new)
        for node in library.io_toposort([], self._news):
            (variable, *_) = node.outputs
            if self._is_elementwise(variable):
                inputs = [self._part(one, parts, new) for one in node.inputs]
                (parts[variable],) = node.op.make_node(*inputs).outputs
        return [
            self._part(one, parts, new) if flag else new.get(one, one) for one, flag in zip(expressions, self.flags)
        ]

    def _parts_of_collectives(self, new: Dict[Any, Any]) -> Dict[Any, Any]:
        parts: Dict[Any, Any] = {}
        for node in self.library.io_toposort([], self._news):
            chosen = [i for i, one in enumerate(node.outputs) if one in self.reduced]
            if chosen:
                given = [new.get(node.inputs[i], node.inputs[i]) for i in chosen]
                results = self.library.ReduceParts(node.op.op, len(given))(*given, return_list=True)
                parts.update(zip([node.outputs[i] for i in chosen], results))
        return parts

    def _add_targets(self, parts: Dict[Any, Any], new: Dict[Any, Any]) -> None:
        """Add the updated variables' parts, which check that the values of each update have the variable's shape."""
        for expression, target in zip(self._news, self._targets):
            whole = [
                one.owner.inputs[one.owner.outputs.index(one)] if one in self.reduced else one
                for one in self._inputs([expression])
                if one is not target and not _is_scalar(one)
            ]
            parts[target] = self.library.TakePart()(target, *[new.get(one, one) for one in whole])

    def _part(self, variable: Any, parts: Dict[Any, Any], new: Dict[Any, Any]) -> Any:
        if _is_scalar(variable):
            return new.get(variable, variable).dimshuffle("x")
        if variable not in parts:
            parts[variable] = self.library.TakePart()(new.get(variable, variable))
        return parts[variable]


def _is_scalar(variable: Any) -> bool:
    return all(broadcastable(variable))
