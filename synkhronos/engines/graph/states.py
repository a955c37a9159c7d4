"""Inputs that store a value between calls, such as ``In(s, value=0., update=s + x)`` or ``In(s, value=container)``.

The value's storage also belongs to a shared variable, the input's *state*. Ranks treat it like any other variable:

====================================  =====================================================================
graph                                 the input, and its state
====================================  =====================================================================
`Engine.compile`, for `as_theano`     ``In(s, value=container of the state, update=...)``: as in the library
on ranks, without collectives         the same input, with the rank's state as its default
`Engine.variant`                      a plain input ``s``, and ``(state, ...)`` among the updates
====================================  =====================================================================

Callers cannot pass a value for an *implicit* input; in snapshots, its state replaces it.
"""

from __future__ import annotations

import copy
from typing import Any, List, Sequence, Tuple

from .library import Library


def keeps(library: Library, given: Any) -> bool:
    """Return whether an input (`SymbolicInput`) stores a value between calls."""
    value = getattr(given, "value", None)
    return value is not None and (given.update is not None or given.implicit or isinstance(value, _bound(library)))


def state_of(given: Any) -> Any:
    """Return the shared variable that stores the input's value between calls; None if there is none."""
    return getattr(given, "state", None)


def with_states(library: Library, inputs: Sequence[Any]) -> List[Any]:
    """Return the inputs of `function` with a state for each stored value; the program's own inputs are unchanged."""
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
    """Return the classes of default values whose storage the input uses."""
    return library.Container, library.SharedVariable


def _made(library: Library, given: Any) -> Any:
    """Return a new state, with the storage of the input's container or a new storage."""
    container, variable = given.value, given.variable
    if not isinstance(container, library.Container):
        container = library.Container(variable, [None], strict=given.strict, allow_downcast=given.allow_downcast)
        container.value = copy.deepcopy(given.value)  # because in-place updates must not change the program's value
    is_dense = isinstance(variable.type, library.TensorType)
    cls = library.TensorSharedVariable if is_dense else type(library.shared(container.value))
    return cls(name=given.name, type=variable.type, value=None, strict=None, container=container)


def detached(library: Library, given: Any, keep: bool) -> Any:
    """Return the input for a copy of its function; its state is a copy unless the program passed the storage.

    Without ``keep``, a copied state becomes a default value that calls do not change.
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
    """Return a stateless copy of a stateful input, for use in a snapshot."""
    plain = copy.copy(given)
    plain.value = plain.update = None
    plain.mutable = plain.borrow = False
    del plain.state, plain.has_own_state
    return plain
