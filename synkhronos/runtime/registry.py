"""Registry: the functions and shared variables of one rank, by number; a number denotes the same object on all ranks.

The master's entries have weak references to the program's objects; the entries of other ranks own their replicas.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..engines.observer import ValueObserver
from ..errors import StateError
from .borrowed import Borrowed

Reference = Callable[[], Any]  #: Returns the object, or None if the program has dropped it.


class Origin(enum.Enum):
    """The source of a variable's current value.

    `SharedEntry.origin` is one of the first three members, which state whether the ranks' values are equal.
    """

    COMMON = enum.auto()  #: A commit, the distribution or news: all ranks have the same value.
    OWN = enum.auto()  #: A commit: ranks may have different values.
    PROGRAM = enum.auto()  #: The program, on the master: the other ranks do not have the value.
    FUNCTION = enum.auto()  #: A function: equal values stay equal if it updates the variable identically on all ranks.
    UNDONE = enum.auto()  #: The undo of a change: the previous value is restored.
    MOVED = enum.auto()  #: A move of the same value to other memory.


COMMON, OWN, PROGRAM = Origin.COMMON, Origin.OWN, Origin.PROGRAM  # for hot loops: an enum's attributes are slow
_OF_ALL = (COMMON, OWN, PROGRAM)


class _Running:
    """Placeholder in `SharedEntry.known` while functions run, so that the old value is not kept alive."""

    def __repr__(self) -> str:
        return "<a value that a function is about to change>"


RUNNING: Any = _Running()


class RowsOfRanks:
    """The master's record of a shared variable that has one row per row of the batch: see `calls.state_rows`.

    ``whole`` and ``own`` are the rows of all ranks and of the master after the last call; ``taken[rank]`` is the range
    of a rank's rows. ``is_away`` means that a call is in progress and the variable contains only the master's rows.
    """

    __slots__ = ("axis", "whole", "own", "taken", "is_away")

    def __init__(self, axis: int) -> None:
        self.axis, self.is_away = axis, False
        self.whole: Any = None
        self.own: Any = None
        self.taken: List[Tuple[int, int]] = []

    def are_on_ranks(self, entry: SharedEntry, taken: Sequence[Tuple[int, int]]) -> bool:
        """Return whether every rank still has its rows of the master's variable, in the ranges ``taken``."""
        is_same = entry.cell[0] is self.whole and entry.origin is Origin.COMMON and entry.borrowed is None
        return is_same and self.taken == list(taken)


