"""The arguments that collectives have in common: which shared variables, and with which values.

What a collective keeps on the master, in ``session.caches``; what ranks keep is in `transports.layouts`. A training
loop reduces the same variables again and again: then their types are not checked again, and the command is kept as
bytes, unless it has ``weights``; every rank unpickles the envelope each time.

====================  =====================================  ===========================  ===========================
what is kept          key                                    what is reused               what makes it invalid
====================  =====================================  ===========================  ===========================
`Variables`           the ids of the variables, and the      the checks, and the          a variable that has died
                      form in which they were given          numbers of the variables     (`holds`); another session;
                                                                                          `MAX_LISTS` other lists
`Variables.commands`  the collective and its options         the command, pickled         the same
====================  =====================================  ===========================  ===========================
"""

from __future__ import annotations

import logging
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .. import engines, selection
from ..errors import ArgumentTypeError, ArgumentValueError
from ..memory.handles import with_axis_first
from ..program.program import PROGRAM
from ..reductions import COMBINING, ReduceOp, check_dtype
from ..replication.replicator import replicator_of
from ..runtime.command import Command
from ..runtime.session import Session
from ..selection import Rows, Selection, moved
from ..shared_data import Data

logger = logging.getLogger("synkhronos")

#: Lists of variables that are remembered as checked.
MAX_LISTS = 64


def checked(shared_vars: Any, states: bool = False, unused: bool = False, argument: str = "shared_vars") -> Variables:
    """Return the shared variables that a collective is called with, checked and known to the ranks.

    Parameters
    ----------
    shared_vars : shared variable, or list or tuple of them
        As the user gave them.
    states : bool
        Whether random states may be among them, too: one rank's can be read and written, but not combined with others.
    unused : bool
        Whether no function need use them yet: the ranks are given them now, and keep their values for one that does.
    argument : str
        What messages call them.

    Raises
    ------
    StateError
        If no session is open.
    TypeError, ValueError
        If something is not a shared variable, is not a dense array of data, is listed twice, or no function uses it.
    """
    session = PROGRAM.session
    if session is None or session.closed:
        session = PROGRAM.current()  # which raises
    single = not isinstance(shared_vars, (list, tuple))
    variables = [shared_vars] if single else shared_vars
    key = (states, single, argument, *map(id, variables))
    with session.lock:
        known: Dict[Any, Variables] = session.caches.setdefault("collectives", {})
        found = known.get(key)
        if found is None or not found.holds(variables):
            found = Variables(session, list(variables), single, states, unused, argument)
            if len(known) >= MAX_LISTS:
                known.clear()
            known[key] = found
    return found


