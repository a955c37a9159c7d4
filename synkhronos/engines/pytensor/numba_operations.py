"""Operations of `synkhronos.ops` for Numba. PyTensor's fallback would warn, and would not cache the graph."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Callable, List, Tuple

import numpy as np
from numba import objmode, types
from pytensor.link.numba.dispatch import elemwise
from pytensor.link.numba.dispatch.basic import get_numba_type, numba_njit, register_funcify_and_cache_key

from . import operations as ops

#: Hash of this file, part of the disk cache's keys, so that entries from other versions of the file are not reused.
SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


class Performed:
    """Callable that performs an operation on arrays, for calls from Numba."""

    def __init__(self, op: Any, n_outputs: int) -> None:
        self.op, self.n_outputs = op, n_outputs

    def __call__(self, *inputs: Any) -> Any:
        outputs: List[List[Any]] = [[None] for _ in range(self.n_outputs)]
        self.op.perform(None, [np.asarray(value) for value in inputs], outputs)
        found = tuple([np.asarray(cell[0], order="C") for cell in outputs])  # the layout that Numba expects
        return found[0] if self.n_outputs == 1 else found


def funcify(op: Any, node: Any, **kwargs: Any) -> Tuple[Callable[..., Any], str]:
    """Return the function that Numba compiles for an operation, and its cache key."""
    kinds = [get_numba_type(output.type, layout="C") for output in node.outputs]
    returned = kinds[0] if len(kinds) == 1 else types.Tuple(kinds)
    perform = Performed(op, len(kinds))

    @numba_njit
    def performed(*inputs):  # type: ignore[no-untyped-def]  # pragma: no cover, Numba compiles it
        with objmode(result=returned):
            result = perform(*inputs)
        return result

    properties = [(name, str(getattr(op, name))) for name in op.__props__]
    known_by = repr((SOURCE, type(op).__qualname__, properties, [str(kind) for kind in kinds]))
    return performed, hashlib.sha256(known_by.encode()).hexdigest()


for _each in (
    *(ops.AllReduce, ops.ReduceParts, ops.CombineParts, ops.TakePart, ops.CheckShapes),
    *(ops.TakeShare, ops.PutShare, ops.WholeLength, ops.InverseShare),
):
    register_funcify_and_cache_key(_each)(funcify)


def with_dtypes(funcify: Callable[..., Tuple[Any, Any]]) -> Callable[..., Tuple[Any, Any]]:
    """Return ``funcify`` with the outputs' dtypes in its cache keys, for fused operations in PyTensor 3.3.

    Otherwise, a program's float32 sum and a rank's float64 partial would share an entry of the cache.
    """

    def funcified(op: Any, node: Any, **kwargs: Any) -> Tuple[Any, Any]:
        function, known_by = funcify(op, node, **kwargs)
        dtypes = str([output.type.dtype for output in node.outputs])
        return function, known_by and hashlib.sha256((known_by + dtypes).encode()).hexdigest()

    return funcified


if hasattr(elemwise, "numba_funcify_FusedElemwise"):
    _funcified = with_dtypes(elemwise.numba_funcify_FusedElemwise)
    for _name in {"FusedElemwise", "ScalarizedElemwise"} & vars(elemwise).keys():  # PyTensor 3.2 lacks the second
        register_funcify_and_cache_key(getattr(elemwise, _name))(_funcified)
