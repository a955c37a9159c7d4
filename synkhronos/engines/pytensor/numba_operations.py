"""The operations of `synkhronos.ops` for Numba, which calls them as Python functions.

Without this PyTensor would do the same, with a warning, and Numba would keep nothing of the whole graph in its cache.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, List, Tuple

import numpy as np
from numba import objmode, types
from pytensor.link.numba.dispatch.basic import get_numba_type, numba_njit, register_funcify_and_cache_key

from .operations import AllReduce, InverseShare, PutShare, TakeShare, WholeLength


class Performed:
    """What Numba calls: an operation, on arrays.

    Parameters
    ----------
    op : Op
    n_outputs : int
    """

    def __init__(self, op: Any, n_outputs: int) -> None:
        self.op, self.n_outputs = op, n_outputs

    def __call__(self, *inputs: Any) -> Any:
        outputs: List[List[Any]] = [[None] for _ in range(self.n_outputs)]
        self.op.perform(None, [np.asarray(value) for value in inputs], outputs)
        found = tuple([np.asarray(cell[0], order="C") for cell in outputs])  # what the graph was compiled for
        return found[0] if self.n_outputs == 1 else found


def funcify(op: Any, node: Any, **kwargs: Any) -> Tuple[Callable[..., Any], str]:
    """Return the function that Numba compiles for an operation, and what it is known by in the cache."""
    kinds = [get_numba_type(output.type, layout="C") for output in node.outputs]
    returned = kinds[0] if len(kinds) == 1 else types.Tuple(kinds)
    perform = Performed(op, len(kinds))

    @numba_njit
    def performed(*inputs):  # type: ignore[no-untyped-def]  # pragma: no cover, Numba compiles it
        with objmode(result=returned):
            result = perform(*inputs)
        return result

    properties = [(name, str(getattr(op, name))) for name in op.__props__]
    known_by = repr((type(op).__qualname__, properties, [str(kind) for kind in kinds]))
    return performed, hashlib.sha256(known_by.encode()).hexdigest()


for _each in (AllReduce, TakeShare, PutShare, WholeLength, InverseShare):
    register_funcify_and_cache_key(_each)(funcify)
