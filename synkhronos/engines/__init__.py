"""The engines, by name: who compiles functions and holds shared variables.

An engine is imported only when the program itself has imported what it
stands for, so that nobody pays for (or needs) an engine that he does not use.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional

if TYPE_CHECKING:  # `python -m synkhronos` passes here before the program: NumPy is for that to import
    from .base import Engine

#: Name of the engine: (the module that a program of it has imported, the module whose ``ENGINE`` it is).
KNOWN = {
    "theano": ("theano", "synkhronos.engines.theano.engine"),
}

_made: Dict[str, Engine] = {}


def register(name: str, home: str) -> None:
    """Make an engine known that lives elsewhere: ``home`` is its module, which has it as ``ENGINE``."""
    KNOWN[name] = (home, home)


def get(name: str, home: Optional[str] = None) -> Engine:
    """Return the engine of that name; one object per process. ``home`` is its module, if it may not be known yet."""
    if name not in _made:
        if home is not None and name not in KNOWN:
            register(name, home)
        if name not in KNOWN:
            raise ValueError("unknown engine {!r} (known: {})".format(name, ", ".join(sorted(KNOWN))))
        _made[name] = importlib.import_module(KNOWN[name][1]).ENGINE
    return _made[name]


def loaded() -> List[Engine]:
    """Return the engines whose programs this process has imported."""
    return [get(name) for name, (module, _) in KNOWN.items() if module in sys.modules]


def find(things: Iterable[Any], default: Optional[str] = "theano") -> Optional[Engine]:
    """Return the engine that owns the first of ``things`` which any engine owns, else the default one (if any)."""
    there = loaded()
    for thing in things:
        for engine in there:
            if engine.owns(thing):
                return engine
    return None if default is None else get(default)
