"""Formulas that replace operations with simpler operations, so that more placements are known.

An operation on all rows is one node, but collectives can be inserted only between nodes. A formula has several nodes::

    inc_subtensor(w[i], x)     w + inc_subtensor(zeros_like(w)[i], x)     the replicated w + a partial
    addbroadcast(x, 0)         assert(sum(x, axis=0), x.shape[0] == 1)    all ranks together have a single row
    sum(x, dtype=int64)        cast(sum(x), int64)                        a partial, whose sum is truncated
"""

from __future__ import annotations

from copy import copy
from typing import Any, Callable, Dict, List, Optional, Sequence, Type

from ...sharding import Placement, Shard, Unknown
from .classes import Classes, Kinds
from .lengths import broadcastable
from .rules.elementwise import accumulator
from .rules.indices import truncates

#: Maps a node to equivalent expressions, one for each output, or to None if it has no formula.
Formula = Callable[[Any], Optional[Sequence[Any]]]


class Formulas:
    """Formulas by operation class, inherited by subclasses; if input 0 has rows, only ``of_rows`` classes use them."""

    def __init__(self, classes: Classes, own: Dict[Type[Any], Formula], of_rows: Kinds = ()) -> None:
        broadcasts = (*classes.rebroadcasts, classes.SpecifyShape)
        self.classes, self.of_rows = classes, (*of_rows, *broadcasts, classes.CAReduce)
        writes = (classes.IncSubtensor, *classes.inc_rows_at, classes.AdvancedIncSubtensor)
        self.formulas: Dict[Type[Any], Formula] = {**dict.fromkeys(writes, self._added), **own}
        self.formulas.update({classes.CAReduce: self._cast_after, **dict.fromkeys(broadcasts, self._of_one_row)})

    def __call__(self, outputs: Sequence[Any], placement: Callable[[Any], Placement]) -> List[Any]:
        """Return equivalent expressions, with formulas in place of operations with unknown placements."""
        new: Dict[Any, Any] = {}
        for node in self.classes.io_toposort([], outputs):
            inputs = [new.get(variable, variable) for variable in node.inputs]
            after = node if inputs == node.inputs else node.clone_with_new_inputs(inputs)
            results: Optional[Sequence[Any]] = None if after is node else after.outputs
            formula = next((self.formulas[cls] for cls in type(node.op).__mro__ if cls in self.formulas), None)
            if formula is not None and any(isinstance(placement(one), Unknown) for one in node.outputs):
                if not isinstance(placement(node.inputs[0]), Shard) or isinstance(node.op, self.of_rows):
                    results = formula(after) or results
            for variable, result in zip(node.outputs, results or ()):
                result.name = variable.name
                new[variable] = result
        return [new.get(variable, variable) for variable in outputs]

    def _added(self, node: Any) -> Optional[List[Any]]:
        """Return the formula that increments an array of zeros, then adds it to the original array."""
        if node.op.set_instead_of_inc or getattr(node.op, "ignore_duplicates", False) or truncates(self.classes, node):
            return None
        array, *others = node.inputs
        added = node.clone_with_new_inputs([self.classes.tensor.zeros_like(array), *others]).outputs[0]
        return [self.classes.as_type(array + added, node.outputs[0].type)]

    def _cast_after(self, node: Any) -> Optional[List[Any]]:
        """Return the formula that reduces in the accumulator's dtype, then casts the result."""
        before, after = accumulator(node), node.outputs[0].dtype
        if before == after:
            return None
        op, tensor = copy(node.op), self.classes.tensor
        op.dtype = str(before)
        total = op(*node.inputs)
        if before.kind == "c" and after != "bool":  # (libraries cannot cast complex numbers to real numbers)
            total = tensor.real(total)
        return [tensor.neq(total, 0) if after == "bool" else tensor.cast(total, after)]

    def _of_one_row(self, node: Any) -> Optional[List[Any]]:
        """Return the formula that sums the single row over all ranks, for an axis declared to have length 1."""
        array, after, tensor = node.inputs[0], node.outputs[0], self.classes.tensor
        axes = [
            i for i, (one, other) in enumerate(zip(broadcastable(array), broadcastable(after))) if other and not one
        ]
        if not axes:
            return None
        dtype = "int8" if array.dtype == "bool" else array.dtype
        total = tensor.cast(array, dtype).sum(axis=axes, keepdims=True, dtype=dtype, acc_dtype=dtype)
        conditions = [tensor.eq(array.shape[axis], 1) for axis in axes]
        message = f"an axis declared to have length 1 (by {type(node.op).__name__}) has a different length"
        checked = self.classes.Assert(message)(tensor.cast(total, array.dtype), *conditions)
        found = node.clone_with_new_inputs([self.classes.as_type(checked, after.type), *node.inputs[1:]]).outputs[0]
        return [self.classes.as_type(found, after.type)]