class SharedEntry(ValueObserver):
    """A shared variable on this rank.

    ``reference`` returns the variable; on the master, it returns None once the program has dropped the variable.
    ``cell``, a list of one element, is its storage.

    Only on the master: ``base``, kept alive, is the first variable with the same storage. ``known`` is the object in
    the storage, if the program cannot have changed it since the last check. If ``known`` is another object or
    None, `has_changed` must check. ``origin`` is the source of the value. ``borrowed`` is set if the program can write
    to the value; ``rows`` is set if the variable has a row per batch row.

    If ``common`` is the object in the storage, all ranks map its memory, which nothing may write to.
    """

    __slots__ = (
        "number",
        "engine",
        "reference",
        "cell",
        "on_device",
        "key",
        "known",
        "origin",
        "borrowed",
        "rows",
        "common",
        "_base",
    )

    def __init__(
        self, number: int, engine: Any, reference: Reference, cell: List[Any], on_device: bool, base: Any = None
    ) -> None:
        self.number, self.engine, self.reference, self.cell = number, engine, reference, cell
        self.on_device, self._base = on_device, base
        self.key = ("shared", number)  # key of the value in transports
        self.known, self.origin = cell[0], Origin.COMMON
        self.borrowed: Optional[Borrowed] = None
        self.rows: Optional[RowsOfRanks] = None
        self.common: Any = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.engine, self.reference()))

    def label(self, place: str = "unnamed") -> str:
        """Return the name of the variable in messages: its own name, or ``place`` and its type."""
        variable = self.reference()
        return place if variable is None else str(self.engine.label(variable, place))

    # -- the value: changes by the library -----------------------------------------------------------------------

    def set(self, value: Any, origin: Origin) -> None:
        """Set the variable's value, and record its origin.

        A borrowed object stays in place if ``value`` is the library's copy of it in other memory.
        """
        cell, before = self.cell, self.borrowed
        borrowed = before
        if borrowed is not None and borrowed.value is not cell[0] and borrowed.value is not value:
            borrowed = None  # replaced by an engine
        if origin is Origin.MOVED and borrowed is not None:
            borrowed.elsewhere = value
            return
        if origin is Origin.MOVED:
            is_known, self.borrowed = self.known is cell[0], None
            cell[0] = value
            self.known = value if is_known else None
            return
        if borrowed is not None and value is borrowed.elsewhere:
            origin = origin if origin in _OF_ALL else self.origin
            value = borrowed.value
        is_marked = self.known is None and (before is None or before.is_forgotten)
        is_news = origin is Origin.PROGRAM or is_marked and origin not in _OF_ALL
        if borrowed is not None and value is not borrowed.value:
            borrowed = None
        cell[0], self.borrowed = value, borrowed
        self.known = None if is_news or borrowed is not None else value
        if origin in _OF_ALL:
            self.origin = origin
            if borrowed is not None and origin is not Origin.PROGRAM:
                borrowed.remember()  # e.g. after a broadcast of the program's value, which all ranks now have

    def ran(self, updates: bool) -> None:
        """Update the record of a borrowed value after a call; ``updates`` means that the function updates the value."""
        borrowed, value = self.borrowed, self.cell[0]
        assert borrowed is not None
        if not updates:
            self.cell[0] = borrowed.value  # an engine may have stored a copy with a layout that its functions prefer
        elif value is not borrowed.value:
            self.borrowed, self.known = None, None if borrowed.is_forgotten else value
        elif not borrowed.is_forgotten:
            borrowed.remember()

    # -- the value: changes by the program -----------------------------------------------------------------------

    @property
    def stands_in(self) -> bool:  # type: ignore[override]
        """Whether the program cannot access the value, because its rows are on the ranks during a call."""
        return self.rows is not None and self.rows.is_away

    def get(self, get: Callable[[], Any], borrow: bool) -> Any:
        self._check_here()
        return get()

    def put(self, put: Callable[[Any], None], value: Any, borrow: bool) -> None:
        self._check_here()
        put(value)

    def _check_here(self) -> None:
        if self.stands_in:
            raise StateError(f"{self.label()}: its rows are on the ranks until the call ends: access it after the call")

    def settle(self) -> None:
        value = self.engine.for_program(self.cell[0])
        if value is not self.cell[0]:
            self.set(value, Origin.MOVED)

    def unshare(self) -> None:
        if self.common is not None and self.cell[0] is self.common:
            known = self.known
            self.set(self.common.copy(), Origin.MOVED)
            self.known = known if known is RUNNING else self.known
        self.common = None

    def lent(self) -> None:
        self.unshare()
        value = self.cell[0]
        if self.on_device or self.borrowed is not None and self.borrowed.value is value:
            return
        is_news = self.known is not value and self.known is not RUNNING
        self.borrowed = Borrowed(value)
        if not is_news:
            self.borrowed.remember()
        self.known = None

    def written(self) -> None:
        self.known, self.origin = None, Origin.PROGRAM
        self.borrowed = None if self.on_device else Borrowed(self.cell[0])

    def updated(self) -> None:
        if self.origin is not Origin.OWN:
            self.origin = Origin.PROGRAM
        if self.borrowed is not None:
            self.borrowed.forget()
            if self.borrowed.value is not self.cell[0]:
                self.borrowed = None
        self.known = None

    def may_have_changed(self) -> bool:
        """Return whether the program may have changed the value, other than by writing into the storage itself."""
        return self.known is None and (self.borrowed is None or self.borrowed.has_changed())

    def has_changed(self, pool: Any, n_others: int = 0) -> bool:
        """Return whether the program has changed the value since the last check, and record the check.

        Needed only if ``known`` is not the object in the storage. For ``pool`` and ``n_others`` see `Borrowed.is_held`.
        """
        borrowed, found = self.borrowed, True
        if borrowed is not None and self.cell[0] is borrowed.value:
            found = borrowed.has_changed()
        elif borrowed is not None or self.known is not None:  # the program wrote into the storage itself
            self.borrowed = borrowed = None
            self.origin = Origin.PROGRAM
        if found and self.origin is not Origin.OWN:
            self.origin = Origin.PROGRAM
        if borrowed is not None and not borrowed.is_held(self.cell, pool, n_others):
            self.borrowed = borrowed = None
        if borrowed is None:
            self.known = self.cell[0]
        elif found:
            borrowed.remember()
        return found

    def reclaim(self, pool: Any, n_others: int) -> None:
        """Stop treating a borrowed value as such if the program no longer refers to it; see `has_changed`."""
        assert self.borrowed is not None
        if not self.borrowed.is_held(self.cell, pool, n_others):
            self.borrowed = None


