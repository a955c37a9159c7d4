"""Observation of the program's accesses to shared variables, to keep their replicas in sync.

::

    the program                            the engine                        the observer of the storage
    ------------------------------------   -------------------------------   ---------------------------------
    w.get_value(), w.set_value(v)          patched in every class            get, put (which call the originals)
    w.get_value(borrow=True), f.value[w]   returns the stored object         settle, lent
    g(): before the call                   patched in the class              settle, unshare
    w.set_value(v), f[s] = v               stores an object                  written
    g(): after the call, if g updates w    patched in the class              updated

Functions called by ranks bypass the patches (`graph.observed`) and report nothing.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, List, Optional, Set


class ValueObserver:
    """Observer of one storage (base class). It must keep the storage alive; `observe` refers to the observer weakly."""

    __slots__ = ("__weakref__",)

    #: Whether `get` and `put` are called in place of the library's own methods.
    stands_in = False

    def get(self, get: Callable[[], Any], borrow: bool) -> Any:
        """Run in place of the variable's ``get_value``; ``get`` calls the library's own method."""
        return get()

    def put(self, put: Callable[[Any], None], value: Any, borrow: bool) -> None:
        """Run in place of the variable's ``set_value``; ``put`` calls the library's own method."""
        put(value)

    def settle(self) -> None:
        """Run before the program reads the storage: store the value in the form that the program expects."""

    def unshare(self) -> None:
        """Run before a function called by the program may write to the stored object, or return it."""

    def lent(self) -> None:
        """Run when the program receives the stored object itself, which it may then write to at any time."""

    def written(self) -> None:
        """Run after the program has stored an object, possibly the same object as before."""

    def updated(self) -> None:
        """Run after a function called by the program may have changed the stored value, possibly in place."""


#: Observers by the ``id`` of their storage.
_OBSERVERS: "weakref.WeakValueDictionary[int, ValueObserver]" = weakref.WeakValueDictionary()

#: Ids of threads that copy a storage with the library's own ``get_value``, and of threads that run a function.
_COPYING: Set[int] = set()
_CALLING: Set[int] = set()


def observe(storage: List[Any], observer: ValueObserver) -> None:
    """Install an observer of a storage; it replaces any previous observer."""
    _OBSERVERS[id(storage)] = observer


def observer_of(storage: List[Any]) -> Optional[ValueObserver]:
    return _OBSERVERS.get(id(storage))


def is_any_observed() -> bool:
    return bool(_OBSERVERS)


def copied(get: Callable[..., Any], *args: Any) -> Any:
    """Return ``get(*args)``, which copies the storages that it reads; these reads are not reported."""
    return _noted(_COPYING, get, *args)


def calling(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return ``call(*args, **kwargs)``; its writes to storages count as updates."""
    return _noted(_CALLING, call, *args, **kwargs)


def _noted(threads: Set[int], call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    thread = threading.get_ident()
    threads.add(thread)
    try:
        return call(*args, **kwargs)
    finally:
        threads.discard(thread)


def note_read(storage: List[Any]) -> None:
    """Report that the program receives the object in a storage, unless this thread is copying it."""
    observer = _OBSERVERS.get(id(storage))
    if observer is not None:
        observer.settle()
        if threading.get_ident() not in _COPYING:
            observer.lent()


def settle(storage: List[Any]) -> None:
    """Prepare a storage for a read that is not reported."""
    observer = _OBSERVERS.get(id(storage))
    if observer is not None:
        observer.settle()


def note_written(storage: List[Any]) -> None:
    observer = _OBSERVERS.get(id(storage))
    if observer is not None:
        observer.updated() if threading.get_ident() in _CALLING else observer.written()
