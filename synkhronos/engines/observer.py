"""What the program does to the values of shared variables, as seen by whoever keeps them in step on other ranks.

::

    the program                            the engine                        the observer of the storage
    ------------------------------------   -------------------------------   ---------------------------------
    w.get_value(), w.set_value(v)          patched by class                  get, put (which call the originals)
    w.get_value(borrow=True), f.value[w]   the storage's object is returned  lent
    w.set_value(v), f[s] = v               an object is put there            written
    g(): a function of its own, updates    patched by class                  updated

A function that ranks call reports nothing: engines call it past the patch. See `graph.observed` for libraries.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, List, Optional, Set


class Observer:
    """Sees what the program does to one storage; it keeps the storage alive, and nothing keeps the observer alive.

    Each method does by default what happens without an observer.
    """

    __slots__ = ("__weakref__",)

    #: Whether `get` and `put` do anything else than the library's own methods.
    stands_in = False

    def get(self, get: Callable[[], Any], borrow: bool) -> Any:
        """Return what the variable's ``get_value`` returns; ``get`` is the library's own."""
        return get()

    def put(self, put: Callable[[Any], None], value: Any, borrow: bool) -> None:
        """Do what the variable's ``set_value`` does; ``put`` is the library's own."""
        put(value)

    def lent(self) -> None:
        """Note that the program is given the object itself that the storage holds, and may write to it at any time."""

    def written(self) -> None:
        """Note that the program has put an object into the storage, maybe the one that was there."""

    def updated(self) -> None:
        """Note that a function, called by the program, has changed what the storage holds, maybe in place."""


#: By the ``id`` of a storage.
_OBSERVERS: "weakref.WeakValueDictionary[int, Observer]" = weakref.WeakValueDictionary()

#: The threads in which the library's own ``get_value`` reads a storage to copy it, and those in which a function runs.
_COPYING: Set[int] = set()
_CALLING: Set[int] = set()


def observe(storage: List[Any], observer: Observer) -> None:
    """Have an observer see what the program does to a storage, in place of the one before."""
    _OBSERVERS[id(storage)] = observer


def observer_of(storage: List[Any]) -> Optional[Observer]:
    """Return the observer of a storage, if there is one."""
    return _OBSERVERS.get(id(storage))


def is_any_observed() -> bool:
    """Return whether any storage is observed."""
    return bool(_OBSERVERS)


def copied(get: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns; what it reads of storages it copies, and so lends nothing."""
    return _noted(_COPYING, get, *args)


def calling(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a function returns; what it writes into storages are updates."""
    return _noted(_CALLING, call, *args, **kwargs)


def _noted(threads: Set[int], call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    thread = threading.get_ident()
    threads.add(thread)
    try:
        return call(*args, **kwargs)
    finally:
        threads.discard(thread)


def note_read(storage: List[Any]) -> None:
    """Report that the program is given the object in a storage, unless it is being copied."""
    observer = _OBSERVERS.get(id(storage))
    if observer is not None and threading.get_ident() not in _COPYING:
        observer.lent()


def note_written(storage: List[Any]) -> None:
    """Report that the program has put an object into a storage."""
    observer = _OBSERVERS.get(id(storage))
    if observer is not None:
        observer.updated() if threading.get_ident() in _CALLING else observer.written()
