"""What the ranks hold of the program's functions and shared variables, and how it gets there."""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections import UserDict, deque
from functools import partial
from typing import Any, Callable, Deque, Dict, Hashable, Iterable, List, NamedTuple, Optional, Tuple

import cloudpickle
import numpy as np

from .. import engines
from ..host import machine
from ..program.program import PROGRAM
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.session import Session
from .random_streams import RandomStreams

#: Bytes from which on a function's constant is shared by all ranks instead of copied to each.
SHARED_CONSTANT_BYTES = 1 << 16


class Variable(NamedTuple):
    """A shared variable on its way to the ranks."""

    number: int
    engine: str
    blueprint: Any
    handle: Any  # of its value, where that is a dense array
    value: Any  # else the value itself, pickled
    storage_of: Optional[int]  # the number of the variable whose storage it shares
    begins: Optional[int] = None  # the rank whose state the value is, where others begin long jumps further on


class Distribute(Command):
    """Give the ranks functions and the shared variables that they use.

    What is pickled stays so until a rank has all that it refers to: the variables first, then the functions.
    """

    title = "distribute"

    def __init__(self, variables: bytes, functions: List[Tuple[str, List[int], bytes]]) -> None:
        self.variables, self.functions = variables, functions
        self.path, self.directory = list(sys.path), machine.working_directory()

    def run(self, context: RankContext) -> None:
        if context.rank == context.root:
            return
        if sys.path != self.path:
            sys.path[:] = self.path
        if self.directory and machine.working_directory() != self.directory:
            os.chdir(self.directory)
        made: Dict[int, Any] = {}
        for variable in pickle.loads(self.variables):
            engine = engines.get(variable.engine)
            value = variable.value
            if variable.handle is not None:
                value = context.transport.bind(("shared", variable.number), context.pools.attach(variable.handle))
            storage_of = None if variable.storage_of is None else {**context.shareds, **made}[variable.storage_of][1]
            replica = engine.build(variable.blueprint, value, storage_of)
            if variable.begins is not None:
                engine.put(replica, jumped_from(variable.begins, engine, replica, value, context.rank, context.size))
            made[variable.number] = (engine, replica)
        replicas = {number: shared for number, (_, shared) in {**context.shareds, **made}.items()}
        loaded: Dict[int, Any] = {}
        for name, numbers, data in self.functions:
            engine = engines.get(name)
            for number, compiled in zip(numbers, engine.loads(data, replicas, context.pools.attach)):
                loaded[number] = (engine, compiled)
        context.shareds.update(made)
        context.functions.update(loaded)


def jumped_from(begins: int, engine: Any, shared: Any, state: Any, rank: int, size: int) -> Any:
    """Return a rank's state of a random stream, of which another rank begins at ``state``."""
    return engine.jumped(shared, state, (rank - begins) % size)


class Entry:
    """A shared variable that the ranks hold; the program's own is known weakly.

    Parameters
    ----------
    number : int
        Under which the ranks know it.
    shared, engine
        The variable.
    base : Entry, optional
        The first variable with the same storage, if this is another; it lives as long as this one.
    dropped : callable
        Called when the program has dropped the variable.
    """

    def __init__(
        self, number: int, shared: Any, engine: Any, base: Optional[Entry], dropped: Callable[[Tuple[str, int]], None]
    ) -> None:
        self.number, self.engine, self.base = number, engine, base
        self.key, self.identity = id(shared), engine.identity(shared)
        self._shared = weakref.ref(shared, lambda _: dropped(("shared", number)))
        self._keep = base and base.shared
        self.before: Any = None  # the master's state of a random stream, while it is being sent

    @property
    def shared(self) -> Any:
        """The variable, or None where the program has dropped it."""
        return self._shared()


class MasterFunctions(UserDict):  # (all of whose methods go through __getitem__)
    """The master's table of functions: the program's own, which it does not keep alive."""

    def __getitem__(self, number: int) -> Tuple[Any, Any]:
        function = self.data[number]()
        return (None, None) if function is None else (function.engine, function.on_ranks)


class MasterShareds(UserDict):
    """The master's table of shared variables: the program's own, which it does not keep alive."""

    def __getitem__(self, number: int) -> Tuple[Any, Any]:
        entry = self.data[number]
        return entry.engine, entry.shared