class Variables:
    """Shared variables that collectives are about, checked once; does not keep them alive.

    Attributes
    ----------
    session : Session
    engine : Engine
    numbers : list of int
        Under which the ranks know them.
    names, types : list
        How messages call them, and their `ArrayType`.
    single : bool
        Whether one alone was given, so that one result is returned alone.
    random : list of bool
        Which of the variables are random states.
    commands : dict of tuple to Command
        What is sent again and again.
    """

    def __init__(
        self, session: Session, variables: List[Any], single: bool, states: bool, unused: bool, argument: str
    ) -> None:
        if not variables:
            raise ArgumentValueError(argument, "a shared variable or a list of them", "an empty list")
        self.session, self.single = session, single
        self.engine: Any = engines.find(variables)
        for i, variable in enumerate(variables):
            if self.engine is None or not self.engine.is_shared(variable):
                where = argument if single else f"{argument}[{i}]"
                got = f"{variable!r} of type {type(variable).__name__}"
                raise ArgumentTypeError(where, "a shared variable", got)
        self.names = [
            self.engine.label(variable, argument if single else f"{argument}[{i}]")
            for i, variable in enumerate(variables)
        ]
        self.types = [self.engine.shared_type(variable) for variable in variables]
        self.random = [self.engine.is_random(variable) for variable in variables]
        for variable, name, type_, random in zip(variables, self.names, self.types, self.random):
            value = self.engine.get(variable)
            kind = type(value).__name__
            if random and not states:
                raise ArgumentTypeError(
                    argument,
                    "variables with data, which collectives can combine",
                    f"{name}, which is the state of a random stream ({kind})",
                    "every rank draws from its own; get_value and set_value read and write them",
                )
            if type_ is None and not random:
                raise ArgumentTypeError(
                    argument,
                    "dense arrays, which collectives can combine",
                    f"{name}, which is not a dense array but {kind}",
                    "make it of a NumPy array: shared(np.asarray(value))"
                    if hasattr(value, "__array__")
                    else "every rank has its own",
                )
        self.numbers = [_number(session, self.engine, *each, unused, argument) for each in zip(variables, self.names)]
        for variable, name, number in zip(variables, self.names, self.numbers):
            if session.context.shareds[number].rows is not None:
                its = f"{variable.name}." if variable.name else "its "
                hint = f"{its}get_value() returns the rows of all ranks, {its}set_value(value) takes them"
                expected, got = "variables without the batch's rows", f"{name}, which has them (synkhronos.sharded)"
                raise ArgumentValueError(argument, expected, got, hint)
        names: Dict[int, str] = {}
        for number, name in zip(self.numbers, self.names):
            if number in names:
                got = f"{name}, which is listed twice (its value is that of {names[number]})"
                raise ArgumentValueError(argument, "different variables", got)
            names[number] = name
        self.commands: Dict[Tuple[Any, ...], Command] = {}
        self._references = [weakref.ref(variable) for variable in variables]
        # A variable that shares another's storage has that one's number, and only as long as that one lives.
        others = [replicator_of(session).variable(number) for number in self.numbers]
        self._others = [weakref.ref(other) for other, variable in zip(others, variables) if other is not variable]

    def holds(self, variables: Sequence[Any]) -> bool:
        """Return whether it is about these variables, and nothing of it has ended."""
        for reference, variable in zip(self._references, variables):
            if reference() is not variable:
                return False
        return not self._others or all(reference() is not None for reference in self._others)

    @property
    def variables(self) -> List[Any]:
        """The variables themselves, which the caller has."""
        return [reference() for reference in self._references]

    def keep(self, key: Tuple[Any, ...], command: Command) -> Command:
        """Remember a command that is sent again and again; return it."""
        command.freeze()
        self.commands[key] = command
        return command

    # -- more checks ---------------------------------------------------------------------------------------------

    def check_op(self, op: Any, nccl: Any = True) -> ReduceOp:
        """Return the op, if it suits all variables; for the host if ``nccl`` is False."""
        parsed = ReduceOp.parse(op, "op", COMBINING)
        for type_, name in zip(self.types, self.names):
            check_dtype(parsed, type_.dtype, name, COMBINING)
        return ReduceOp(parsed.name, parsed.on_host or not nccl)

    def check_targets(self, others: Any, argument: str) -> List[int]:
        """Return the numbers of other variables that take results, if they are of the same types, one for each."""
        targets = checked(others, unused=True, argument=argument)
        if targets.single != self.single or len(targets.numbers) != len(self.numbers):
            expected = "one variable" if self.single else f"a list of {len(self.numbers)}, one for each of shared_vars"
            got = "one variable" if targets.single else f"a list of {len(targets.numbers)}"
            raise ArgumentValueError(argument, expected, got)
        for name, type_, target, other in zip(self.names, self.types, targets.names, targets.types):
            if type_ != other:
                raise ArgumentTypeError(argument, f"a {type_.words}, as {name} is", f"{target}, a {other.words}")
        return targets.numbers

    def check_rows(self, instead: str) -> None:
        """Refuse variables of 0 dimensions, which have no rows; say what to do instead."""
        for type_, name in zip(self.types, self.names):
            if type_.ndim == 0:
                got = f"{name} of 0, which has no rows"
                raise ArgumentValueError("shared_vars", "variables of at least 1 dimension", got, instead)

    def check_count(self, i: int, count: int, what: str) -> None:
        """Refuse a number of rows that the i-th variable cannot have: its type may say that it has just one."""
        if self.types[i].broadcastable[0] and count != 1:
            expected = "exactly 1 row, because its rows are broadcastable"
            raise ArgumentTypeError(f"{what} {self.names[i]}", expected, str(count))

    def check_rank(self, rank: Any) -> int:
        """Return the rank, if it exists."""
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
            raise ArgumentTypeError("rank", "an int", f"{rank!r} of type {type(rank).__name__}")
        if not 0 <= rank < self.session.size:
            raise ArgumentValueError("rank", f"from 0 to {self.session.size - 1}", str(rank))
        return int(rank)

    def one_or_list(self, results: Sequence[Any]) -> Any:
        """Return results in the form in which the variables were given."""
        return results[0] if self.single else list(results)

    # -- values --------------------------------------------------------------------------------------------------

    def axes(self, axis: Any) -> List[int]:
        """Return the axis of rows of every variable, all the same as the user counts it."""
        if isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer)):
            raise ArgumentTypeError("axis", "an int", f"{axis!r} of type {type(axis).__name__}")
        return [type_.axis_of_rows(int(axis), name) for type_, name in zip(self.types, self.names)]

    def stage(self, values: Any, batch: Any = None, axes: Optional[Sequence[int]] = None) -> List[Staged]:
        """Bring the user's values, one per variable, to where all ranks can read them.

        Values are `Data`, arrays, or whatever the variable's own ``set_value`` takes. Of what is not a `Data`, only
        the rows that ``batch`` selects are copied. With ``axes``, along which the variables have rows, these are first
        in what is staged.

        Raises
        ------
        TypeError, ValueError
            If there are not as many values as variables, or one does not suit its variable; if ``batch`` is wrong.
        SharedMemoryError
            If there is no memory for the values.
        """
        variables = self.variables
        if self.single:
            values = [values]
        elif not isinstance(values, (list, tuple)) or len(values) != len(variables):
            got = str(len(values)) if isinstance(values, (list, tuple)) else type(values).__name__
            expected = f"a list of {len(variables)}, one per shared variable"
            raise ArgumentValueError("values", expected, got)
        arrays = []  # whether they are used where they lie, and as the variables would hold them, rows first
        axes = axes or [0] * len(variables)
        for variable, name, value, random, axis in zip(variables, self.names, values, self.random, axes):
            if random and batch is not None:
                got = f"a selection for {name}, the state of a random stream, which has no rows"
                raise ArgumentValueError("batch", "None", got, "leave out batch")
            array = np.asarray(value.data) if isinstance(value, Data) else value  # without the class np.memmap
            conformed = self.engine.coerce(variable, array, f"values for {name}")
            in_place = isinstance(value, Data) and conformed is array
            arrays.append((in_place, moved(conformed, axis, 0) if axis else conformed))
        chosen = None if batch is None else self._select(values, [conformed for _, conformed in arrays], batch)
        staged = []
        for variable, value, (in_place, conformed), random, axis in zip(variables, values, arrays, self.random, axes):
            if random:
                staged.append(Staged(None, None, self.engine.jumped(variable, conformed, 0)))  # a copy, of a known kind
                continue
            whole = chosen is None or isinstance(value, Data) and value.minibatch  # as far as it is taken
            handle: Any
            if not in_place:
                rows = conformed if chosen is None or whole else chosen.take(conformed)
                kept = self.session.pool.allocate(rows.shape, rows.dtype)
                np.copyto(kept, rows)
                handle, whole = self.session.pool.handle(kept), True
            else:
                handle, kept = with_axis_first(value.handle(), axis) if axis else value.handle(), conformed
            taken: Optional[Selection] = None
            if kept.ndim:
                taken = chosen if not whole else Rows(0, len(kept) if chosen is None else len(chosen))
            staged.append(Staged(handle, taken, kept))
        return staged

    def _select(self, values: Sequence[Any], arrays: Sequence[np.ndarray[Any, Any]], batch: Any) -> Selection:
        """Return the rows that ``batch`` selects; those of minibatches are selected already."""
        self.check_rows("leave out batch")
        minibatch = [isinstance(value, Data) and value.minibatch for value in values]
        whole = [len(array) for array, just_batch in zip(arrays, minibatch) if not just_batch]
        # If all values hold just the batch, the data set that the indices are about is not there to check them.
        chosen = selection.parse(batch, min(whole) if whole else np.iinfo(np.intp).max, of="the shortest value")
        for name, array, just_batch in zip(self.names, arrays, minibatch):
            if just_batch and len(array) < len(chosen):
                raise ArgumentValueError(
                    f"values for {name}",
                    f"a minibatch of at least {len(chosen)} rows, as many as batch selects",
                    f"{len(array)} rows",
                    "write the selected rows to it first",
                )
        return chosen


