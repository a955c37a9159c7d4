"""Actions that run just before a library is imported; programs that never import the library lose no time."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Callable, Optional, Sequence


class BeforeImport(MetaPathFinder):
    """Import finder that runs an action, whose errors propagate, before a module is imported; it finds no module."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """Run the action if the finder's module is being imported; always leave the search to other finders."""
        if fullname == self.name and fullname not in sys.modules and is_import():
            self.action()
        return None


def before_import(name: str, action: Callable[[], None]) -> None:
    """Install an action that runs before an import loads a module; only the first call for a module has an effect."""
    if not any(isinstance(finder, BeforeImport) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, BeforeImport(name, action))


def is_import() -> bool:
    """Return whether an import invoked the calling finder, rather than `importlib.util.find_spec`.

    Finders must not raise errors in the latter case. Both call ``_find_spec``, but from different functions.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_find_spec":
        frame = frame.f_back  # type: ignore[assignment]
    caller = frame and frame.f_back
    return caller is not None and caller.f_code.co_name == "_find_and_load_unlocked"
