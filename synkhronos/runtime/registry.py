"""The functions and shared variables that ranks hold, by number: one type of table on every rank.

The master's entries refer to what the program has, weakly; the entries of the other ranks own their replicas. All
ranks give a thing the same number, so a number is all that a command says of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

#: Returns the thing, or None if the program has dropped it.
Reference = Callable[[], Any]


class SharedEntry:
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
        On the master: the object that the last command left in the cell. Another one there is the program's.
    told : bool
        Whether the program was told that it has put one there.
    parted : bool
        On the master: whether the last collective may have given ranks different values.
    """

    __slots__ = ("number", "engine", "reference", "cell", "on_device", "key", "known", "told", "parted", "_base")

    def __init__(
        self, number: int, engine: Any, reference: Reference, cell: List[Any], on_device: bool, base: Any = None
    ) -> None:
        self.number, self.engine, self.reference, self.cell = number, engine, reference, cell
        self.on_device, self._base = on_device, base
        #: What transports know its value by.
        self.key = ("shared", number)
        self.known, self.told, self.parted = cell[0], False, False

    def __iter__(self) -> Iterator[Any]:
        """Iterate over engine and variable, as in ``engine, variable = context.shareds[number]``."""
        return iter((self.engine, self.reference()))

    def label(self, place: str = "unnamed") -> str:
        """Return what messages call the variable: its name, or its place among others and its type."""
        variable = self.reference()
        return place if variable is None else str(self.engine.label(variable, place))


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
