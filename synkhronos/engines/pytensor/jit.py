"""What Numba compiles in a function's first call: compiled before it, and for all ranks by the master alone.

::

    master                                            every other rank
    warm_up: 1 minute   ->  files of PyTensor's  ->   warm_up: a part of a second
    dumps                   base_compiledir           loads (the graph)

A pickle has the graph, without machine code. Numba finds what it has compiled before by the graph, by the types of the
arguments, and by how these lie in memory: so ranks call functions with arrays of one kind alone (`laid_out`).
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

#: Seconds from which on the log says what was compiled.
WORTH_SAYING_S = 1.0


def is_jitted(linker: Any) -> bool:
    """Return whether a linker compiles the whole graph at the first call."""
    return isinstance(linker, JITLinker)


def is_known(linker: Any) -> bool:
    """Return whether functions of a linker run on ranks: other linkers leave their own arrays, on their own devices."""
    return not is_jitted(linker) or isinstance(linker, (NumbaLinker, JAXLinker))


def compile_now(compiled: Any) -> None:
    """Compile what the first call of a function on a rank would compile; nothing is computed."""
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
    """Return the Numba types of the inputs, as ranks give them; None if there are others than arrays and generators."""
    from numba import from_dtype, types  # (imported by the linker; only to be used with it)

    found: List[Any] = []
    for variable in compiled.maker.fgraph.inputs:
        if isinstance(variable.type, TensorType) and not is_sparse(variable.type):
            found.append(types.Array(from_dtype(np.dtype(variable.type.dtype)), variable.type.ndim, "C"))
        elif isinstance(variable.type, RandomGeneratorType):
            found.append(types.NumPyRandomGeneratorType("NumPyRandomGeneratorType"))
        else:
            return None
    if compiled.vm.jit_fn.py_func.__code__.co_flags & inspect.CO_VARARGS:  # which Numba takes for one tuple
        return (types.BaseTuple.from_types(found),)
    return tuple(found)


def laid_out(value: Any) -> Any:
    """Return an argument as an array that is contiguous in C's order, aligned, and can be written to.

    A copy, unless it is that already, or all that is in the way is that its memory may only be read: of a large file,
    say. The function does not write to it (`Engine.call` is given a copy of what an input may destroy).
    """
    if type(value) is not np.ndarray or value.flags.carray:
        return value
    if value.flags.c_contiguous and value.flags.aligned and value.nbytes and not value.dtype.hasobject:
        memory: Any = (ctypes.c_char * value.nbytes).from_address(value.ctypes.data)
        return np.ndarray(value.shape, value.dtype, memory)
    return np.array(value, order="C")


def settle(cells: List[List[Any]]) -> None:
    """Put copies into the storages of arrays that lie otherwise; functions even write to what can only be read."""
    for cell in cells:
        value = cell[0]
        if type(value) is np.ndarray and not value.flags.carray:
            cell[0] = np.array(value, order="C")
