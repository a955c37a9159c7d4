"""The arguments that collectives have in common: which shared variables, and with which values."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from .. import engines, selection
from ..program.program import PROGRAM
from ..reductions import ReduceOp, check_dtype
from ..replication.distribute import Catalogue, catalogue_of
from ..runtime.context import RankContext
from ..runtime.session import Session
from ..selection import Rows, Selection
from ..shared_data import Data

#: Sets of variables that are remembered as checked.
MAX_CHECKED_LISTS = 64

#: The ops by which values of shared variables can be reduced.
OPS = ("avg", "sum", "prod", "min", "max")


class Checked:
    """What is known of shared variables in one session, once they have been checked: collectives come again and again.

    It does not keep the variables alive; `holds` tells whether it is still about the same ones.
    """

    def __init__(self, catalogue: Catalogue, variables: Sequence[Any], states: bool) -> None:
        self.engine: Any = engines.find(variables, default=None)
        for variable in variables:
            if self.engine is None or not self.engine.is_shared(variable):
                raise TypeError(
                    f"shared_vars: expected shared variables, got {variable!r} of type {type(variable).__name__}"
                )
        self.names = [self.engine.label(variable) for variable in variables]
        self.types = [self.engine.shared_type(variable) for variable in variables]
        self.random = [self.engine.is_random(variable) for variable in variables]
        for variable, name, type_, random in zip(variables, self.names, self.types, self.random):
            if random and not states:
                raise TypeError(
                    f"shared_vars: {name} is the state of a random stream "
                    f"({type(self.engine.get(variable)).__name__}); every rank draws from its own, "
                    "which get_value and set_value read and write, and collectives cannot combine them"
                )
            if type_ is None and not random:
                raise TypeError(
                    f"shared_vars: {name} is no dense array but {type(self.engine.get(variable)).__name__}; "
                    "every rank has its own, and collectives "
                    "cannot combine them"
                )
        self.numbers = [
            _number(catalogue, self.engine, variable, name) for variable, name in zip(variables, self.names)
        ]
        names: Dict[int, str] = {}
        for number, name in zip(self.numbers, self.names):
            if number in names:
                raise ValueError(f"shared_vars: {name} stands twice (its value is that of {names[number]})")
            names[number] = name
        self.ops: Set[ReduceOp] = set()  # that suit all of them
        self._references = [weakref.ref(variable) for variable in variables]
        # A variable that shares another's storage has that one's number, and only as long as that one lives.
        others = [catalogue.variable(number) for number in self.numbers]
        self._others = [weakref.ref(other) for other, variable in zip(others, variables) if other is not variable]

    def holds(self, variables: Sequence[Any]) -> bool:
        """Tell whether it is about these variables, and nothing of it has ended."""
        return all([reference() is variable for reference, variable in zip(self._references, variables)]) and all(
            [reference() is not None for reference in self._others]
        )


def _number(catalogue: Catalogue, engine: Any, variable: Any, name: str) -> int:
    """Return the number of a variable, after giving the ranks the functions that use it."""
    number = catalogue.find(engine, variable)
    if number is None:
        identity = engine.identity(variable)
        users = [
            function
            for function in PROGRAM.functions
            if function.engine is engine
            and any(engine.identity(shared) == identity for shared in function.get_shared())
        ]
        try:
            catalogue.ensure(users)
        except TypeError:  # one of them cannot travel
            if catalogue.find(engine, variable) is None:
                raise
        number = catalogue.find(engine, variable)
    if number is None:
        raise ValueError(
            f"shared_vars: no synkhronos function uses {name}, so the other ranks do not have it; build "
            "the functions that use it with synkhronos.function first"
        )
    return number


class Variables:
    """The shared variables that a collective is called with, checked and known to the ranks.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        As the user gave them.
    states : bool
        Whether random states may be among them, too: one rank's can be read and written, but not combined with others.

    Attributes
    ----------
    session : Session
    variables : list of shared variables
    numbers : list of int
        Under which the ranks know them.
    single : bool
        Whether one alone was given, so that one result is returned alone.
    random : list of bool
        Which of the variables are random states.

    Raises
    ------
    StateError
        Where no session is open.
    TypeError, ValueError
        Where something is no shared variable, is no dense array of data, stands twice, or no function uses it.
    """

    def __init__(self, shared_vars: Any, states: bool = False) -> None:
        self.session: Session = PROGRAM.current()
        self.single = not isinstance(shared_vars, (list, tuple))
        self.variables: List[Any] = [shared_vars] if self.single else list(shared_vars)
        if not self.variables:
            raise ValueError("shared_vars: expected a shared variable or a list of them, got an empty list")
        with self.session.lock:
            catalogue = catalogue_of(self.session)
            checked = catalogue.checked.get((states, *map(id, self.variables)))
            if checked is None or not checked.holds(self.variables):
                checked = Checked(catalogue, self.variables, states)
                if len(catalogue.checked) >= MAX_CHECKED_LISTS:
                    catalogue.checked.clear()
                catalogue.checked[(states, *map(id, self.variables))] = checked
        self.engine, self.names, self.types = checked.engine, checked.names, checked.types
        self.random, self.numbers, self._ops = checked.random, checked.numbers, checked.ops

    def check_op(self, op: Any, nccl: Any = True) -> ReduceOp:
        """Return the op, where it suits all variables; for the host where ``nccl`` is False."""
        parsed = ReduceOp.parse(op, "op", OPS)
        parsed = ReduceOp(parsed.name, parsed.on_host or not nccl)
        if parsed not in self._ops:
            for type_, name in zip(self.types, self.names):
                check_dtype(parsed, type_.dtype, name, OPS)
            self._ops.add(parsed)
        return parsed

    def check_rows(self, instead: str) -> None:
        """Refuse variables of 0 dimensions, which have no rows; tell what to do instead."""
        for type_, name in zip(self.types, self.names):
            if type_.ndim == 0:
                raise ValueError(
                    f"shared_vars: expected variables of at least 1 dimension, got {name} of 0, which has no "
                    f"rows; {instead}"
                )

    def check_count(self, i: int, count: int, what: str) -> None:
        """Refuse a number of rows that the i-th variable cannot have: its type may say that it has just one."""
        if self.types[i].broadcastable[0] and count != 1:
            raise TypeError(
                f"{what} {self.names[i]}: expected exactly 1 row, because its rows are broadcastable, got {count}"
            )

    def check_rank(self, rank: Any) -> int:
        """Return the rank, where it exists."""
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
            raise TypeError(f"rank must be an int, got {type(rank).__name__}")
        if not 0 <= rank < self.session.size:
            raise ValueError(f"rank must be from 0 to {self.session.size - 1}, got {rank}")
        return int(rank)

    def one_or_list(self, results: Sequence[Any]) -> Any:
        """Return results in the form in which the variables were given."""
        return results[0] if self.single else list(results)

    def stage(self, values: Any, batch: Any = None) -> List[Staged]:
        """Bring the user's values, one per variable, to where all ranks can read them.

        Values are `Data`, arrays, or whatever the variable's own ``set_value`` takes. Of what is no `Data`, only the
        rows that ``batch`` selects are copied.
        """
        if self.single:
            values = [values]
        elif not isinstance(values, (list, tuple)) or len(values) != len(self.variables):
            raise ValueError(
                "values: expected a list of {}, one per shared variable, got {}".format(
                    len(self.variables),
                    f"{len(values)}" if isinstance(values, (list, tuple)) else type(values).__name__,
                )
            )
        arrays = []  # as the user gave them, and as the variables would hold them
        for variable, name, value, random in zip(self.variables, self.names, values, self.random):
            if random and batch is not None:
                raise ValueError(f"batch: {name} is the state of a random stream, which has no rows; leave out batch")
            array = np.asarray(value.data) if isinstance(value, Data) else value  # without the class np.memmap
            arrays.append((array, self.engine.coerce(variable, array, f"values for {name}")))
        chosen = None if batch is None else self._select(values, [conformed for _, conformed in arrays], batch)
        staged = []
        for variable, value, (array, conformed), random in zip(self.variables, values, arrays, self.random):
            if random:
                staged.append(Staged(None, None, self.engine.jumped(variable, conformed, 0)))  # a copy, of a known kind
                continue
            whole = chosen is None or isinstance(value, Data) and value.minibatch  # as far as it is taken
            if not isinstance(value, Data) or conformed is not array:
                rows = conformed if whole else chosen.take(conformed)
                kept = PROGRAM.pool.allocate(rows.shape, rows.dtype)
                np.copyto(kept, rows)
                handle, whole = PROGRAM.pool.handle(kept), True
            else:
                handle, kept = value.handle(), conformed
            taken: Optional[Selection] = None
            if kept.ndim:
                taken = chosen if not whole else Rows(0, len(kept) if chosen is None else len(chosen))
            staged.append(Staged(handle, taken, kept))
        return staged

    def _select(self, values: Sequence[Any], arrays: Sequence[np.ndarray], batch: Any) -> Selection:
        """Return the rows that ``batch`` selects; those of minibatches are selected already."""
        self.check_rows("leave out batch")
        minibatch = [isinstance(value, Data) and value.minibatch for value in values]
        whole = [len(array) for array, just_batch in zip(arrays, minibatch) if not just_batch]
        # Where all values hold just the batch, the data set that the indices are about is not there to check them.
        chosen = selection.parse(batch, min(whole) if whole else np.iinfo(np.intp).max, of="the shortest value")
        for name, array, just_batch in zip(self.names, arrays, minibatch):
            if just_batch and len(array) < len(chosen):
                raise ValueError(
                    (
                        f"values for {name}: a minibatch of {len(array)} rows, but batch selects "
                        f"{len(chosen)}: write the selected rows "
                        "to it first"
                    )
                )
        return chosen


class Staged(NamedTuple):
    """A value where all ranks can read it."""

    handle: Any  # None for a random state, which is not there but travels pickled
    rows: Optional[Selection]  # the rows of it that are meant; None for a value of 0 dimensions
    array: Any  # keeps the memory


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
    place = context.transport.bind
    for key in keys:
        engine, variable = context.shareds[key[1]]
        value = engine.get(variable)
        placed = place(key, value)
        if placed is not value:
            engine.put(variable, placed)
        arrays.append(placed)
    return keys, arrays


def keep(context: RankContext, numbers: Sequence[int], results: Sequence[Optional[np.ndarray]]) -> None:
    """Make the results of a collective the values of the variables, on all ranks or on none.

    The last call of a command. ``results[i]`` is None where this rank's value stays; else it is complete, except what
    transports have just returned.
    """
    held = [
        None if result is None else context.shareds[number][0].to_device(context.shareds[number][1], result)
        for number, result in zip(numbers, results)
    ]

    def change() -> None:
        for number, result in zip(numbers, held):
            if result is not None:
                engine, variable = context.shareds[number]
                context.transport.swap_in(("shared", number), result)
                engine.put(variable, result)

    context.commit(change)
