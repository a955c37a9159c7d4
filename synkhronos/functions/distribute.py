"""What the ranks hold of the program's functions and shared variables, and how it gets there."""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections import deque
from typing import Any, Deque, Dict, Hashable, Iterable, List, NamedTuple, Optional, Tuple

import cloudpickle
import numpy as np

from .. import engines
from ..command import Command
from ..context import RankContext
from ..session import Session


class Variable(NamedTuple):
    """A shared variable on its way to the ranks."""

    number: int
    engine: str
    blueprint: Any
    handle: Any  # of its value, where that is a dense array
    value: Any  # else the value itself, pickled
    storage_of: Optional[int]  # the number of the variable whose storage it shares


class Distribute(Command):
    """Give the ranks functions and the shared variables that they use.

    What is pickled stays so until a rank has all that it refers to: the variables first, then the functions.
    """

    title = "distribute"

    def __init__(self, variables: bytes, functions: List[Tuple[str, List[int], bytes]]) -> None:
        self.variables, self.functions = variables, functions
        self.path, self.directory = list(sys.path), os.getcwd()

    def run(self, context: RankContext) -> None:
        if context.rank == context.root:
            return
        if sys.path != self.path:
            sys.path[:] = self.path
        if os.getcwd() != self.directory:
            os.chdir(self.directory)
        made: Dict[int, Any] = {}
        for variable in pickle.loads(self.variables):
            engine = engines.get(variable.engine)
            value = variable.value
            if variable.handle is not None:
                value = context.transport.place(("shared", variable.number), context.pools.attach(variable.handle))
            storage_of = None if variable.storage_of is None else {**context.shareds, **made}[variable.storage_of][1]
            made[variable.number] = (engine, engine.build(variable.blueprint, value, storage_of))
        replicas = {number: shared for number, (_, shared) in {**context.shareds, **made}.items()}
        loaded: Dict[int, Any] = {}
        for name, numbers, data in self.functions:
            engine = engines.get(name)
            for number, compiled in zip(numbers, engine.loads(data, replicas)):
                loaded[number] = (engine, compiled)
        context.shareds.update(made)
        context.functions.update(loaded)


class Entry:
    """A shared variable that the ranks hold."""

    def __init__(self, number: int, shared: Any, engine: Any, base: Optional[Entry]) -> None:
        self.number, self.shared, self.engine = number, shared, engine
        self.base = base  # the first variable with the same storage, if this is another
        self.uses = 0  # by functions