def set_all(entries: Iterable[SharedEntry], values: Iterable[Any]) -> None:
    """Set variables to values that a function has computed: a faster loop over `SharedEntry.set`."""
    for entry, value in zip(entries, values):
        if entry.known is not None and entry.borrowed is None:
            entry.cell[0] = entry.known = value
        else:
            entry.set(value, Origin.FUNCTION)


class FunctionEntry:
    """A compiled function on this rank; ``reference`` returns it, or None once the program has dropped it."""

    __slots__ = ("number", "engine", "reference")

    def __init__(self, number: int, engine: Any, reference: Reference) -> None:
        self.number, self.engine, self.reference = number, engine, reference

    def __iter__(self) -> Iterator[Any]:
        return iter((self.engine, self.reference()))


class Registry:
    """The tables of functions and shared variables of one rank, by number."""

    def __init__(self) -> None:
        self.shareds: Dict[int, SharedEntry] = {}
        self.functions: Dict[int, FunctionEntry] = {}
        self.replicas: Optional[Replicas] = None  # builds the entries, on the master from the program's objects

    def __repr__(self) -> str:
        return f"Registry(functions={len(self.functions)}, shareds={len(self.shareds)})"

    def add(self, shareds: Iterable[SharedEntry], functions: Iterable[FunctionEntry]) -> None:
        self.shareds.update({entry.number: entry for entry in shareds})
        self.functions.update({entry.number: entry for entry in functions})

    def forget(self, thing: Tuple[str, int]) -> None:
        kind, number = thing
        (self.functions if kind == "function" else self.shareds).pop(number, None)
        if self.replicas is not None:
            self.replicas.forget(thing)


class Replicas(ABC):
    """Interface for building the entries of a rank's registry; see `replication.command`."""

    @abstractmethod
    def shared(self, item: Any, held: Mapping[int, SharedEntry], rank: int, size: int) -> Tuple[SharedEntry, Any]:
        """Return the entry of a shared variable, and its value on this rank if the transport does not send the value.

        ``item`` is a `replication.command.SharedItem`; ``held`` contains the rank's variables so far.
        """

    @abstractmethod
    def value(self, number: int) -> Any:
        """Return the master's dense array of a variable that is being sent; None on other ranks."""

    @abstractmethod
    def functions(
        self, engine: Any, numbers: Sequence[int], pickled: bytes, held: Mapping[int, SharedEntry], pools: Any
    ) -> List[FunctionEntry]:
        """Return the entries of functions, which may use any variable in ``held``."""

    def rejoin(self, held: Mapping[int, Mapping[int, Any]], kept: Mapping[Any, Any]) -> Any:
        """Return the command that restores functions and values on replacement ranks; called on the master.

        ``held[rank]`` are the deposits of a replaced rank's variables; ``kept`` maps the classes of features' states to
        `Kept.saved`.
        """
        raise NotImplementedError("only the master can build this command")

    @abstractmethod
    def forget(self, thing: Tuple[str, int]) -> None:
        """Drop everything stored for a function or a variable."""
