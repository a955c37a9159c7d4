"""Patches that report a program's accesses to shared variables to observers.

They replace ``get_value`` and ``set_value`` of shared variables, ``Function.__call__`` (even of existing functions),
and ``value`` and ``data`` of containers. All other accesses go through containers (``zero``, ``f[s] = v``,
``f.value``). Functions called by ranks are exempt.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Set, Tuple
from weakref import WeakKeyDictionary

from ..observer import calling, copied, is_any_observed, note_read, note_written, observer_of, settle
from .library import Library

ORIGINAL = "_synkhronos_original"


class Touched(NamedTuple):
    """Positions of the inputs that a call updates, and of the inputs whose arrays its outputs expose (``lent``).

    ``written`` are the inputs whose arrays the call overwrites, exposes, or stores in other variables; an update may
    also leave the old array as it is.
    """

    updated: Tuple[int, ...]
    lent: Tuple[int, ...]
    written: Tuple[int, ...]


class Patched:
    """Idempotent patches of one library's classes; `call` is the library's own ``Function.__call__``."""

    def __init__(self, library: Library) -> None:
        self._library = library
        #: Results of `_find_touched` by function maker; a result never changes, and lives as long as the maker.
        self._touched: WeakKeyDictionary[Any, Touched] = WeakKeyDictionary()
        self._unobserved = _observe_containers(library.Container)
        for cls in _with_subclasses(library.SharedVariable):
            _patch(cls, "get_value", _observed_get)
            _patch(cls, "set_value", _observed_set)
        _patch(library.Function, "__call__", self._observed_call)
        self.call: Callable[..., Any] = getattr(library.Function.__call__, ORIGINAL)

    def leave_out(self, compiled: Any) -> None:
        """Exempt a function that ranks call, so that its accesses are not reported."""
        for container in [*compiled.input_storage, *compiled.output_storage]:
            if type(container) is self._library.Container:
                container.__class__ = self._unobserved

    def _observed_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_any_observed():
                return call(function, *args, **kwargs)
            touched = self._touched.get(function.maker)
            if touched is None:
                touched = self._touched[function.maker] = self._find_touched(function)
            for container in function.input_storage:
                settle(container.storage)
            for i in touched.written:
                observer = observer_of(function.input_storage[i].storage)
                if observer is not None:
                    observer.unshare()
            try:
                return calling(call, function, *args, **kwargs)
            finally:
                self._report(function, touched)

        return __call__

    def _report(self, function: Any, touched: Touched) -> None:
        for i in touched.updated:
            observer = observer_of(function.input_storage[i].storage)
            if observer is not None:
                observer.updated()
        for i in touched.lent:
            note_read(function.input_storage[i].storage)

    def _find_touched(self, function: Any) -> Touched:
        maker = function.maker
        updated = [i for i, given in enumerate(maker.expanded_inputs) if given.update is not None]
        inputs, outputs = maker.fgraph.inputs, maker.fgraph.outputs
        roots = [
            self._library.alias_root(output)
            for output, given in zip(outputs, maker.outputs)
            if given.borrow  # otherwise the output is a copy
        ]
        lent = [inputs.index(root) for root in roots if root in inputs]
        news = map(self._library.alias_root, outputs[len(maker.outputs) :])
        overwritten = _overwritten(maker.fgraph)
        written = [i for i, given in enumerate(inputs) if given in overwritten]
        written += [*lent, *(inputs.index(root) for root in news if root in inputs)]
        return Touched(tuple(updated), tuple(dict.fromkeys(lent)), tuple(dict.fromkeys(written)))

    def written(self, compiled: Any) -> List[Any]:
        """Return the inputs whose arrays a function overwrites, exposes, or stores in other variables."""
        return [compiled.maker.expanded_inputs[i] for i in self._find_touched(compiled).written]


def _overwritten(graph: Any) -> Set[Any]:
    """Return the variables that the nodes of a compiled graph overwrite, and those whose views they overwrite."""
    found: Set[Any] = set()
    destroying = [node for node in graph.apply_nodes if getattr(node.op, "destroy_map", None)]
    pending = [node.inputs[i] for node in destroying for some in node.op.destroy_map.values() for i in some]
    while pending:
        variable = pending.pop()
        if variable not in found:
            found.add(variable)
            node = variable.owner
            views = {} if node is None else getattr(node.op, "view_map", None) or {}
            pending += [node.inputs[i] for i in views.get(node.outputs.index(variable), ())] if views else []
    return found


def _with_subclasses(cls: Any) -> Iterator[Any]:
    yield cls
    for each in cls.__subclasses__():
        yield from _with_subclasses(each)


def _patch(cls: Any, name: str, patched: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method that the class itself defines; an earlier patch is replaced, not wrapped."""
    method: Optional[Callable[..., Any]] = vars(cls).get(name)
    if method is not None:
        original = getattr(method, ORIGINAL, method)
        replacement: Any = patched(original)
        replacement.__name__, replacement.__doc__ = name, original.__doc__
        setattr(replacement, ORIGINAL, original)
        setattr(cls, name, replacement)


def _observed_get(get_value: Callable[..., Any]) -> Callable[..., Any]:
    def patched(shared: Any, borrow: bool = False, return_internal_type: bool = False) -> Any:
        args = shared, borrow, return_internal_type
        get = partial(get_value, *args) if borrow else partial(copied, get_value, *args)
        observer = observer_of(shared.container.storage)
        if observer is None:
            return get()
        observer.settle()
        return observer.get(get, borrow) if observer.stands_in else get()

    return patched


def _observed_set(set_value: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(set_value)  # (some classes use another name for the value)

    def patched(shared: Any, *args: Any, **kwargs: Any) -> None:
        observer = observer_of(shared.container.storage)
        if observer is None or not observer.stands_in:
            set_value(shared, *args, **kwargs)  # the container reports the write
            return
        _, value, *borrow = parameters.bind(shared, *args, **kwargs).arguments.values()
        observer.put(lambda value: set_value(shared, value, *borrow), value, *(borrow or [False]))

    return patched


def _observe_containers(cls: Any) -> type:
    """Patch a library's container class; return an unpatched subclass."""
    read, write = vars(cls)["__get__"], vars(cls)["__set__"]

    def get(container: Any) -> Any:
        note_read(container.storage)
        return read(container)

    def put(container: Any, value: Any) -> None:
        write(container, value)
        note_written(container.storage)

    cls.value = cls.data = property(get, put)
    plain = property(read, write)
    return type(cls.__name__, (cls,), {"value": plain, "data": plain, "__reduce__": _reduced, "__slots__": ()})


def _reduced(container: Any) -> Tuple[Any, ...]:
    return object.__new__, (type(container).__mro__[1],), vars(container)
