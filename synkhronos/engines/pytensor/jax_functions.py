"""Functions that JAX compiles: what they return and update is JAX's, and a JAX that runs cannot be forked.

::

    fork                          ranks have no JAX yet
    function(..., mode="JAX")     the master imports and starts it
    the first call                every rank starts its own, and compiles for itself

Where JAX runs before the fork, its threads are missing in the ranks, which would wait for them or be killed.
"""

from __future__ import annotations

import os
import sys
from typing import Any, List

import numpy as np
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.random.type import RandomGeneratorType

from ...errors import ArgumentValueError, StateError

#: Whether this process was forked from one in which JAX ran.
_inherited = False


def is_jax(linker: Any) -> bool:
    """Return whether a linker compiles by JAX."""
    return isinstance(linker, JAXLinker)


def _note_a_fork() -> None:
    global _inherited
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    _inherited = _inherited or (bridge is not None and bridge.backends_are_initialized())


os.register_at_fork(after_in_child=_note_a_fork)


def refuse_inherited(name: Any) -> None:
    """Refuse a function in a process that was forked while JAX ran: it would never return."""
    if _inherited:
        raise StateError(
            f"function {name} is compiled by JAX, which already ran in this program when the ranks were forked, and "
            "they have none of its threads: call synkhronos.fork before JAX is used, and before the first function of "
            'mode "JAX" is made; or choose another mode'
        )


def refuse_collectives() -> None:
    """Refuse a function with collectives: JAX need not call operations once each, in the order of the graph."""
    raise ArgumentValueError(
        "mode",
        "one that calls operations of synkhronos.ops once each, in order: NUMBA, or one of the C linker",
        "JAX, which may leave out, repeat or reorder them",
        "leave out the operations of synkhronos.ops (and exact=True), or choose another mode",
    )


def refuse_random(name: Any, shareds: List[Any]) -> None:
    """Refuse a function that draws random numbers: PyTensor gives JAX a copy of their states, which no rank can set."""
    if any(isinstance(shared.type, RandomGeneratorType) for shared in shareds):
        raise ArgumentValueError(
            "mode",
            "one in which random numbers are drawn from shared variables: NUMBA, or one of the C linker",
            f"JAX for function {name}, which draws random numbers",
            "give it the numbers as an input, or choose another mode",
        )


def as_numpy(value: Any) -> Any:
    """Return an array of JAX's as one of NumPy's own memory; any other value as it is."""
    return np.array(value) if type(value).__module__.startswith("jax") else value


def settle(cells: List[List[Any]]) -> None:
    """Put NumPy's arrays into the storages in which a call has left JAX's."""
    for cell in cells:
        cell[0] = as_numpy(cell[0])
