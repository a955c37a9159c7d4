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
        if fullname == self.name and fullname not in sys.modules:
            self.action()
        return None


def before_import(name: str, action: Callable[[], None]) -> None:
    """Have an action done before each import of a module; may be called any number of times."""
    if not any(isinstance(finder, BeforeImport) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, BeforeImport(name, action))