class Catalogue:
    """Everything that the ranks of one session hold, by number.

    Functions and shared variables are known by identity and held weakly: when the program drops one, the ranks drop it
    with the next command. A variable that the program still has keeps its values on all ranks, whether or not a
    function uses it at the moment.

    Parameters
    ----------
    session : Session
    living : callable
        Returns the functions that the program has, those included that the ranks do not hold.
    """

    def __init__(self, session: Session, living: Callable[[], Iterable[Any]]) -> None:
        self.session, self._living = session, living
        self._next = 0
        self._functions: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self._entries: Dict[int, Entry] = {}  # by id of the variable
        self._storages: Dict[Hashable, Entry] = {}  # the first variable with that storage
        self._numbers: Dict[int, Entry] = {}
        # Filled by finalizers, which run at any time and so touch nothing else: until it is looked at, an entry of a
        # dead variable may stand in the tables, and its id may be another object's.
        self._dropped: Deque[Tuple[str, int]] = deque()
        self._stray: List[Tuple[str, int]] = []  # what the ranks may drop
        #: By function: its large constants, and their copies in shared memory.
        self._constants: Dict[int, List[Tuple[np.ndarray, np.ndarray]]] = {}
        #: Sets of variables that collectives have checked before; see `collectives.variables`.
        self.checked: Dict[Any, Any] = {}
        self._streams = RandomStreams(session.seed, session.random == "split", session.root)
        session.context.functions, session.context.shareds = MasterFunctions(), MasterShareds()

    def __contains__(self, function: Any) -> bool:
        return function in self._functions

    def number(self, function: Any) -> int:
        """Return the number of a function that the ranks hold."""
        return self._functions[function]

    def find(self, engine: Any, shared: Any) -> Optional[int]:
        """Return the number of a shared variable that the ranks hold (of the first one with its storage), or None."""
        entry = self._base_of(engine, shared)
        return None if entry is None else entry.number

    def variable(self, number: int) -> Any:
        """Return the shared variable that the ranks know under a number."""
        return self._numbers[number].shared

    def _entry_of(self, shared: Any) -> Optional[Entry]:
        entry = self._entries.get(id(shared))
        return entry if entry is not None and entry.shared is shared else None

    def _base_of(self, engine: Any, shared: Any) -> Optional[Entry]:
        entry = self._storages.get(engine.identity(shared))
        return entry if entry is not None and entry.shared is not None else None

    def ensure(self, functions: Iterable[Any]) -> None:
        """Give the ranks the functions that they do not hold yet.

        Those that can travel do, even where others cannot.

        Raises
        ------
        TypeError
            Where something cannot be pickled; names the function and the object.
        """
        new = [function for function in functions if function not in self._functions]
        if not new:
            return
        try:
            self._send(new)
            return
        except TypeError:
            if len(new) == 1:
                raise
        errors = []
        for function in new:
            try:
                self._send([function])
            except TypeError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _send(self, new: List[Any]) -> None:
        """Give the ranks new functions, all or none."""
        self.session.check()  # before anything is moved: a command in progress may be using it
        self._collect()
        added: List[Entry] = []
        numbers: List[int] = []
        try:
            travelling = [
                self._enter(function.engine, shared, added)
                for function in new
                for shared in function.get_shared()
                if self._entry_of(shared) is None
            ]
            variables = _dumps(travelling)
            by_engine: Dict[str, List[Any]] = {}
            for function in new:
                by_engine.setdefault(function.engine.name, []).append(function)
            sorted_new = [function for some in by_engine.values() for function in some]
            payloads = []
            for name, some in by_engine.items():
                used = {id(shared): shared for function in some for shared in function.get_shared()}
                own = [self._take_number() for _ in some]
                numbers += own
                constants: Dict[int, Any] = {}
                for function, number in zip(some, own):
                    constants.update(self._share_constants(function, number))
                data = some[0].engine.dumps(
                    [function.on_ranks for function in some],
                    {
                        engine.identity(shared): self.find(engine, shared)
                        for engine in [some[0].engine]
                        for shared in used.values()
                    },
                    {key: self._entries[key].number for key in used},
                    constants,
                )
                payloads.append((name, own, data))
            self.session.run(Distribute(variables, payloads))
        except BaseException:
            for entry in added:
                if entry.before is not None:
                    entry.engine.put(entry.shared, entry.before)
                    self._streams.undo(entry.shared)
                self._leave(entry)
            self._stray += [("shared", entry.number) for entry in added] + [("function", n) for n in numbers]
            for number in numbers:
                self._constants.pop(number, None)
            raise
        self.session.affinity.look()
        context = self.session.context
        for entry in added:
            entry.before = None
            context.shareds[entry.number] = entry
        for function, number in zip(sorted_new, numbers):
            self._functions[function] = number
            # It calls as long as it lives itself: a function outlives many sessions, and keeps nothing of them.
            context.functions[number] = weakref.ref(function, partial(_note, self._dropped, number))

    def _share_constants(self, function: Any, number: int) -> Dict[int, Any]:
        """Copy a function's large constants to where all ranks can read them; return the places by ``id``."""
        pool = self.session.context.pool
        if self.session.size == 1:
            return {}
        shared = {id(constant): copy for pairs in self._constants.values() for constant, copy in pairs}
        pairs = self._constants[number] = []
        for constant in function.engine.constants(function.on_ranks):
            if (
                constant.nbytes >= SHARED_CONSTANT_BYTES
                and constant.flags.c_contiguous
                and not constant.dtype.hasobject
            ):
                copy = shared.get(id(constant))
                if copy is None:
                    copy = pool.allocate(constant.shape, constant.dtype)
                    np.copyto(copy, constant)
                pairs.append((constant, copy))
        return {id(constant): pool.handle(copy) for constant, copy in pairs}

    def sweep(self) -> List[Tuple[str, int]]:
        """Return what the ranks may drop, because the program has; it is forgotten here."""
        self._collect()
        stray, self._stray = self._stray, []
        return stray

    def _collect(self) -> None:
        while self._dropped:
            kind, number = self._dropped.popleft()
            self._stray.append((kind, number))
            if kind == "function":
                self._constants.pop(number, None)
            if kind == "shared" and number in self._numbers:
                self._leave(self._numbers[number])

    def _take_number(self) -> int:
        self._next += 1
        return self._next

    def _enter(self, engine: Any, shared: Any, added: List[Entry]) -> Variable:
        """Make an entry, and return what travels; brings the master's value to where all ranks can read it."""
        number, base = self._take_number(), self._base_of(engine, shared)
        entry = self._entries[id(shared)] = self._numbers[number] = Entry(
            number, shared, engine, base, self._dropped.append
        )
        added.append(entry)
        handle = value = begins = None
        if base is None:
            context = self.session.context
            self._storages[engine.identity(shared)] = entry
            value = engine.get(shared)
            if engine.is_random(shared):
                entry.before = value
                value, begins = self._streams.begin(engine, shared, self._living())
                engine.put(
                    shared,
                    value if begins is None else jumped_from(begins, engine, shared, value, context.rank, context.size),
                )
            elif engine.shared_type(shared) is not None and value is not None:
                placed = context.transport.bind(("shared", number), value)
                engine.put(shared, placed)
                handle, value = context.pool.handle(context.transport.to_host(("shared", number), placed)), None
        return Variable(number, engine.name, engine.blueprint(shared), handle, value, base and base.number, begins)

    def _leave(self, entry: Entry) -> None:
        del self._numbers[entry.number]
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        if self._storages.get(entry.identity) is entry:
            del self._storages[entry.identity]


