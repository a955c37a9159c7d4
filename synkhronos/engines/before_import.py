"""What is done when a program is about to import a library, and not before: a program without it loses no time."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Callable, Optional, Sequence


class BeforeImport(MetaPathFinder):
    """Finds nothing, but sees that a module is about to be imported.

    Parameters
    ----------
    name : str
        The module's.
    action : callable
        Called then; an ``ImportError`` out of it is what the program sees.
    """

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Act if it is that module; leave finding it to others."""
        if fullname == self.name and fullname not in sys.modules and is_import():
            self.action()
        return None


def before_import(name: str, action: Callable[[], None]) -> None:
    """Have an action done before each import of a module; may be called any number of times."""
    if not any(isinstance(finder, BeforeImport) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, BeforeImport(name, action))


def is_import() -> bool:
    """Return whether a finder that calls this is asked for an import.

    `importlib.util.find_spec` asks finders, too, and must not fail: it returns None if nothing is there. Both ask by
    the same function of Python's import system, and differ in its caller.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_find_spec":
        frame = frame.f_back  # type: ignore[assignment]
    caller = frame and frame.f_back
    return caller is not None and caller.f_code.co_name == "_find_and_load_unlocked"
