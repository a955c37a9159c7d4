"""Shared variables of rules, for any engine: validation, copies of the same type, and functions that assign values."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np

import synkhronos as synk
from synkhronos import engines
from synkhronos.errors import ArgumentTypeError, ArgumentValueError
from synkhronos.program.program import PROGRAM


def check_params(variables: Any, argument: str, allow_none: bool = False) -> List[Any]:
    """Return shared variables as a list, after checking that each is a distinct dense floating-point array."""
    if not isinstance(variables, (list, tuple)):
        raise ArgumentTypeError(argument, "a list of shared variables", f"{variables!r}")
    engine: Any = engines.find(variables)
    seen: Dict[Any, int] = {}
    for i, variable in enumerate(variables):
        if engine is None or not engine.is_shared(variable):
            raise ArgumentTypeError(f"{argument}[{i}]", "a shared variable", repr(variable))
        label, type_ = engine.label(variable, f"{argument}[{i}]"), engine.shared_type(variable)
        if type_ is None or type_.dtype.kind != "f":
            got = f"{label}, {'which is not a dense array' if type_ is None else type_.words}"
            raise ArgumentTypeError(f"{argument}[{i}]", "a dense array of floating-point numbers", got, "omit it")
        if seen.setdefault(engine.identity(variable), i) != i:
            raise ArgumentValueError(f"{argument}[{i}]", "each variable once", f"{label}, which is listed twice")
    if not variables and not allow_none:
        raise ArgumentValueError(argument, "at least one shared variable", "an empty list")
    return list(variables)


def check_used(variables: Sequence[Any], argument: str) -> None:
    """Refuse variables that no synkhronos function uses, because the other ranks do not have them."""
    engine: Any = engines.find(variables)
    ours = [function for function in PROGRAM.functions if function.engine is engine]
    used = {engine.identity(shared) for function in ours for shared in function.get_shared()}
    for i, variable in enumerate(variables):
        if engine.identity(variable) not in used:
            expected = "a variable that synkhronos functions use, so that every rank has a value for it"
            got = f"{engine.label(variable, f'{argument}[{i}]')}, which no such function uses"
            hint = "build the functions that use it with synkhronos.function first"
            raise ArgumentValueError(f"{argument}[{i}]", expected, got, hint)


def floats(variables: Sequence[Any]) -> List[Any]:
    """Return the shared variables that are dense floating-point arrays."""
    engine: Any = engines.find(variables)
    types = [(variable, engine.shared_type(variable)) for variable in variables]
    return [variable for variable, type_ in types if type_ is not None and type_.dtype.kind == "f"]


def like(variable: Any, what: str, zero: bool = False) -> Any:
    """Return a new shared variable of the same type, with the master's value or zeros."""
    engine: Any = engines.find([variable])
    value = np.array(engine.to_host(engine.get(variable)))
    made = engine.build(engine.blueprint(variable), np.zeros_like(value) if zero else value)
    made.name = f"{engine.label(variable)}.{what}"
    return made


def n_bytes(variable: Any) -> int:
    engine: Any = engines.find([variable])
    return int(engine.to_host(engine.get(variable)).nbytes)


def number(value: float, variable: Any) -> Any:
    """Return a constant with the variable's dtype; a different dtype would change the dtype of an update."""
    engine: Any = engines.find([variable])
    return engine.shared_type(variable).dtype.type(value)


def assignment(targets: Sequence[Any], sources: Sequence[Any]) -> Any:
    """Return a function that sets the targets on every rank to that rank's values of the source variables."""
    updates = [(target, source * number(1, source)) for target, source in zip(targets, sources)]
    return synk.function([], updates=updates, exact=False)