class Catalogue:
    """Everything that the ranks of one session hold, by number.

    Functions are known by identity and held weakly: when the program drops one, the ranks drop it with the next
    command, and the shared variables that no other function uses with it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._next = 0
        self._functions: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self._uses: Dict[int, List[Entry]] = {}  # by number of the function
        self._entries: Dict[int, Entry] = {}  # by id of the variable, which the entry keeps alive
        self._storages: Dict[Hashable, Entry] = {}  # the first variable with that storage
        self._dropped: Deque[int] = deque()  # filled by finalizers, which run at any time and so touch nothing else
        self._forgotten: List[Tuple[str, int]] = []  # what the ranks are to drop

    def __contains__(self, function: Any) -> bool:
        return function in self._functions

    def number(self, function: Any) -> int:
        """Return the number of a function that the ranks hold."""
        return self._functions[function]

    def find(self, engine: Any, shared: Any) -> Optional[int]:
        """Return the number of a shared variable that the ranks hold (of the first one with its storage), or None."""
        entry = self._storages.get(engine.identity(shared))
        return None if entry is None else entry.number

    def ensure(self, functions: Iterable[Any]) -> None:
        """Give the ranks the functions that they do not hold yet.

        Raises
        ------
        TypeError
            Where something cannot be pickled; names the function and the object. No rank has moved then.
        """
        new = [function for function in functions if function not in self._functions]
        if not new:
            return
        known = {self._entries[id(shared)] for function in new for shared in function.get_shared()
                 if id(shared) in self._entries}
        known |= {entry.base for entry in known if entry.base is not None}
        for entry in known:  # the last function that used it may have been dropped just now
            entry.uses += 1
        try:
            self._send(new)
        finally:
            for entry in known:
                entry.uses -= 1

    def _send(self, new: List[Any]) -> None:
        """Give the ranks functions, and the shared variables of them that they do not hold."""
        self._sweep()  # before the tables are copied
        entries = dict(self._entries)
        storages = dict(self._storages)
        travelling: List[Variable] = []
        for function in new:
            for shared in function.get_shared():
                if id(shared) not in entries:
                    travelling.append(self._describe(function.engine, shared, entries, storages))
        numbers = {id(function): self._take_number() for function in new}
        by_engine: Dict[str, List[Any]] = {}
        for function in new:
            by_engine.setdefault(function.engine.name, []).append(function)
        payloads = [(name, [numbers[id(function)] for function in some], some[0].engine.dumps(
            [function.compiled for function in some],
            {identity: entry.number for identity, entry in storages.items()},
            {key: entry.number for key, entry in entries.items()})) for name, some in by_engine.items()]
        self.session.run(Distribute(_dumps(travelling), payloads))
        self._entries, self._storages = entries, storages
        self.session.placement.look()
        for variable in travelling:
            entry = next(entry for entry in entries.values() if entry.number == variable.number)
            self.session.context.shareds[entry.number] = (entry.engine, entry.shared)
        for function in new:
            self._record(function, numbers[id(function)])

    def hold(self) -> List[Any]:
        """Return the functions that the ranks hold: as long as the caller keeps them, the ranks drop nothing more."""
        held = list(self._functions)
        self._sweep()
        return held

    def sweep(self) -> List[Tuple[str, int]]:
        """Return what the ranks may drop, because the program has; it is forgotten here."""
        self._sweep()
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def _sweep(self) -> None:
        while self._dropped:
            number = self._dropped.popleft()
            self._forgotten.append(("function", number))
            for entry in self._uses.pop(number):
                entry.uses -= 1
                if not entry.uses:
                    del self._entries[id(entry.shared)]
                    if entry.base is None:
                        del self._storages[entry.engine.identity(entry.shared)]
                    self._forgotten.append(("shared", entry.number))

    def _take_number(self) -> int:
        self._next += 1
        return self._next

    def _describe(self, engine: Any, shared: Any, entries: Dict[int, Entry],
                  storages: Dict[Hashable, Entry]) -> Variable:
        """Make an entry, and return what travels; brings the master's value to where all ranks can read it."""
        number, base = self._take_number(), storages.get(engine.identity(shared))
        entry = entries[id(shared)] = Entry(number, shared, engine, base)
        handle = value = None
        if base is None:
            storages[engine.identity(shared)] = entry
            value = engine.get(shared)
            if engine.shared_type(shared) is not None and isinstance(value, np.ndarray):
                context = self.session.context
                placed = context.transport.place(("shared", number), value)
                engine.put(shared, placed)
                handle, value = context.pool.handle(placed), None
        return Variable(number, engine.name, engine.blueprint(shared), handle, value, base and base.number)

    def _record(self, function: Any, number: int) -> None:
        self._functions[function] = number
        function.last_rows = None  # no call in this session yet
        self.session.context.functions[number] = (function.engine, function.compiled)
        used = {self._entries[id(shared)] for shared in function.get_shared()}
        used |= {entry.base for entry in used if entry.base is not None}
        for entry in used:
            entry.uses += 1
        self._uses[number] = list(used)
        weakref.finalize(function, self._dropped.append, number).atexit = False


def _dumps(variables: List[Variable]) -> bytes:
    """Pickle variables, or name the one that cannot be."""
    try:
        return cloudpickle.dumps(variables)
    except Exception:
        for variable in variables:
            try:
                cloudpickle.dumps(variable)
            except Exception as error:
                raise TypeError("shared variable %s cannot be sent to the other ranks: its value does not pickle (%s: "
                                "%s)" % (variable.blueprint, type(error).__name__, error)) from error
        raise


def catalogue_of(session: Session) -> Catalogue:
    """Return the session's catalogue; a new session starts with an empty one."""
    if session.catalogue is None:
        session.catalogue = Catalogue(session)
    return session.catalogue
