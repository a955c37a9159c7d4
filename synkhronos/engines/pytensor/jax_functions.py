"""Support for functions compiled with JAX, which returns JAX arrays and runs threads that do not survive a fork.

::

    fork                          ranks have no JAX yet
    function(..., mode="JAX")     the master imports and starts JAX
    the first call                every rank starts its own JAX and compiles the function itself

If JAX ran before the fork, ranks would wait forever for its threads, or be killed; `refuse_inherited` prevents this.
"""

from __future__ import annotations

import os
import sys
from typing import Any, List

import numpy as np
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.random.type import RandomGeneratorType

from ...errors import ArgumentValueError, StateError

#: Whether this process was forked while JAX was running.
_inherited = False


def is_jax(linker: Any) -> bool:
    return isinstance(linker, JAXLinker)


def _note_a_fork() -> None:
    global _inherited
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    _inherited = _inherited or (bridge is not None and bridge.backends_are_initialized())


os.register_at_fork(after_in_child=_note_a_fork)


def refuse_inherited(name: Any) -> None:
    """Raise StateError in a process forked while JAX was running, where a JAX function would never return."""
    if _inherited:
        raise StateError(
            f"function {name} is compiled with JAX, which was already running when the ranks were forked, so the ranks "
            "lack its threads: call synkhronos.fork before the program uses JAX or builds the first function with "
            'mode "JAX", or choose another mode'
        )


def refuse_collectives() -> None:
    """Raise ArgumentValueError for JAX functions with collectives; JAX may skip, repeat or reorder operations."""
    raise ArgumentValueError(
        "mode",
        "a mode that runs operations of synkhronos.ops exactly once and in order: NUMBA, or a mode with the C linker",
        "JAX, which may skip, repeat or reorder operations",
        "leave out the operations of synkhronos.ops (and exact=True), or choose another mode",
    )


def refuse_random(name: Any, shareds: List[Any]) -> None:
    """Raise ArgumentValueError if a function draws random numbers, because PyTensor copies random states for JAX."""
    if any(isinstance(shared.type, RandomGeneratorType) for shared in shareds):
        raise ArgumentValueError(
            "mode",
            "a mode that draws random numbers from shared variables: NUMBA, or a mode with the C linker",
            f"JAX for function {name}, which draws random numbers",
            "pass the numbers as an input, or choose another mode",
        )


def as_numpy(value: Any) -> Any:
    """Return a NumPy copy of a JAX array; return any other value unchanged."""
    return np.array(value) if type(value).__module__.startswith("jax") else value


def settle(cells: List[List[Any]]) -> None:
    """Convert the JAX arrays that a call has stored in shared variables to NumPy arrays."""
    for cell in cells:
        cell[0] = as_numpy(cell[0])