class Staged(NamedTuple):
    """A value where all ranks can read it."""

    handle: Any  # None for a random state, which travels pickled instead
    rows: Optional[Selection]  # the rows of it that are meant; None for a value of 0 dimensions
    array: Any  # keeps the memory


def _number(session: Session, engine: Any, variable: Any, name: str, unused: bool, argument: str) -> int:
    """Return the number of a variable, after giving the ranks the functions that use it, or the variable alone."""
    replicator = replicator_of(session)
    number = replicator.find(engine, variable)
    if number is None:
        identity = engine.identity(variable)
        users = [
            function
            for function in PROGRAM.functions
            if function.engine is engine
            and any(engine.identity(shared) == identity for shared in function.get_shared())
        ]
        try:
            replicator.ensure(users)
        except TypeError:  # one of them cannot travel
            if replicator.find(engine, variable) is None:
                raise
        number = replicator.find(engine, variable)
    if number is None and unused:
        replicator.ensure_shared(engine, variable)
        number = replicator.find(engine, variable)
        logger.info("%s is kept by the ranks for when a function of synkhronos uses it: none does so far", name)
    if number is None:
        raise ArgumentValueError(
            argument,
            "variables that functions of synkhronos use, so that the other ranks have them",
            f"{name}, which no such function uses",
            "build the functions that use it with synkhronos.function first",
        )
    return number
