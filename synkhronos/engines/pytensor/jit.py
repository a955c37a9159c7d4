"""Compilation with Numba before a function's first call, on the master for all ranks.

::

    master                                            every other rank
    warm_up: 1 minute   ->  files in PyTensor's  ->   warm_up: a fraction of a second
    dumps                   base_compiledir           loads (the graph)

A pickle contains no machine code. Numba's cache is keyed by graph, argument types and memory layouts, so ranks pass
arrays of a single layout (`laid_out`).
"""

from __future__ import annotations

import ctypes
import inspect
import logging
import time
from typing import Any, List, Optional, Tuple

import numpy as np
from pytensor.link.basic import JITLinker
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.type import TensorType

from .classes import is_sparse

logger = logging.getLogger("synkhronos")

#: Compile times above this limit, in seconds, are logged.
WORTH_SAYING_S = 1.0


def is_jitted(linker: Any) -> bool:
    """Return whether a linker compiles the whole graph on the first call."""
    return isinstance(linker, JITLinker)


def is_known(linker: Any) -> bool:
    """Return whether ranks can run a linker's functions; other JIT linkers may leave arrays on devices."""
    return not is_jitted(linker) or isinstance(linker, (NumbaLinker, JAXLinker))


def compile_now(compiled: Any) -> None:
    """Compile a function with Numba before its first call, without running it; do nothing for other linkers."""
    dispatcher = getattr(compiled.vm, "jit_fn", None)
    if not isinstance(compiled.maker.linker, NumbaLinker) or dispatcher is None:
        return
    signature = _signature(compiled)
    if signature is None or signature in dispatcher.signatures:
        return
    began = time.monotonic()
    dispatcher.compile(signature)
    took = time.monotonic() - began
    if took > WORTH_SAYING_S:
        logger.info("compiled function %s, %.1f s", compiled.name, took)


def _signature(compiled: Any) -> Optional[Tuple[Any, ...]]:
    """Return the Numba types of the inputs on ranks; None if an input is neither a dense array nor a generator."""
    from numba import from_dtype, types  # imported here, because only Numba's linker needs Numba

    found: List[Any] = []
    for variable in compiled.maker.fgraph.inputs:
        if isinstance(variable.type, TensorType) and not is_sparse(variable.type):
            found.append(types.Array(from_dtype(np.dtype(variable.type.dtype)), variable.type.ndim, "C"))
        elif isinstance(variable.type, RandomGeneratorType):
            found.append(types.NumPyRandomGeneratorType("NumPyRandomGeneratorType"))
        else:
            return None
    if compiled.vm.jit_fn.py_func.__code__.co_flags & inspect.CO_VARARGS:  # Numba packs the arguments into a tuple
        return (types.BaseTuple.from_types(found),)
    return tuple(found)


def laid_out(value: Any) -> Any:
    """Return an array that is C-contiguous, aligned and writable: a view if possible, else a copy.

    A read-only argument in C order, such as a mapped file, becomes a writable view. The function never writes to it,
    because `Engine.call` receives a copy of any argument that the function may overwrite.
    """
    if type(value) is not np.ndarray or value.flags.carray:
        return value
    if value.flags.c_contiguous and value.flags.aligned and value.nbytes and not value.dtype.hasobject:
        memory: Any = (ctypes.c_char * value.nbytes).from_address(value.ctypes.data)
        return np.ndarray(value.shape, value.dtype, memory)
    return np.array(value, order="C")


def settle(cells: List[List[Any]]) -> None:
    """Copy stored arrays that are not C-contiguous, aligned and writable; Numba would overwrite read-only arrays."""
    for cell in cells:
        value = cell[0]
        if type(value) is np.ndarray and not value.flags.carray:
            cell[0] = np.array(value, order="C")
