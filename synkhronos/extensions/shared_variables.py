"""Shared variables of training, for any engine: checks, copies of the same type, functions that assign values."""

from __future__ import annotations

from typing import AbstractSet as Set
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import numpy as np

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError
from synkhronos.extending import built_functions, find_engine


def check_params(variables: Any, argument: str = "params", allow_none: bool = False) -> List[Any]:
    """Return shared variables as a list, after checking that each is a distinct dense floating-point array."""
    is_one = hasattr(variables, "type")  # a variable of Theano, which has `__iter__`, too
    if is_one or isinstance(variables, (Mapping, Set)) or not isinstance(variables, Iterable):
        raise ArgumentTypeError(argument, "a list of shared variables", describe(variables))
    listed: List[Any] = list(variables)
    if not listed and not allow_none:
        raise ArgumentValueError(argument, "at least one shared variable", "an empty list")
    engine = find_engine(listed)
    seen: Dict[Any, int] = {}
    for i, variable in enumerate(listed):
        name = label(i, variable, argument)
        if engine is None or not engine.is_shared(variable):
            hint = "only shared variables can be updated"
            raise ArgumentTypeError(name, "a shared variable", describe(variable), hint)
        type_ = engine.shared_type(variable)
        if type_ is None or type_.dtype.kind != "f":
            got = f"{describe(variable)}, {'which is not a dense array' if type_ is None else type_.words}"
            raise ArgumentTypeError(name, "a dense array of floating-point numbers", got, "omit it")
        first = seen.setdefault(engine.identity(variable), i)  # clones are different variables that share a value
        if first != i:
            got = f"a variable that is listed twice (it shares the value of {argument}[{first}])"
            raise ArgumentValueError(name, "each variable once, with its own value", got, "list it once")
    return listed


def label(i: int, variable: Any, argument: str = "params") -> str:
    """Return the name of an element of an argument, for messages."""
    name = getattr(variable, "name", None)
    return f"{argument}[{i}] ({repr(name) if name else 'without a name'})"


def describe(thing: Any) -> str:
    """Return a description of an argument of the wrong kind, for messages."""
    type_ = getattr(thing, "type", None)
    return f"{thing!r} of type {type(thing).__name__}" if type_ is None else f"{thing} of type {type_}"


def check_used(variables: Sequence[Any], argument: str) -> None:
    """Refuse variables that no synkhronos function uses, because the other ranks do not have them."""
    engine = find_engine(variables)
    ours = [function for function in built_functions() if function.engine is engine]
    used = {engine.identity(shared) for function in ours for shared in function.get_shared()}
    for i, variable in enumerate(variables):
        if engine.identity(variable) not in used:
            expected = "a variable that synkhronos functions use, so that every rank has a value for it"
            got = f"{engine.label(variable, f'{argument}[{i}]')}, which no such function uses"
            hint = "build the functions that use it with synkhronos.function first"
            raise ArgumentValueError(f"{argument}[{i}]", expected, got, hint)


def floats(variables: Sequence[Any]) -> List[Any]:
    """Return the shared variables that are dense floating-point arrays."""
    engine = find_engine(variables)
    types = [(variable, engine.shared_type(variable)) for variable in variables]
    return [variable for variable, type_ in types if type_ is not None and type_.dtype.kind == "f"]


def like(variable: Any, what: str, zero: bool = False) -> Any:
    """Return a new shared variable of the same type, with the master's value or zeros."""
    engine = find_engine([variable])
    value = np.array(engine.to_host(engine.get(variable)))
    made = engine.build(engine.blueprint(variable), np.zeros_like(value) if zero else value)
    made.name = f"{variable.name}.{what}" if variable.name else what
    return made


def n_bytes(variable: Any) -> int:
    engine = find_engine([variable])
    return int(engine.to_host(engine.get(variable)).nbytes)


def number(value: float, variable: Any) -> Any:
    """Return a constant with the variable's dtype; a different dtype would change the dtype of an update."""
    engine = find_engine([variable])
    return engine.shared_type(variable).dtype.type(value)


def nearer(x: Any, z: Any, base: Any, part: float) -> Any:
    """Return ``x`` plus a part of the difference from ``base`` to ``z``."""
    return x + (z - base) * number(part, x)


def local_function(updates: Iterable[Tuple[Any, Any]]) -> Any:
    """Return a function that every rank applies to its own values of the variables, without communication."""
    return synk.function([], updates=list(updates), exact=False)


def assignment(targets: Sequence[Any], sources: Sequence[Any]) -> Any:
    """Return a function that sets the targets on every rank to that rank's values of the source variables."""
    return local_function((target, source * number(1, source)) for target, source in zip(targets, sources))
