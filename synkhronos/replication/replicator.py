"""Master side of replication: record of the functions and variables on the ranks, and transfer of missing objects."""

from __future__ import annotations

import logging
import pickle
import time
import weakref
from functools import partial
from typing import Any, Dict, Hashable, Iterable, List, Mapping, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from ..engines.observer import observe
from ..errors import ArgumentTypeError
from ..program.program import PROGRAM
from ..runtime.borrowed import Borrowed
from ..runtime.registry import FunctionEntry, Replicas, SharedEntry
from ..runtime.session import Session
from .command import Distribute, FunctionItem, ImportPaths, Rejoin, SharedItem, jumped_from
from .random_streams import RandomStreams

logger = logging.getLogger("synkhronos")

#: Minimum size in bytes for a function's constant to be shared by all ranks in one copy.
SHARED_CONSTANT_BYTES = 1 << 16

#: Maximum number of functions per command, so that the log can report progress between commands.
FUNCTIONS_AT_A_TIME = 16


class Sent:
    """A shared variable, referenced weakly, that the ranks have or are about to receive.

    ``key`` is the variable's ``id``, which another object may reuse later. ``identity`` identifies its storage.
    """

    def __init__(self, number: int, engine: Any, shared: Any, dropped: Any) -> None:
        self.number, self.engine, self.key = number, engine, id(shared)
        self.identity: Hashable = engine.identity(shared)
        self.reference = weakref.ref(shared, lambda _: dropped(("shared", number)))

    @property
    def variable(self) -> Any:
        """The variable, or None if the program has dropped it."""
        return self.reference()