def _note(dropped: Deque[Tuple[str, int]], number: int, reference: Any) -> None:
    """Note that the program has dropped a function."""
    dropped.append(("function", number))


def _dumps(variables: List[Variable]) -> bytes:
    """Pickle variables, or name the one that cannot be."""
    try:
        return cloudpickle.dumps(variables)
    except Exception:
        for variable in variables:
            try:
                cloudpickle.dumps(variable)
            except Exception as error:
                raise TypeError(
                    f"shared variable {variable.blueprint} cannot be sent to the other ranks: its value does "
                    f"not pickle ({type(error).__name__}: "
                    f"{error})"
                ) from error
        raise


def catalogue_of(session: Session) -> Catalogue:
    """Return the session's catalogue; a new session starts with an empty one."""
    if session.catalogue is None:
        session.catalogue = Catalogue(session, lambda: PROGRAM.functions)
    return session.catalogue


def distribute() -> None:
    """Send every function built so far, and the shared variables that they use, to all ranks.

    Optional: it happens by itself at the first call. May be called again after more functions have been built;
    what the ranks hold already is not sent again, and keeps its values.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError
        Where something cannot travel; names the function and the object. All other functions have been sent.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.dvector("x")
    >>> f = synk.function([x], x.mean())
    >>> synk.distribute()
    >>> f([1., 2., 6.])
    array(3.)
    """
    session = PROGRAM.current()
    with session.lock:
        catalogue_of(session).ensure(PROGRAM.functions)
