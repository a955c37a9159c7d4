"""Lookup of engines, which compile functions and manage shared variables.

An engine is imported on first use, so unused engines cost nothing. ::

    program             synkhronos                      this package
    import theano  -->  function(inputs, outputs)  -->  find: which engine owns these variables?
                        Function, collectives     <-->  ENGINE of engines/theano/engine.py
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional

from ..errors import ArgumentValueError
from . import requirements

if TYPE_CHECKING:  # `python -m synkhronos` imports this module, and must not import NumPy before the program
    from .base import Engine

#: Maps an engine's name to the module that its programs import and the module that defines its ``ENGINE``.
KNOWN = {
    "theano": ("theano", "synkhronos.engines.theano.engine"),
    "pytensor": ("pytensor", "synkhronos.engines.pytensor.engine"),
}

#: The names of the tensor libraries' engines, in the order of preference of `default`.
LIBRARIES = tuple(KNOWN)

_made: Dict[str, Engine] = {}


def register(name: str, home: str) -> None:
    """Register the ``ENGINE`` of the module ``home`` under a name."""
    KNOWN[name] = (home, home)


def get(name: str, home: Optional[str] = None) -> Engine:
    """Return this process's engine of this name; if the name is unregistered, register it for the module ``home``."""
    if name not in _made:
        if home is not None and name not in KNOWN:
            register(name, home)
        if name not in KNOWN:
            raise ArgumentValueError("engine", "one of " + ", ".join(sorted(KNOWN)), repr(name))
        module, home = KNOWN[name]
        try:
            _made[name] = importlib.import_module(home).ENGINE
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != module:  # (a folder with the library's name lacks submodules)
                raise
            raise ArgumentValueError(
                "engine", "an installed engine", name, requirements.LIBRARIES[name].refusal()
            ) from error
    return _made[name]


def home_of(name: str) -> str:
    return KNOWN[name][1]


def loaded() -> List[Engine]:
    """Return the engines whose libraries this process has imported."""
    return [get(name) for name, (module, _) in KNOWN.items() if module in sys.modules]


def find(things: Iterable[Any]) -> Optional[Engine]:
    """Return the engine that owns the first owned object among ``things``; None if no engine owns any."""
    engines = loaded()
    for thing in things:
        for engine in engines:
            if engine.owns(thing):
                return engine
    return None


def default() -> Engine:
    """Return the engine for programs whose variables identify no engine: an imported one, or else an installed one."""
    there = [name for name in LIBRARIES if name in sys.modules] or [name for name in LIBRARIES if is_installed(name)]
    if not there:
        here = [requirements.LIBRARIES[name] for name in LIBRARIES if requirements.LIBRARIES[name].runs_here()]
        commands = ", or ".join(f"{each.command} ({each.title})" for each in here)
        remedy = commands or "install Python 3.11 to 3.14 for PyTensor, or 3.8 to 3.11 for Theano"
        raise ModuleNotFoundError(f"functions need Theano or PyTensor, and neither is installed here: {remedy}")
    return get(there[0])


def is_installed(name: str) -> bool:
    """Return whether an engine's library is installed, without importing it or running `before_import` actions."""
    spec = importlib.machinery.PathFinder.find_spec(KNOWN[name][0])
    return spec is not None and spec.origin is not None  # (a folder with the library's name has no origin)
