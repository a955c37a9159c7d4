"""Inputs that keep a value between calls: ``In(s, value=0., update=s + x)``, or those bound to a container.

The library keeps such a value in the function's own storage. Here that storage is also the one of a shared variable,
the input's *state*, so that ranks are given it, and updates are computed and committed, like those of any other:

====================================  =====================================================================
graph                                 the input, and its state
====================================  =====================================================================
`Engine.compile`, as_theano calls it  ``In(s, value=container of the state, update=...)``: as in the library
on ranks, without collectives         the same; who gives no value gives what the rank's state holds
`Engine.variant`                      a plain input ``s``, and ``(state, ...)`` among the updates
====================================  =====================================================================

An *implicit* input cannot be given by the caller: in snapshots its state is in its place.
"""

from __future__ import annotations

import copy
from typing import Any, List, Sequence, Tuple

from .library import Library


def keeps(library: Library, given: Any) -> bool:
    """Return whether an input (`SymbolicInput`) keeps its value between calls."""
    value = getattr(given, "value", None)
    return value is not None and (given.update is not None or given.implicit or isinstance(value, _bound(library)))


def state_of(given: Any) -> Any:
    """Return the shared variable that holds the input's value between calls; None if it keeps none."""
    return getattr(given, "state", None)


def with_states(library: Library, inputs: Sequence[Any]) -> List[Any]:
    """Return inputs of `function` in which those that keep a value have a state; the program's own stay as they are."""
    result = []
    for given in inputs:
        wrapped = library.convert_function_input(given) if isinstance(given, (list, tuple)) else given
        if isinstance(wrapped, library.SymbolicInput) and keeps(library, wrapped):
            given = copy.copy(wrapped)
            given.has_own_state = not isinstance(given.value, _bound(library))
            given.state = given.value if isinstance(given.value, library.SharedVariable) else _made(library, given)
            given.value = given.state.container
        result.append(given)
    return result


def _bound(library: Library) -> Tuple[type, type]:
    """Return the classes of values that mean: the value that is kept there."""
    return library.Container, library.SharedVariable


def _made(library: Library, given: Any) -> Any:
    """Return a new state: with a value of its own, or with that of a container."""
    container, variable = given.value, given.variable
    if not isinstance(container, library.Container):
        container = library.Container(variable, [None], strict=given.strict, allow_downcast=given.allow_downcast)
        container.value = copy.deepcopy(given.value)  # which stays the program's: updates may be made in place
    is_dense = isinstance(variable.type, library.TensorType)
    cls = library.TensorSharedVariable if is_dense else type(library.shared(container.value))
    return cls(name=given.name, type=variable.type, value=None, strict=None, container=container)


def detached(library: Library, given: Any, keep: bool) -> Any:
    """Return the input of a copy of its function, which has a state of its own with the same value.

    Without ``keep`` that value is a default, which calls do not change. One that is bound to a container stays so.
    """
    copied = copy.copy(given)
    if getattr(given, "has_own_state", False):
        copied.value = copy.deepcopy(given.state.container).value
        if keep:
            (copied,) = with_states(library, [copied])
        else:
            del copied.state, copied.has_own_state
    return copied


def without_state(given: Any) -> Any:
    """Return the plain input that stands for one with a state in a snapshot."""
    plain = copy.copy(given)
    plain.value = plain.update = None
    plain.mutable = plain.borrow = False
    del plain.state, plain.has_own_state
    return plain
