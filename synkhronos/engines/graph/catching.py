"""Catch calls to a tensor library's ``function``, even from code that has already imported it.

Libraries hold references to the function object, so its code is replaced, not the name in its module. Synkhronos itself
calls a copy with the original code.
"""

from __future__ import annotations

import inspect
import sys
import threading
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Callable, Dict, Iterator, Tuple

#: Receives the arguments of a caught call by name, and returns the result, or NotImplemented to call the original.
Handler = Callable[[Dict[str, Any]], Any]

_catchers: Dict[str, Catcher] = {}  # by the name of the function's module
_lock = threading.Lock()


def _caught(*args: Any, **kwargs: Any) -> Any:
    """Code of a caught function, which runs with the globals of the function's module."""
    from synkhronos.engines.graph.catching import call

    return call(__name__, args, kwargs)


def call(module: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Pass a call to the handler, unless the tensor library or Synkhronos made it."""
    catcher = _catchers[module]
    caller = str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0]
    if caller in (module.partition(".")[0], "synkhronos"):
        return catcher.original(*args, **kwargs)
    result = catcher.handler(dict(catcher.signature.bind(*args, **kwargs).arguments))
    return catcher.original(*args, **kwargs) if result is NotImplemented else result


class Catcher:
    """Catcher of calls to one function; calls to ``original``, a copy of the function, are never caught."""

    def __init__(self, function: FunctionType) -> None:
        self.original = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        self.signature = inspect.signature(self.original)
        self.handler: Handler = lambda given: NotImplemented
        self._function, self._n_open = function, 0
        _catchers[function.__module__] = self

    @contextmanager
    def catching(self, handler: Handler) -> Iterator[None]:
        """Pass calls in all threads to the handler during this block; overlapping blocks must have the same handler."""
        with _lock:
            self._n_open += 1
            if self._n_open == 1:
                self.handler, self._function.__code__ = handler, _caught.__code__
        try:
            yield
        finally:
            with _lock:
                self._n_open -= 1
                if self._n_open == 0:
                    self._function.__code__ = self.original.__code__
