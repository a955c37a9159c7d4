"""Parts of values in the types that they were computed in: ranks put these together, and round once.

::

    part = cast(sum(x), float32)       digits are lost if the parts of ranks cancel each other
    2 * part                           2 * sum(x) is reduced, and then cast

Sums of float32 are such parts, too: they are accumulated in float64, and cast at the end.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Callable, Optional

import numpy as np

from .affine import Affine
from .classes import Classes
from .lengths import broadcastable
from .rules.elementwise import accumulator


class BeforeRounding:
    """Finds, of the parts in the graphs of a library, the wider values that they are rounded from.

    Parameters
    ----------
    classes : Classes
    """

    def __init__(self, classes: Classes) -> None:
        self.classes, self.affine = classes, Affine(classes)

    def accumulated(self, node: Any) -> Optional[Any]:
        """Return what a reduction of floats gives before it is cast to a narrower type; None if it is not."""
        dtype, acc = np.dtype(node.outputs[0].dtype), accumulator(node)
        is_rounded = dtype.kind in "fc" and acc.kind in "fc" and not np.can_cast(acc, dtype)
        return self._in_dtype(node, acc) if is_rounded else None

    def __call__(self, part: Any, is_part: Callable[[Any], bool]) -> Optional[Any]:
        """Return the wider value of which a part is the rounding, in some type of floats; None if there is none.

        Parameters
        ----------
        part : variable
        is_part : callable
            Return whether a variable is a part.
        """
        node = part.owner
        if node is None or not is_part(part) or not _is_float(part):
            return None
        classes, inputs = self.classes, list(node.inputs)
        is_cast = isinstance(node.op, classes.Elemwise) and isinstance(node.op.scalar_op, classes.scalar.Cast)
        groups = self.affine(node)
        for i in {i for group in groups for i in group if is_part(inputs[i])}:
            one = self(inputs[i], is_part)
            inputs[i] = inputs[i] if one is None else one
        changed = any(new is not old for new, old in zip(inputs, node.inputs))
        if is_cast:
            (after,) = inputs
            if not _is_float(after):
                after = classes.tensor.cast(after, "float64")
        elif isinstance(node.op, classes.CAReduce):
            is_narrow = changed or not np.can_cast(node.inputs[0].dtype, part.dtype)
            if not is_narrow or not isinstance(node.op.scalar_op, (classes.scalar.Add, classes.scalar.Mul)):
                return None
            remade = node.clone_with_new_inputs(inputs, strict=False) if changed else node
            after = self._in_dtype(remade, np.result_type(accumulator(node), inputs[0].dtype, np.float16))
        elif changed:
            (after,) = node.clone_with_new_inputs(inputs, strict=False).outputs
        else:
            return None
        is_wider = not np.can_cast(after.dtype, part.dtype) and broadcastable(after) == broadcastable(part)
        return after if is_wider else None

    def _in_dtype(self, node: Any, dtype: Any) -> Any:
        op = copy(node.op)
        op.dtype = op.acc_dtype = str(dtype)
        return op(*node.inputs)


def _is_float(variable: Any) -> bool:
    return np.dtype(getattr(variable, "dtype", "int8")).kind in "fc"
