"""The arguments that collectives have in common: which shared variables, and with which values."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .. import engines, selection
from ..context import RankContext
from ..functions.distribute import catalogue_of
from ..program import PROGRAM
from ..reduce_op import ReduceOp, check_dtype
from ..session import Session
from ..shared_data import Data

#: The ops by which values of shared variables can be reduced.
OPS = ("avg", "sum", "prod", "min", "max")


class Variables:
    """The shared variables that a collective is called with, checked and known to the ranks.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        As the user gave them.

    Attributes
    ----------
    session : Session
    variables : list of shared variables
    numbers : list of int
        Under which the ranks know them.
    single : bool
        Whether one alone was given, so that one result is returned alone.

    Raises
    ------
    StateError
        Where no session is open.
    TypeError, ValueError
        Where something is no shared variable, is no dense array, stands twice, or no function uses it.
    """

    def __init__(self, shared_vars: Any) -> None:
        self.session: Session = PROGRAM.current()
        self.single = not isinstance(shared_vars, (list, tuple))
        self.variables: List[Any] = [shared_vars] if self.single else list(shared_vars)
        if not self.variables:
            raise ValueError("shared_vars: expected a shared variable or a list of them, got an empty list")
        self.engine = engines.find(self.variables)
        for variable in self.variables:
            if not self.engine.is_shared(variable):
                raise TypeError("shared_vars: expected shared variables, got %r of type %s" % (
                    variable, type(variable).__name__))
        self.names = [self.engine.label(variable) for variable in self.variables]
        for variable, name in zip(self.variables, self.names):
            if self.engine.shared_type(variable) is None:
                raise TypeError("shared_vars: %s is no dense array but %s; every rank has its own, and collectives "
                                "cannot combine them" % (name, type(self.engine.get(variable)).__name__))
        with self.session.lock:
            self.numbers = [self._number(variable, name) for variable, name in zip(self.variables, self.names)]
        for i, number in enumerate(self.numbers):
            if number in self.numbers[:i]:
                raise ValueError("shared_vars: %s stands twice (its value is that of %s)" % (
                    self.names[i], self.names[self.numbers.index(number)]))

    def _number(self, variable: Any, name: str) -> int:
        catalogue = catalogue_of(self.session)
        number = catalogue.find(self.engine, variable)
        if number is None:
            identity = self.engine.identity(variable)
            users = [function for function in PROGRAM.functions if function.engine is self.engine and any(
                self.engine.identity(shared) == identity for shared in function.get_shared())]
            catalogue.ensure(users)
            number = catalogue.find(self.engine, variable)
        if number is None:
            raise ValueError("shared_vars: no synkhronos function uses %s, so the other ranks do not have it; build "
                             "the functions that use it with synkhronos.function first" % name)
        return number

    def check_op(self, op: Any) -> ReduceOp:
        """Return the op, where it suits all variables."""
        parsed = ReduceOp.parse(op, "op", OPS)
        for variable, name in zip(self.variables, self.names):
            check_dtype(parsed, self.engine.shared_type(variable).dtype, name)
        return parsed

    def check_rank(self, rank: Any) -> int:
        """Return the rank, where it exists."""
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
            raise TypeError("rank must be an int, got %s" % type(rank).__name__)
        if not 0 <= rank < self.session.size:
            raise ValueError("rank must be from 0 to %d, got %d" % (self.session.size - 1, rank))
        return int(rank)

    def one_or_list(self, results: Sequence[Any]) -> Any:
        """Return results in the form in which the variables were given."""
        return results[0] if self.single else list(results)

    def stage(self, values: Any) -> List[Staged]:
        """Bring the user's values, one per variable, to where all ranks can read them.

        Values are `Data`, arrays, or whatever the variable's own ``set_value`` takes.
        """
        if self.single:
            values = [values]
        elif not isinstance(values, (list, tuple)) or len(values) != len(self.variables):
            raise ValueError("values: expected a list of %d, one per shared variable, got %s" % (
                len(self.variables), "%d" % len(values) if isinstance(values, (list, tuple)) else
                type(values).__name__))
        staged = []
        for variable, name, value in zip(self.variables, self.names, values):
            array = value.data if isinstance(value, Data) else value
            conformed = self.engine.conform(variable, array, "values for %s" % name)
            if isinstance(value, Data) and conformed is array:
                staged.append(Staged(value.handle(), conformed))
                continue
            pool = PROGRAM.pool
            copy = pool.allocate(conformed.shape, conformed.dtype)
            np.copyto(copy, conformed)
            staged.append(Staged(pool.handle(copy), copy))
        return staged


class Staged(NamedTuple):
    """A value where all ranks can read it."""

    handle: Any
    array: np.ndarray  # keeps the memory


def select_rows(staged: Sequence[Staged], names: Sequence[str], batch: Any) -> List[Any]:
    """Return, per value, the rows of it that ``batch`` selects: all, if it is None."""
    for name, value in zip(names, staged):
        if value.array.ndim == 0:
            raise ValueError("values for %s: expected rows to divide, got a value of 0 dimensions" % name)
    lengths = [len(value.array) for value in staged]
    if batch is None:
        return [selection.Rows(0, length) for length in lengths]
    return [selection.parse(batch, min(lengths), of="the shortest value")] * len(staged)


def describe(context: RankContext, numbers: Sequence[int]) -> Callable[[int], str]:
    """Return how messages name the i-th of the variables with these numbers."""
    def label(i: int) -> str:
        engine, variable = context.shareds[numbers[i]]
        return engine.label(variable)

    return label


def keys_and_arrays(context: RankContext, numbers: Sequence[int]) -> Tuple[List[Tuple[str, int]], List[np.ndarray]]:
    """Return, for transports, the keys of variables and this rank's values, brought to where the transport keeps them.

    Their storage refers to the transport's array from then on, so that what a function writes in place is there
    already the next time.
    """
    keys = [("shared", number) for number in numbers]
    arrays = []
    for key in keys:
        engine, variable = context.shareds[key[1]]
        value = engine.get(variable)
        placed = context.transport.place(key, value)
        if placed is not value:
            engine.put(variable, placed)
        arrays.append(placed)
    return keys, arrays


def keep(context: RankContext, numbers: Sequence[int], results: Sequence[Optional[np.ndarray]]) -> None:
    """Make the results of a collective the values of the variables, on all ranks or on none.

    The last call of a command. ``results[i]`` is None where this rank's value stays.
    """
    def change() -> None:
        for number, result in zip(numbers, results):
            if result is not None:
                engine, variable = context.shareds[number]
                context.transport.adopt(("shared", number), result)
                engine.put(variable, result)

    context.commit(change)
