"""Flags for compiling functions. For bit-identical results, ranks use the program's flags, even if set after `fork`."""

from __future__ import annotations

import shutil
from typing import Any, Callable, ContextManager, Dict, Iterable

#: Names of library flags that change compiled code, and are neither part of a mode nor fixed at import.
NAMES = (
    *("cxx", "gcc.cxxflags", "cmodule.remove_gxx_opt", "blas.ldflags", "lib.amdlibm"),
    *("openmp", "openmp_elemwise_minsize", "numba.fastmath"),
)


class CompileFlags:
    """A library's flags by name; ``change`` returns a context manager that sets new values.

    Flags that have no value yet are not read, because reading ``blas.ldflags`` searches for a BLAS and may warn. They
    are not sent either; each rank then searches by itself.
    """

    def __init__(self, parameters: Callable[[], Dict[str, Any]], change: Callable[..., ContextManager[Any]]) -> None:
        self._parameters, self._change = parameters, change

    def to_send(self) -> Dict[str, Any]:
        parameters = self._parameters()
        return {name: parameters[name].val for name in self.names(parameters) if hasattr(parameters[name], "val")}

    @staticmethod
    def names(parameters: Iterable[str]) -> Iterable[str]:
        """Return the ``parameters`` listed in `NAMES`; PyTensor's names have two underscores instead of a dot."""
        return [name for name in parameters if name.replace("__", ".") in NAMES]

    def set(self, values: Dict[str, Any]) -> ContextManager[Any]:
        """Return a context manager that sets these values, except for a compiler that this host lacks."""
        if values.get("cxx") and not shutil.which(values["cxx"]):
            values = {name: value for name, value in values.items() if name != "cxx"}
        return self._change(**values)
