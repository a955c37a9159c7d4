"""Partial values in the wider dtype of their computation, so that only the combined value is rounded.

::

    part = cast(sum(x), float32)       digits are lost if the partials of ranks cancel each other
    2 * part                           2 * sum(x) is reduced, and then cast

The same applies to sums of float32 values, which are accumulated in float64 and cast at the end.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Callable, Dict, Optional

import numpy as np

from .affine import Affine
from .classes import Classes
from .lengths import broadcastable
from .rules.elementwise import accumulator

#: Kinds of dtypes before and after rounding; graphs have no cast from complex to real numbers.
ROUNDED = ("ff", "fc", "cc")


class BeforeRounding:
    """Search for the wider values that partials are rounded from."""

    def __init__(self, classes: Classes) -> None:
        self.classes, self.affine = classes, Affine(classes)
        #: Operations that accept any dtype and keep it; all other operations compute in dtypes fixed at creation.
        self._of_any_type = (
            *(classes.Elemwise, classes.CAReduce, classes.DimShuffle, classes.Reshape, classes.SpecifyShape),
            *(classes.Join, classes.MakeVector, classes.Alloc, classes.Subtensor, classes.AdvancedSubtensor),
            *(classes.TensorFromScalar, classes.ScalarFromTensor, classes.DeepCopyOp),
            *(*classes.rebroadcasts, *classes.rows_at),
        )

    def accumulated(self, node: Any) -> Optional[Any]:
        """Return a float reduction's result before its cast to a narrower dtype; None without such a cast."""
        dtype, acc = np.dtype(node.outputs[0].dtype), accumulator(node)
        is_rounded = acc.kind + dtype.kind in ROUNDED and not np.can_cast(acc, dtype)
        return self._in_dtype(node, acc, node.inputs[0]) if is_rounded else None

    def __call__(
        self,
        part: Any,
        is_part: Callable[[Any], bool],
        accumulated: bool = True,
        known: Optional[Dict[Any, Any]] = None,
    ) -> Optional[Any]:
        """Return the wider float value that a partial is rounded from, if any; ``known`` caches results by partial.

        Without ``accumulated``, a reduction's wider accumulator counts only if the result is narrower than the input.
        """
        known = {} if known is None else known
        if part not in known:
            known[part] = self._found(part, is_part, accumulated, known)
        return known[part]

    def _found(self, part: Any, is_part: Callable[[Any], bool], accumulated: bool, known: Dict[Any, Any]) -> Any:
        node = part.owner
        if node is None or not isinstance(node.op, self._of_any_type) or not is_part(part) or not _is_float(part):
            return None
        classes, inputs = self.classes, list(node.inputs)
        for i in {i for group in self.affine(node) for i in group if is_part(inputs[i])}:
            wider = self(inputs[i], is_part, accumulated, known)
            inputs[i] = inputs[i] if wider is None else wider
        changed = any(new is not old for new, old in zip(inputs, node.inputs))
        if isinstance(node.op, classes.Elemwise) and isinstance(node.op.scalar_op, classes.scalar.Cast):
            after = inputs[0] if _is_float(inputs[0]) else classes.tensor.cast(inputs[0], "float64")
        elif isinstance(node.op, classes.CAReduce) and isinstance(
            node.op.scalar_op, (classes.scalar.Add, classes.scalar.Mul)
        ):
            if not (changed or accumulated or not np.can_cast(node.inputs[0].dtype, part.dtype)):
                return None
            after = self._in_dtype(node, np.result_type(accumulator(node), inputs[0].dtype, np.float16), inputs[0])
        elif changed and isinstance(node.op, classes.MakeVector):
            after = classes.tensor.stack(inputs)
        elif changed:
            (after,) = node.clone_with_new_inputs(inputs, strict=False).outputs
        else:
            return None
        if np.dtype(after.dtype).kind + np.dtype(part.dtype).kind not in ROUNDED:
            return None
        is_wider = changed or not np.can_cast(after.dtype, part.dtype)
        return after if is_wider and broadcastable(after) == broadcastable(part) else None

    def _in_dtype(self, node: Any, dtype: Any, one: Any) -> Any:
        op = copy(node.op)
        op.dtype = op.acc_dtype = str(dtype)
        return op(one)


def _is_float(variable: Any) -> bool:
    return np.dtype(getattr(variable, "dtype", "int8")).kind in "fc"
