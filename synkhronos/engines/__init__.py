"""The engines, by name: they compile functions and hold shared variables.

An engine is imported only if the program itself has imported what it is an
engine for, so unused engines are never imported::

    program             synkhronos                      this package
    import theano  -->  function(inputs, outputs)  -->  find: who owns these variables?
                        Function, collectives     <-->  ENGINE of engines/theano/engine.py
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional

from ..errors import ArgumentValueError
from . import requirements

if TYPE_CHECKING:  # `python -m synkhronos` imports this before it runs the program: NumPy is for that to import
    from .base import Engine

#: Name of the engine: (the module that a program of it has imported, the module whose ``ENGINE`` it is).
KNOWN = {
    "theano": ("theano", "synkhronos.engines.theano.engine"),
    "pytensor": ("pytensor", "synkhronos.engines.pytensor.engine"),
}

#: The engines that are libraries, in the order in which they are looked for.
LIBRARIES = tuple(KNOWN)

_made: Dict[str, Engine] = {}


def register(name: str, home: str) -> None:
    """Make another engine known: it is the ``ENGINE`` of the module ``home``."""
    KNOWN[name] = (home, home)


def get(name: str, home: Optional[str] = None) -> Engine:
    """Return the engine of that name; one object per process.

    Parameters
    ----------
    name : str
    home : str, optional
        Its module, if it may not be known yet in this process.
    """
    if name not in _made:
        if home is not None and name not in KNOWN:
            register(name, home)
        if name not in KNOWN:
            raise ArgumentValueError("engine", "one of " + ", ".join(sorted(KNOWN)), repr(name))
        module, home = KNOWN[name]
        try:
            _made[name] = importlib.import_module(home).ENGINE
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != module:  # (a folder of that name has no submodules)
                raise
            raise ArgumentValueError(
                "engine", "one that is installed", name, requirements.LIBRARIES[name].refusal()
            ) from error
    return _made[name]


def home_of(name: str) -> str:
    """Return the module whose ``ENGINE`` is the engine of that name."""
    return KNOWN[name][1]


def loaded() -> List[Engine]:
    """Return the engines whose programs this process has imported."""
    return [get(name) for name, (module, _) in KNOWN.items() if module in sys.modules]


def find(things: Iterable[Any]) -> Optional[Engine]:
    """Return the engine that owns the first of ``things`` which any engine owns; None if there is none."""
    engines = loaded()
    for thing in things:
        for engine in engines:
            if engine.owns(thing):
                return engine
    return None


def default() -> Engine:
    """Return the engine of a program whose variables tell none: the first one imported, else the first installed."""
    there = [name for name in LIBRARIES if name in sys.modules] or [name for name in LIBRARIES if is_installed(name)]
    if not there:
        here = [requirements.LIBRARIES[name] for name in LIBRARIES if requirements.LIBRARIES[name].runs_here()]
        commands = ", or ".join(f"{each.command} ({each.title})" for each in here)
        remedy = commands or "install Python 3.11 to 3.14 for PyTensor, or 3.8 to 3.11 for Theano"
        raise ModuleNotFoundError(f"functions need Theano or PyTensor, and neither is installed here: {remedy}")
    return get(there[0])


def is_installed(name: str) -> bool:
    """Return whether an engine's library can be imported; imports nothing, and prepares nothing for it."""
    spec = importlib.machinery.PathFinder.find_spec(KNOWN[name][0])
    return spec is not None and spec.origin is not None  # (a folder of that name has no origin)
