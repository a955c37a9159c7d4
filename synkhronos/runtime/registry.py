"""The functions and shared variables that ranks hold, by number: one type of table on every rank.

The master's entries refer to what the program has, weakly; the entries of the other ranks own their replicas. All
ranks give a thing the same number, so a number is all that a command says of it.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..engines.observer import Observer
from ..errors import StateError
from .borrowed import Borrowed

#: Returns the thing, or None if the program has dropped it.
Reference = Callable[[], Any]


class Origin(enum.Enum):
    """What has given a variable its value.

    The first three say how the ranks' values compare, and are what `SharedEntry.origin` can be. The others leave that
    as it was.
    """

    #: A commit, or the distribution, after which all ranks have the same.
    COMMON = enum.auto()
    #: A commit after which each rank may have its own.
    OWN = enum.auto()
    #: The program, on the master: the other ranks do not have it.
    PROGRAM = enum.auto()
    #: A function: ranks that had the same value have the same again, if it updates the variable alike on all.
    FUNCTION = enum.auto()
    #: The value of before is back.
    UNDONE = enum.auto()
    #: The same value, in other memory.
    MOVED = enum.auto()


_OF_ALL = {Origin.COMMON, Origin.OWN, Origin.PROGRAM}


class _Running:
    """What `SharedEntry.known` is while functions run that put new values beside the old one: that is not kept."""

    def __repr__(self) -> str:
        return "<a value that a function is about to change>"


RUNNING: Any = _Running()


class RowsOfRanks:
    """What the master knows of a shared variable that has the batch's rows: see `functions.state_rows`.

    Attributes
    ----------
    axis : int
        Of the rows.
    whole, own
        The rows of all ranks, and the master's own, since they were brought together.
    taken : list of (int, int)
        Which of all rows every rank has.
    is_away : bool
        Whether the variable holds the master's own rows, because a function is being called.
    """

    __slots__ = ("axis", "whole", "own", "taken", "is_away")

    def __init__(self, axis: int) -> None:
        self.axis, self.is_away = axis, False
        self.whole: Any = None
        self.own: Any = None
        self.taken: List[Tuple[int, int]] = []

    def are_on_ranks(self, entry: SharedEntry, taken: Sequence[Tuple[int, int]]) -> bool:
        """Return whether every rank has these of the rows that the master's variable holds."""
        is_same = entry.cell[0] is self.whole and entry.origin is Origin.COMMON and entry.borrowed is None
        return is_same and self.taken == list(taken)


