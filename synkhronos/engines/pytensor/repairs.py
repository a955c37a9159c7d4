"""Patches to PyTensor that fix its faults and register our operations."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from pytensor.link.numba.linker import NumbaLinker
from pytensor.scalar.basic import Invert
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import imag, real

from ...memory.dtypes import own


def repair() -> None:
    """Register our operations with Numba when it compiles its first graph, and fix faults in PyTensor and pytensor-ml.

    For real numbers, NumPy's ``real`` returns the array itself, and ``imag`` returns read-only zeros. Graphs might
    overwrite both, so the patched operations return new arrays. Fused operations must invert True to False, not to -2.
    Python code stores a result in another memory order if an argument's dtype was loaded from a pickle
    (`memory.dtypes`). The program's own arrays may have such dtypes, but only on the master. pytensor-ml's windows of
    a single row are read-only, although graphs overwrite them.
    """
    real.nfunc_spec = imag.nfunc_spec = None
    Invert.impl = np.invert
    convert = NumbaLinker.fgraph_convert
    if hasattr(convert, "__wrapped__"):
        return

    @functools.wraps(convert)
    def fgraph_convert(self: Any, *args: Any, **kwargs: Any) -> Any:
        from . import numba_operations  # noqa: F401, registers itself

        return convert(self, *args, **kwargs)

    NumbaLinker.fgraph_convert = fgraph_convert
    perform = Elemwise.perform

    @functools.wraps(perform)
    def perform_with_own_types(self: Any, node: Any, inputs: Any, outputs: Any) -> None:
        given = [one if own(one.dtype) is one.dtype else one.view(own(one.dtype)) for one in inputs]
        for i in self.inplace_pattern.values():
            given[i] = given[i] if given[i].flags.writeable else given[i].copy()
        perform(self, node, given, outputs)

    Elemwise.perform = perform_with_own_types
