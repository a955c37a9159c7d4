"""What is changed in PyTensor itself."""

from __future__ import annotations

import functools
from typing import Any

from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.math import imag, real


def repair() -> None:
    """Have Numba know our operations, from the first graph on that it is given: others do not import it.

    And Python code compute ``real`` and ``imag`` element by element, into arrays of their own: of real numbers NumPy
    returns the array itself, and read-only zeros, in whose place graphs compute other things.
    """
    real.nfunc_spec = imag.nfunc_spec = None
    convert = NumbaLinker.fgraph_convert
    if hasattr(convert, "__wrapped__"):
        return

    @functools.wraps(convert)
    def fgraph_convert(self: Any, *args: Any, **kwargs: Any) -> Any:
        from . import numba_operations  # noqa: F401, registers itself

        return convert(self, *args, **kwargs)

    NumbaLinker.fgraph_convert = fgraph_convert