class SharedEntry(Observer):
    """A shared variable on this rank.

    Parameters
    ----------
    number : int
    engine : Engine
    reference : callable
        Returns the variable: on the master the program's own, or None if that has been dropped.
    cell : list
        Its storage: a list of one element, which is its value.
    on_device : bool
        Whether the value lives on the rank's device.
    base : shared variable, optional
        The first one with the same storage, if this is another; kept alive with it.

    Attributes
    ----------
    known
        On the master: the object in the storage, if the program cannot have changed it since it was last looked at.
        Anything else (None, say) has `has_changed` look.
    origin : Origin
        On the master: what has given the variable its value, of the first three.
    borrowed : Borrowed, optional
        On the master: what the program can write to.
    rows : RowsOfRanks, optional
        On the master: what the ranks have, if the variable has the batch's rows.
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
        "_base",
    )

    def __init__(
        self, number: int, engine: Any, reference: Reference, cell: List[Any], on_device: bool, base: Any = None
    ) -> None:
        self.number, self.engine, self.reference, self.cell = number, engine, reference, cell
        self.on_device, self._base = on_device, base
        #: What transports know its value by.
        self.key = ("shared", number)
        self.known, self.origin = cell[0], Origin.COMMON
        self.borrowed: Optional[Borrowed] = None
        self.rows: Optional[RowsOfRanks] = None

    def __iter__(self) -> Iterator[Any]:
        """Iterate over engine and variable, as in ``engine, variable = context.shareds[number]``."""
        return iter((self.engine, self.reference()))

    def label(self, place: str = "unnamed") -> str:
        """Return what messages call the variable: its name, or its place among others and its type."""
        variable = self.reference()
        return place if variable is None else str(self.engine.label(variable, place))

    # -- the value: what the library does to it ------------------------------------------------------------------

    def set(self, value: Any, origin: Origin) -> None:
        """Give the variable a value: the only way in which the library changes what the storage holds.

        What the program has borrowed stays where it is if the value is the same in other memory.
        """
        cell, before = self.cell, self.borrowed
        borrowed = before
        if borrowed is not None and borrowed.value is not cell[0] and borrowed.value is not value:
            borrowed = None  # an engine has replaced it
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
                borrowed.remember()  # as a broadcast of what the program has set: the ranks have it

    def ran(self, updates: bool) -> None:
        """Note what a function, which ranks have called, has left where the program has borrowed the value.

        Parameters
        ----------
        updates : bool
            Whether it updates the variable.
        """
        borrowed, value = self.borrowed, self.cell[0]
        assert borrowed is not None
        if not updates:
            self.cell[0] = borrowed.value  # an engine may have put a copy there that suits its functions better
        elif value is not borrowed.value:
            self.borrowed, self.known = None, None if borrowed.is_forgotten else value
        elif not borrowed.is_forgotten:
            borrowed.remember()

    # -- the value: what the program does to it ------------------------------------------------------------------

    @property
    def stands_in(self) -> bool:  # type: ignore[override]
        """Whether the program cannot have the value: every rank has its own rows, and a function is being called."""
        return self.rows is not None and self.rows.is_away

    def get(self, get: Callable[[], Any], borrow: bool) -> Any:
        self._check_here()
        return get()

    def put(self, put: Callable[[Any], None], value: Any, borrow: bool) -> None:
        self._check_here()
        put(value)

    def _check_here(self) -> None:
        if self.stands_in:
            raise StateError(f"{self.label()} has its rows on the ranks until the call, or the last step, has ended")

    def lent(self) -> None:
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
        """Return whether the program has changed the value, though not by writing into the storage itself."""
        return self.known is None and (self.borrowed is None or self.borrowed.has_changed())

    def has_changed(self, pool: Any, n_others: int = 0) -> bool:
        """Return whether the program has changed the value since this was asked last; it is asked if `known` is not.

        Parameters
        ----------
        pool, n_others
            As of `Borrowed.is_held`.
        """
        borrowed, found = self.borrowed, True
        if borrowed is not None and self.cell[0] is borrowed.value:
            found = borrowed.has_changed()
        elif borrowed is not None or self.known is not None:  # it was written into the storage itself
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


class FunctionEntry:
    """A compiled function on this rank; parameters as for `SharedEntry`."""

    __slots__ = ("number", "engine", "reference")

    def __init__(self, number: int, engine: Any, reference: Reference) -> None:
        self.number, self.engine, self.reference = number, engine, reference

    def __iter__(self) -> Iterator[Any]:
        """Iterate over engine and function, as in ``engine, compiled = context.functions[number]``."""
        return iter((self.engine, self.reference()))


class Registry:
    """The tables of one rank.

    Attributes
    ----------
    shareds : dict of int to SharedEntry
    functions : dict of int to FunctionEntry
    """

    def __init__(self) -> None:
        self.shareds: Dict[int, SharedEntry] = {}
        self.functions: Dict[int, FunctionEntry] = {}

    def __repr__(self) -> str:
        return f"Registry(functions={len(self.functions)}, shareds={len(self.shareds)})"

    def add(self, shareds: Iterable[SharedEntry], functions: Iterable[FunctionEntry]) -> None:
        """Add variables and functions; those that are there are replaced."""
        self.shareds.update({entry.number: entry for entry in shareds})
        self.functions.update({entry.number: entry for entry in functions})

    def forget(self, thing: Tuple[str, int]) -> None:
        """Drop a function or a variable, if it is there."""
        kind, number = thing
        (self.functions if kind == "function" else self.shareds).pop(number, None)


class Replicas(ABC):
    """Makes the entries of a rank's registry from what was sent; see `replication.command`."""

    @abstractmethod
    def shared(self, item: Any, held: Mapping[int, SharedEntry], rank: int, size: int) -> Tuple[SharedEntry, Any]:
        """Return the entry of a shared variable, and its value on this rank unless that comes from the transport.

        Parameters
        ----------
        item : replication.command.SharedItem
        held : dict of int to SharedEntry
            The variables that the rank has, those of the same command included.
        rank, size : int
        """

    @abstractmethod
    def value(self, number: int) -> Any:
        """Return the dense array of a variable that is being sent: the array itself on the master; None elsewhere."""

    @abstractmethod
    def functions(
        self, engine: Any, numbers: Sequence[int], pickled: bytes, held: Mapping[int, SharedEntry], pools: Any
    ) -> List[FunctionEntry]:
        """Return the entries of functions, which may use any of the variables that are held."""

    def rejoin(self, held: Mapping[int, Mapping[int, Any]], plans: Mapping[Any, Any]) -> Any:
        """Return the command that gives new ranks what those before them had; on the master.

        Parameters
        ----------
        held : dict of int to dict of int to Deposit
            By rank: where the values of its variables lie.
        plans : dict
            Those of `RankContext.plans`.
        """
        raise NotImplementedError("only the master knows")

    @abstractmethod
    def forget(self, thing: Tuple[str, int]) -> None:
        """Drop what is kept of a function or a variable, if anything is."""
