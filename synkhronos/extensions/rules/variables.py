"""Shared variables of rules, in any engine: which ones may be trained, others like them, functions that assign them."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np

import synkhronos as synk
from synkhronos import engines
from synkhronos.errors import ArgumentTypeError, ArgumentValueError
from synkhronos.program.program import PROGRAM


def check_params(variables: Any, argument: str, allow_none: bool = False) -> List[Any]:
    """Return shared variables as a list; refuse any that are not dense arrays of floats, or listed twice."""
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
            raise ArgumentTypeError(f"{argument}[{i}]", "a dense array of floating-point numbers", got, "leave it out")
        if seen.setdefault(engine.identity(variable), i) != i:
            raise ArgumentValueError(f"{argument}[{i}]", "each variable once", f"{label}, which is listed twice")
    if not variables and not allow_none:
        raise ArgumentValueError(argument, "at least one shared variable", "none")
    return list(variables)


def check_used(variables: Sequence[Any], argument: str) -> None:
    """Refuse variables that no function of synkhronos uses: the ranks could make no steps with them."""
    engine: Any = engines.find(variables)
    ours = [function for function in PROGRAM.functions if function.engine is engine]
    used = {engine.identity(shared) for function in ours for shared in function.get_shared()}
    for i, variable in enumerate(variables):
        if engine.identity(variable) not in used:
            expected = "a variable that functions of synkhronos use, so that ranks have values of their own"
            got = f"{engine.label(variable, f'{argument}[{i}]')}, which no such function uses"
            raise ArgumentValueError(f"{argument}[{i}]", expected, got, "build the functions that make the steps first")


def floats(variables: Sequence[Any]) -> List[Any]:
    """Return those shared variables that are dense arrays of floats."""
    engine: Any = engines.find(variables)
    types = [(variable, engine.shared_type(variable)) for variable in variables]
    return [variable for variable, type_ in types if type_ is not None and type_.dtype.kind == "f"]


def like(variable: Any, what: str, zero: bool = False) -> Any:
    """Return a shared variable of the same type, with the same value on the master or of zeros."""
    engine: Any = engines.find([variable])
    value = np.array(engine.to_host(engine.get(variable)))
    made = engine.build(engine.blueprint(variable), np.zeros_like(value) if zero else value)
    made.name = f"{engine.label(variable)}.{what}"
    return made


def n_bytes(variable: Any) -> int:
    """Return the bytes of the master's value."""
    engine: Any = engines.find([variable])
    return int(engine.to_host(engine.get(variable)).nbytes)


def number(value: float, variable: Any) -> Any:
    """Return a constant of the variable's own dtype: of another, an update would have another, too."""
    engine: Any = engines.find([variable])
    return engine.shared_type(variable).dtype.type(value)


def assignment(targets: Sequence[Any], sources: Sequence[Any]) -> Any:
    """Return a function by which every rank gives the targets its own values of the sources."""
    updates = [(target, source * number(1, source)) for target, source in zip(targets, sources)]
    return synk.function([], updates=updates, exact=False)