class Replicator(Replicas):
    """The master's `Replicas`: registers the program's own functions and shared variables, by weak reference.

    Objects are compared by identity. If the program drops an object, the ranks drop it with the next command. While the
    program keeps a variable, its values stay on all ranks, even if no function uses it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._next = 0
        self._functions: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._sent: Dict[int, Sent] = {}  # by number
        self._by_variable: Dict[int, Sent] = {}  # by the variable's id, which is valid while the variable is alive
        self._by_storage: Dict[Hashable, Sent] = {}  # the first variable with each storage
        self._offered: Dict[int, Any] = {}  # functions by number, while they are being sent
        self._living: Dict[int, Any] = {}  # weak references by number, to notice dropped functions
        #: Large constants of each function (by number), with their copies in shared memory.
        self._constants: Dict[int, List[Tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]] = {}
        self._place: Optional[ImportPaths] = None  # the ranks' search path and directory, set by the last distribution
        self._streams = RandomStreams(session.seed, session.random == "split", session.root)

    def __contains__(self, function: Any) -> bool:
        return function in self._functions

    def number(self, function: Any) -> int:
        """Return the registry number under which the ranks store a function."""
        return self._functions[function]

    def find(self, engine: Any, shared: Any) -> Optional[int]:
        """Return the registry number of the ranks' variable with the same storage; None if there is none."""
        base = self._base_of(engine, shared)
        return None if base is None else base.number

    def variable(self, number: int) -> Any:
        return self._sent[number].variable

    def _sent_of(self, shared: Any) -> Optional[Sent]:
        sent = self._by_variable.get(id(shared))
        return sent if sent is not None and sent.variable is shared else None

    def _base_of(self, engine: Any, shared: Any) -> Optional[Sent]:
        sent = self._by_storage.get(engine.identity(shared))
        return sent if sent is not None and sent.variable is not None else None

    def ensure(self, functions: Iterable[Any]) -> None:
        """Send missing functions to the ranks; raise `TypeError` at the end if some cannot be pickled."""
        new = [function for function in functions if function not in self._functions]
        if not new:
            return
        self.session.check()  # before any value moves, because a command in progress may be using the value
        for function in new:
            self._streams.check(function, PROGRAM.functions, self.find)
        began = time.monotonic()
        errors = []
        for begin in range(0, len(new), FUNCTIONS_AT_A_TIME):
            some = new[begin : begin + FUNCTIONS_AT_A_TIME]
            errors += self._ensure_some(some)
            if time.monotonic() - began > 1.0:
                took = time.monotonic() - began
                logger.info("sent %d of %d functions to the other ranks in %.1f s", begin + len(some), len(new), took)
        if errors:
            raise errors[0]

    def ensure_shared(self, engine: Any, shared: Any) -> None:
        """Send a shared variable that no function uses yet."""
        self.session.check()
        self._send([], [(engine, shared)])

    def _ensure_some(self, new: List[Any]) -> List[TypeError]:
        """Send functions together, or one by one if they cannot be pickled together; return the errors."""
        try:
            self._send(new)
            return []
        except TypeError as error:
            if len(new) == 1:
                return [error]
        return [error for function in new for error in self._ensure_some([function])]

    def _send(self, new: List[Any], alone: Sequence[Tuple[Any, Any]] = ()) -> None:
        """Send new functions and (engine, variable) pairs to the ranks: all or none."""
        added: List[Sent] = []
        numbers: List[int] = []
        used = [(function.engine, shared) for function in new for shared in function.get_shared()]
        for engine in {function.engine for function in new}.union(engine for engine, _ in alone):
            self.session.launcher.engine(engine)  # raises here, before anything is registered
        try:
            shareds = [
                self._item(engine, shared, added) for engine, shared in [*used, *alone] if self._sent_of(shared) is None
            ]
            for function in new:
                numbers.append(self._take_number())
                self._offered[numbers[-1]] = function
            items = self._functions_items(zip(new, numbers))
            written = [(one.engine, shared) for one in new for shared in one.engine.written(one.on_ranks)]
            apart = dict.fromkeys(self.find(*each) for each in written)
            command = Distribute(shareds, items, [number for number in apart if number is not None])
            self._place = command.place
            self.session.run(command)
        except BaseException:
            for sent in added:
                self._streams.undo(sent.variable)
                self._leave(sent)
            self.session.dropped += [("shared", sent.number) for sent in added]
            self.session.dropped += [("function", number) for number in numbers]
            raise
        finally:
            offered, self._offered = self._offered, {}
        self.session.affinity.look()
        for number in numbers:
            self._functions[offered[number]] = number

    def _take_number(self) -> int:
        self._next += 1
        return self._next

    def _item(self, engine: Any, shared: Any, added: List[Sent]) -> SharedItem:
        """Register a variable as sent, and return its `SharedItem`."""
        base, on_ranks = self._base_of(engine, shared), self.session.launcher.engine(engine)
        sent = Sent(self._take_number(), engine, shared, self.session.dropped.append)
        self._sent[sent.number] = self._by_variable[sent.key] = sent
        added.append(sent)
        blueprint = _pickled(engine, shared, engine.blueprint(shared))
        if base is not None:
            return SharedItem(sent.number, on_ranks, blueprint, None, storage_of=base.number)
        self._by_storage[sent.identity] = sent
        value = engine.get(shared)
        if not engine.is_random(shared) and engine.shared_type(shared) is not None and value is not None:
            return SharedItem(sent.number, on_ranks, blueprint, None, engine.is_on_device(value))
        pickled, begins = self.pickled(engine, shared)
        return SharedItem(sent.number, on_ranks, blueprint, pickled, begins=begins)

    def pickled(self, engine: Any, shared: Any) -> Tuple[bytes, Optional[int]]:
        """Return a variable's pickled value and, for a random stream, the rank that starts at it (None: all ranks)."""
        value, begins = engine.get(shared), None
        if engine.is_random(shared):
            value, begins = self._streams.begin(engine, shared, PROGRAM.functions)
            if begins is not None and self.session.size > 1:
                engine.jumped(shared, value, 1)  # raises here, before sending, if the engine cannot jump
        return _pickled(engine, shared, value), begins

    def _functions_item(self, functions: List[Any], own: List[int]) -> FunctionItem:
        """Return the `FunctionItem` of functions of one engine; ``own`` lists their registry numbers."""
        engine = self.session.launcher.engine(functions[0].engine)
        used = {id(shared): shared for function in functions for shared in function.get_shared()}
        constants: Dict[int, Any] = {}
        for function, number in zip(functions, own):
            constants.update(self._share_constants(engine, function, number))
        for function in functions:  # before ranks load the functions, so that they reuse the compiled modules
            engine.warm_up(function.on_ranks)
        pickled = engine.dumps(
            [function.on_ranks for function in functions],
            {engine.identity(shared): self.find(engine, shared) for shared in used.values()},
            {key: self._by_variable[key].number for key in used},
            constants,
        )
        return FunctionItem(engine, own, pickled)

    def _functions_items(self, numbered: Iterable[Tuple[Any, int]]) -> List[FunctionItem]:
        """Return one item per engine for the given pairs of a function and its number."""
        by_engine: Dict[str, Tuple[List[Any], List[int]]] = {}
        for function, number in numbered:
            functions, numbers = by_engine.setdefault(function.engine.name, ([], []))
            functions.append(function)
            numbers.append(number)
        return [self._functions_item(*some) for some in by_engine.values()]

    def rejoin(self, held: Mapping[int, Mapping[int, Any]], kept: Mapping[Any, Any]) -> Rejoin:
        there = set(self.session.context.registry.functions)
        shareds = []
        for number in self.session.context.registry.shareds:  # a base precedes the variables that share its storage
            sent = self._sent.get(number)
            variable = None if sent is None else sent.variable  # may be garbage-collected at any time
            if sent is not None and variable is not None:
                blueprint = _pickled(sent.engine, variable, sent.engine.blueprint(variable))
                base = self._base_of(sent.engine, variable)
                storage_of = None if base is None or base is sent else base.number
                on_device = self.session.context.registry.shareds[number].on_device
                shareds.append(SharedItem(number, sent.engine, blueprint, None, on_device, storage_of))
        functions = self._functions_items(pair for pair in self._functions.items() if pair[1] in there)
        assert self._place is not None  # set by the first distribution
        common = self.session.context.transport.common.saved({item.number for item in shareds})
        return Rejoin(shareds, functions, held, kept, common, self._place)

    def _share_constants(self, engine: Any, function: Any, number: int) -> Dict[int, Any]:
        """Copy a function's large constants to shared memory; return their handles by ``id``."""
        pool = self.session.pool
        if self.session.size == 1:
            return {}
        shared = {id(constant): copy for pairs in self._constants.values() for constant, copy in pairs}
        pairs = self._constants[number] = []
        for constant in engine.constants(function.on_ranks):
            large = constant.nbytes >= SHARED_CONSTANT_BYTES
            if large and constant.flags.c_contiguous and not constant.dtype.hasobject:
                copy = shared.get(id(constant))
                if copy is None:
                    copy = pool.allocate(constant.shape, constant.dtype)
                    np.copyto(copy, constant)
                pairs.append((constant, copy))
        return {id(constant): pool.handle(copy) for constant, copy in pairs}

    def _leave(self, sent: Sent) -> None:
        del self._sent[sent.number]
        if self._by_variable.get(sent.key) is sent:
            del self._by_variable[sent.key]
        if self._by_storage.get(sent.identity) is sent:
            del self._by_storage[sent.identity]

    # -- `Replicas`, for the command on the master ----------------------------------------------------------------

    def shared(
        self, item: SharedItem, held: Mapping[int, SharedEntry], rank: int, size: int
    ) -> Tuple[SharedEntry, Any]:
        sent, engine = self._sent[item.number], item.engine
        variable = sent.variable
        base = None if item.storage_of is None else held[item.storage_of].reference()
        entry = SharedEntry(item.number, engine, sent.reference, engine.storage(variable), item.on_device, base)
        if base is None:
            # e.g. after `shared(value, borrow=True)`; common memory needs no copy because `entry.known` is a reference
            n_others = int(self.session.context.transport.common.takes(entry.key, entry.cell[0]))
            if Borrowed(entry.cell[0]).is_held(entry.cell, self.session.pool, n_others):
                entry.lent()
            observe(entry.cell, entry)
        value = None if item.value is None else engine.get(variable)
        if item.value is not None and engine.is_random(variable):
            value = pickle.loads(item.value)  # a seeded stream's state differs from the state in the variable
        if item.begins is not None:
            value = jumped_from(item.begins, engine, variable, value, rank, size)
        return entry, value

    def value(self, number: int) -> Any:
        return self._sent[number].engine.get(self._sent[number].variable)

    def functions(
        self, engine: Any, numbers: Sequence[int], pickled: bytes, held: Mapping[int, SharedEntry], pools: Any
    ) -> List[FunctionEntry]:
        for number in numbers:
            # A function may outlive this session, so the callback must not refer to the session.
            noted = partial(_note, self.session.dropped.append, number)
            self._living[number] = weakref.ref(self._offered[number], noted)
        return [FunctionEntry(number, engine, engine.reference(self._offered[number])) for number in numbers]

    def forget(self, thing: Tuple[str, int]) -> None:
        kind, number = thing
        if kind == "function":
            self._constants.pop(number, None)
            self._living.pop(number, None)
        elif number in self._sent:
            self._leave(self._sent[number])


def _note(dropped: Any, number: int, reference: Any) -> None:
    dropped(("function", number))


def _pickled(engine: Any, shared: Any, thing: Any) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(thing)
    except Exception as error:
        raise ArgumentTypeError(
            f"shared variable {engine.label(shared)}",
            "a value that can be pickled and sent to the other ranks",
            f"{type(thing).__name__} ({type(error).__name__}: {error})",
        ) from error
    return pickled


def replicator_of(session: Session) -> Replicator:
    replicator = session.context.registry.replicas
    if not isinstance(replicator, Replicator):
        replicator = session.context.registry.replicas = Replicator(session)
    return replicator
