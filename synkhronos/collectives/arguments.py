"""Common arguments of collectives: shared variables, and values for them.

Training loops reduce the same variables in every step, so the master caches validated arguments and pickled commands in
``session.caches``. `Variables` are looked up by the variables' ids and the argument's form. `Variables.commands` maps
a collective's options, and the locations of `Data`, to commands. An entry becomes invalid when a variable is
garbage-collected. At `MAX_LISTS` entries, a cache is cleared. `transports.layouts` describes the ranks' caches.
"""

from __future__ import annotations

import functools
import inspect
import logging
import numbers
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, cast

import numpy as np

from .. import engines, selection
from ..errors import ArgumentTypeError, ArgumentValueError
from ..memory.handles import with_axis_first
from ..program.program import PROGRAM
from ..reductions import COMBINING, ReduceOp, check_dtype
from ..replication.replicator import replicator_of
from ..runtime.command import Command
from ..runtime.session import Session
from ..selection import RowRange, Selection, moved
from ..shared_data import Data

logger = logging.getLogger("synkhronos")

#: Maximum number of validated lists of variables in the cache, and of commands for each of them.
MAX_LISTS = MAX_COMMANDS = 64

F = TypeVar("F", bound=Callable[..., Any])


def or_rank_first(function: F) -> F:
    """Make a function also accept the argument order of the 2017 version, with the integer rank first."""
    order = inspect.signature(function)
    of_2017 = order.replace(parameters=sorted(order.parameters.values(), key=lambda one: one.name != "rank"))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], numbers.Integral):
            return function(**of_2017.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return cast(F, call)


def checked(shared_vars: Any, states: bool = False, unused: bool = False, argument: str = "shared_vars") -> Variables:
    """Validate the shared variables of a collective, and ensure that the ranks have them.

    ``states`` allows random states, which can be read and written on one rank, but not combined. ``unused`` allows
    variables that no function uses: the ranks store them for later functions.
    """
    session = PROGRAM.session
    if session is None or session.closed:
        session = PROGRAM.current()  # raises
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
    """Validated shared variables of a collective, as weak references.

    ``numbers`` identify them in the ranks' registries. ``names`` are labels, ``types`` are `ArrayType` objects, and
    ``random`` marks random states. ``single``: a single variable was passed, so a single result is returned.
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
            value = self.engine.storage(variable)[0]
            kind = type(value).__name__
            if random and not states:
                raise ArgumentTypeError(
                    argument,
                    "variables with data, which collectives can combine",
                    f"{name}, which is the state of a random stream ({kind})",
                    "every rank draws from its own state; use get_value and set_value",
                )
            if type_ is None and not random:
                raise ArgumentTypeError(
                    argument,
                    "dense arrays, which collectives can combine",
                    f"{name} of type {kind}, which is not a dense array",
                    "create it from a NumPy array: shared(np.asarray(value))"
                    if hasattr(value, "__array__")
                    else "every rank has its own value",
                )
        self.numbers = [_number(session, self.engine, *each, unused, argument) for each in zip(variables, self.names)]
        for variable, name, number in zip(variables, self.names, self.numbers):
            if session.context.registry.shareds[number].rows is not None:
                its = f"{variable.name}." if variable.name else "its "
                hint = f"use {its}get_value() and {its}set_value(value), which access the rows of all ranks"
                expected, got = "variables not divided by rows", f"{name}, which is divided (synkhronos.sharded)"
                raise ArgumentValueError(argument, expected, got, hint)
        names: Dict[int, str] = {}
        for number, name in zip(self.numbers, self.names):
            if number in names:
                got = f"{name}, which is listed twice (it shares the value of {names[number]})"
                raise ArgumentValueError(argument, "different variables", got)
            names[number] = name
        self.commands: Dict[Tuple[Any, ...], Command] = {}
        self._references = [weakref.ref(variable) for variable in variables]
        # Variables with the same storage have the number of the first one, which is valid while that variable exists.
        others = [replicator_of(session).variable(number) for number in self.numbers]
        self._others = [weakref.ref(other) for other, variable in zip(others, variables) if other is not variable]

    def holds(self, variables: Sequence[Any]) -> bool:
        """Return whether this object describes the given variables, and all of them are still alive."""
        for reference, variable in zip(self._references, variables):
            if reference() is not variable:
                return False
        return not self._others or all(reference() is not None for reference in self._others)

    @property
    def variables(self) -> List[Any]:
        """The variables; valid while the caller references them."""
        return [reference() for reference in self._references]

    def cache(self, key: Tuple[Any, ...], command: Command) -> Command:
        """Cache a command that is sent repeatedly; return it."""
        command.freeze()
        if len(self.commands) >= MAX_COMMANDS:
            self.commands.clear()
        self.commands[key] = command
        return command

    def run(self, kind: Callable[..., Command], *options: Any) -> Any:
        """Run the command ``kind(numbers, *options)``, which is cached by its options."""
        command = self.commands.get((kind, *options))
        if command is None:
            command = self.cache((kind, *options), kind(self.numbers, *options))
        return self.session.run(command)

    def run_with(
        self, values: Any, make: Callable[[List[StagedValue]], Command], *options: Any, batch: Any = None, axis: int = 0
    ) -> None:
        """Run the command of staged values, cached by the locations of `Data` that need no conversion: see `stage`."""
        key, command, each = None, None, [values] if self.single else values
        if type(each) in (list, tuple) and type(axis) is int and (batch is None or type(batch) is int):
            if all([type(value) is Data for value in each]):
                key = (*options, batch, axis, *[(value._handle(), value.minibatch) for value in each])
                command = self.commands.get(key)
        if command is None:
            staged = self.stage(values, batch, self.axes(axis) if axis else None)
            command = make(staged)
            if key is not None and all([value.is_in_place for value in staged]):
                self.cache(key, command)
        self.session.run(command)

    def check_op(self, op: Any, nccl: Any = True) -> ReduceOp:
        """Return the op if it supports all variables; select the CPU transport if ``nccl`` is False."""
        parsed = ReduceOp.parse(op, "op", COMBINING)
        for type_, name in zip(self.types, self.names):
            check_dtype(parsed, type_.dtype, name, COMBINING)
        return ReduceOp(parsed.name, parsed.on_host or not nccl)

    def check_targets(self, others: Any, argument: str) -> List[int]:
        """Return the numbers of the variables for results or errors; raise an error if their types do not match."""
        targets = checked(others, unused=True, argument=argument)
        if targets.single != self.single or len(targets.numbers) != len(self.numbers):
            expected = "one variable" if self.single else f"a list of length {len(self.numbers)}, like shared_vars"
            got = "one variable" if targets.single else f"a list of length {len(targets.numbers)}"
            raise ArgumentValueError(argument, expected, got)
        for name, type_, target, other in zip(self.names, self.types, targets.names, targets.types):
            if type_ != other:
                raise ArgumentTypeError(argument, f"type {type_.words}, like {name}", f"{target} of type {other.words}")
        return targets.numbers

    def check_rows(self, instead: str) -> None:
        """Refuse variables with 0 dimensions, which have no rows; ``instead`` is a hint."""
        for type_, name in zip(self.types, self.names):
            if type_.ndim == 0:
                got = f"{name} with 0 dimensions, which has no rows"
                raise ArgumentValueError("shared_vars", "variables with at least 1 dimension", got, instead)

    def check_count(self, i: int, count: int, what: str) -> None:
        """Refuse a number of rows other than 1 if the i-th variable's axis of rows is broadcastable."""
        if self.types[i].broadcastable[0] and count != 1:
            expected = "exactly 1 row, because the axis of rows is broadcastable"
            raise ArgumentTypeError(f"{what} {self.names[i]}", expected, str(count))

    def check_rank(self, rank: Any) -> int:
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
            raise ArgumentTypeError("rank", "an int", f"{rank!r} of type {type(rank).__name__}")
        if not 0 <= rank < self.session.size:
            raise ArgumentValueError("rank", f"an int from 0 to {self.session.size - 1}", str(rank))
        return int(rank)

    def one_or_list(self, results: Sequence[Any]) -> Any:
        """Return one result or a list of results, in the form of the argument."""
        return results[0] if self.single else list(results)

    def axes(self, axis: Any) -> List[int]:
        """Return the axis of rows of every variable, from the user's ``axis``."""
        if isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer)):
            raise ArgumentTypeError("axis", "an int", f"{axis!r} of type {type(axis).__name__}")
        return [type_.axis_of_rows(int(axis), name) for type_, name in zip(self.types, self.names)]

    def stage(self, values: Any, batch: Any = None, axes: Optional[Sequence[int]] = None) -> List[StagedValue]:
        """Store the user's values (one per variable, axis of rows first) in memory that all ranks can read.

        Values are `Data`, arrays, or anything else that the variable's own ``set_value`` accepts. Except for `Data`,
        only the rows selected by ``batch`` are copied. ``axes`` are the variables' axes of rows.
        """
        variables = self.variables
        if self.single:
            values = [values]
        elif not isinstance(values, (list, tuple)) or len(values) != len(variables):
            got = str(len(values)) if isinstance(values, (list, tuple)) else type(values).__name__
            expected = f"a list of length {len(variables)}, with one value per shared variable"
            raise ArgumentValueError("values", expected, got)
        arrays = []  # pairs: whether the array is used in place, and the array converted for its variable, rows first
        axes = axes or [0] * len(variables)
        for variable, name, value, random, axis in zip(variables, self.names, values, self.random, axes):
            if random and batch is not None:
                got = f"a selection for {name}, the state of a random stream, which has no rows"
                raise ArgumentValueError("batch", "None", got, "leave out batch")
            array = np.asarray(value.data) if isinstance(value, Data) else value  # drops the class np.memmap
            conformed = self.engine.coerce(variable, array, f"values for {name}")
            in_place = isinstance(value, Data) and conformed is array
            arrays.append((in_place, moved(conformed, axis, 0) if axis else conformed))
        chosen = None if batch is None else self._select(values, [conformed for _, conformed in arrays], batch)
        staged = []
        for variable, value, (in_place, conformed), random, axis in zip(variables, values, arrays, self.random, axes):
            if random:
                staged.append(StagedValue(None, None, self.engine.jumped(variable, conformed, 0), False))  # a copy
                continue
            whole = chosen is None or isinstance(value, Data) and value.minibatch  # a minibatch begins with these rows
            handle: Any
            if not in_place:
                rows = conformed if chosen is None or whole else chosen.take(conformed)
                kept = self.session.pool.allocate(rows.shape, rows.dtype)
                np.copyto(kept, rows)
                handle, whole = self.session.pool.handle(kept), True
            else:
                handle, kept = with_axis_first(value._handle(), axis) if axis else value._handle(), conformed
            taken: Optional[Selection] = None
            if kept.ndim:
                taken = chosen if not whole else RowRange(0, len(kept) if chosen is None else len(chosen))
            staged.append(StagedValue(handle, taken, kept, in_place))
        return staged

    def _select(self, values: Sequence[Any], arrays: Sequence[np.ndarray[Any, Any]], batch: Any) -> Selection:
        """Return the rows selected by ``batch``; minibatches already begin with the selected rows."""
        self.check_rows("leave out batch")
        minibatch = [isinstance(value, Data) and value.minibatch for value in values]
        whole = [len(array) for array, just_batch in zip(arrays, minibatch) if not just_batch]
        # If all values are minibatches, the indices cannot be checked against a data set.
        chosen = selection.parse(batch, min(whole) if whole else np.iinfo(np.intp).max, of="the shortest value")
        for name, array, just_batch in zip(self.names, arrays, minibatch):
            if just_batch and len(array) < len(chosen):
                raise ArgumentValueError(
                    f"values for {name}",
                    f"a minibatch with at least as many rows as batch selects ({len(chosen)})",
                    str(len(array)),
                    "write the selected rows to it first",
                )
        return chosen


class StagedValue(NamedTuple):
    """A value for a collective, in memory that all ranks can read."""

    handle: Any  # None for a random state, which is pickled instead of shared
    rows: Optional[Selection]  # the selected rows; None for a 0-dimensional value
    array: Any  # keeps the memory alive
    is_in_place: bool  # whether the array is the user's `Data`


def _number(session: Session, engine: Any, variable: Any, name: str, unused: bool, argument: str) -> int:
    """Return a variable's number; if ranks lack it, first send the functions that use it, or the variable alone."""
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
        except TypeError:  # some function cannot be pickled
            if replicator.find(engine, variable) is None:
                raise
        number = replicator.find(engine, variable)
    if number is None and unused:
        replicator.ensure_shared(engine, variable)
        number = replicator.find(engine, variable)
        logger.info("%s is stored on the ranks, although no synkhronos function uses it yet", name)
    if number is None:
        raise ArgumentValueError(
            argument,
            "variables that synkhronos functions use, so that the other ranks have them",
            f"{name}, which no such function uses",
            "build the functions that use it with synkhronos.function first",
        )
    return number
