"""Call plans, built once on the master for equal calls and cached by every rank.

A training loop repeats the same call with different rows. Because of the caches listed below, later calls need not
check a `Data`, divide rows, attach pool memory or pickle the command again. Every call still converts and copies plain
arguments, parses ``batch``, and attaches files and named memory. A command with a slice or number as ``batch`` is
pickled each time. Calls in slices or with sliceable variables are divided each time.

==================  ====================================  ============================  ==============================
cache               key                                   reused                        invalidated by
==================  ====================================  ============================  ==============================
`AcceptedData`      the input                             the check of a Data, and its  another Data, a new handle
                                                          `Argument`                    (the memory has moved), or a
                                                                                        changed ``minibatch``
`StagingBuffer`     the input, or the list of indices     memory for plain arguments    a larger array; another pool
                                                          and indices                   (in a forked child)
`Plans`             arguments, rows to divide, indices    the `CallPlan`, and the       `MAX_PLANS` later plans;
                    (as handles), slices, subset          command, pickled              another session
`RankPlan`          the plan's place, on each rank        attached arrays, this rank's  another plan in that place; the
                                                          parts, weights in             function dropped
                                                          collectives, updated entries
``row_buffers`` of  the function's number and the         memory for the rows that      more bytes of rows; the function
`CallMemory`        argument's, and whether the step's    indices select                dropped or freed
                    number is odd, on each rank
``_is_own`` of the  the compiled function's ``maker``     the list of outputs that      nothing, because compiled
graph engines       (weakly)                              need no copy                  functions never change
==================  ====================================  ============================  ==============================

Keys contain no data that changes between calls, because values and indices are written to the same shared memory before
the command is sent.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from ..memory.handles import Handle
from ..memory.ranges import Ranges, ranges_of
from ..reductions import ReduceOp
from ..runtime.command import Command
from ..runtime.context import Kept, RankContext
from ..runtime.news import MAX_NEWS_BYTES, News
from ..runtime.registry import COMMON, OWN, PROGRAM, RUNNING, SharedEntry
from ..runtime.session import Session
from ..selection import Indices, RowRange, moved
from ..trace import point
from .division import Division
from .rows_ahead import RowsAhead, pays_off

#: Maximum number of plans cached per function by the master and per graph by every rank.
MAX_PLANS = 8


class Argument(NamedTuple):
    """One argument of a call; ``kind`` determines the rows that a rank uses.

    "whole" means all rows, and "selected" means the rank's part of the selected rows. "batch" means the rank's part of
    an array that contains only the selected rows. A "value" is not an array and is sent pickled. A "state" is the
    rank's own value of a shared variable.
    """

    kind: str
    value: Any  # handle of the array, or pickle; for a state, the variable's number (at first, the input's position)
    mutable: bool = False  # the function may overwrite it, so a rank needs its own copy
    axis: int = 0  # the axis of rows in the function; transferred arrays have their rows first


class AfterCollective(NamedTuple):
    """The part of a sliced call to an exact function that is computed once, after all slices."""

    number: int  # registry number of the graph
    ops: Sequence[Optional[ReduceOp]]  # ops that combine the values from slices, by input; None if all are equal
    outputs: Sequence[Tuple[int, int]]  # positions of the outputs computed here: in the call and in the graph
    n_outputs: int  # number of the graph's outputs that precede the new values


class CallPlan(NamedTuple):
    """Description of a call for the ranks, except for the rows that ``batch`` selects."""

    number: int  # registry number of the function or its variant
    name: str  # name of the function in messages
    arguments: Sequence[Argument]  # in the order of the function's inputs
    indices: Any  # handle of the selected indices into the data set, before they are divided
    division: Division  # its shared_rows may be handles
    subset: Optional[Sequence[int]]  # positions of the requested outputs
    wanted: Optional[Sequence[int]]  # positions to request from the ranks' graph, including outputs with new values
    ops: Sequence[ReduceOp]  # one per requested output
    labels: Sequence[str]  # labels of the requested outputs in messages
    dtypes: Optional[Sequence[Any]]  # dtypes of scalar outputs that ranks send with their answers to save a barrier
    on_device: bool = False  # whether outputs may have to move between host and device, as in the engine's own function
    sliceable: Sequence[Tuple[int, int]] = ()  # numbers and axes of variables whose selected rows are additional inputs
    updates: Sequence[Tuple[int, Optional[ReduceOp]]] = ()  # variables whose new values are outputs; ops for slices
    replicated_updates: Optional[Sequence[bool]] = None  # by update: whether ranks without rows apply it
    alike: Sequence[bool] = ()  # by update: whether it is large, and all ranks compute the same new value; () if none
    divided: Sequence[bool] = ()  # by update: whether the graph returns a vector, see `graph.dividing`; () if none
    divides: bool = False  # whether these vectors are the rank's parts of the elements, and not whole values
    after_collective: Optional[AfterCollective] = None  # set for a sliced call to an exact function
    writes: Sequence[int] = ()  # if dead ranks are replaced: numbers of the variables that a call updates
    rows: Optional[int] = None  # the number of rows, if the graph requires one, as a number in the program


class CachedPlan:
    """A plan cached by the ranks under ``place`` (None if they do not cache it).

    ``updates`` names the variables that each rank updates independently. Once a call has succeeded, all ranks have the
    plan, and ``command`` is sent instead.
    """

    __slots__ = ("plan", "place", "updates", "skips", "command")

    def __init__(self, plan: CallPlan, place: Optional[Tuple[int, int]], updates: Sequence[str]) -> None:
        self.plan, self.place, self.updates, self.skips = plan, place, updates, plan.division.skips
        self.command: Optional[Command] = None


class FunctionVariables:
    """The function's shared variables by role; `calls.changes` handles all changes that these methods do not.

    The program's changes to ``watched`` variables are detected. ``common`` variables must be equal on all ranks: common
    random streams and, if the function is exact, non-random variables without rows. ``sent`` variables (``common``,
    values of inputs; if exact, all random streams) are sent to all ranks if the program changes them. The function
    changes ``updated``; new values of ``own`` depend on the rank's rows. ``states`` have batch rows; ``used`` do not.
    """

    def __init__(
        self,
        watched: Sequence[SharedEntry] = (),
        common: Sequence[SharedEntry] = (),
        sent: Sequence[SharedEntry] = (),
        updated: Sequence[SharedEntry] = (),
        own: Sequence[SharedEntry] = (),
        states: Sequence[Any] = (),
        used: Sequence[SharedEntry] = (),
    ) -> None:
        self.common, self.sent, self.own, self.states, self.used = common, sent, own, states, used
        self.all = [*watched, *(entry for entry in sent if entry not in watched)]
        #: Numbers of the dense arrays that are not random states.
        self.dense = {entry.number for entry in watched}
        self._as_news = {entry for entry in sent if entry.number in self.dense and not entry.on_device}
        self._updated = {entry.number for entry in updated}

    def are_unchanged(self) -> bool:
        """Return whether all values are certainly unchanged since the last command, and common values are equal."""
        for entry in self.all:
            if entry.cell[0] is not entry.known:
                return False
        for entry in self.common:
            if entry.origin is not COMMON:
                return False
        return True

    def news_of_few(self) -> Optional[List[News]]:
        """Record the small arrays that the program has replaced, and return the `News` for an exact function.

        Return None, and record nothing, if anything needs the general `calls.changes` instead. For a learning rate that
        the program sets before each call, this takes a third of the time of `calls.changes`.
        """
        news: List[News] = []
        changed: List[SharedEntry] = []
        nbytes = 0
        for entry in self.all:
            value, origin = entry.cell[0], entry.origin
            is_changed = value is not entry.known
            if not is_changed and (origin is COMMON or origin is OWN and entry not in self.common):
                continue
            if origin is not PROGRAM or entry.rows is not None or entry not in self._as_news:
                return None
            if is_changed:
                if entry.borrowed is None or entry.borrowed.value is not value or not entry.borrowed.is_new():
                    return None
                changed.append(entry)
            nbytes += value.nbytes
            if nbytes > MAX_NEWS_BYTES:
                return None
            news.append((entry.number, value.dtype.str, value.shape, value.tobytes()))
        for entry in changed:
            entry.borrowed, entry.known = None, entry.cell[0]
        return news

    def drop_old_values(self) -> None:
        """Drop references to old values before a long command, so that their memory can be freed."""
        for entry in self.all:
            if entry.known is not None:
                entry.known = RUNNING

    def record_step(self) -> None:
        """Record the state of arrays that the program may write to (``borrow=True``), after a step of a command."""
        if any(entry.borrowed is not None for entry in self.all):
            self.record()
            self.drop_old_values()

    def record(self) -> None:
        """Record the values after a command, so that later changes by the program are detected."""
        for entry in self.all:
            if entry.known is not None:
                entry.known = entry.cell[0]
            elif entry.borrowed is not None:
                entry.ran(entry.number in self._updated)
        for entry in self.own:
            entry.origin = OWN


class Plans:
    """The cached plans of one function in one session, and the function's shared variables there."""

    def __init__(self, session: Session, variables: FunctionVariables) -> None:
        self.session, self.variables = weakref.ref(session), variables
        self._cached: Dict[Any, CachedPlan] = {}
        self._next = 0

    def find(self, key: Any) -> Optional[CachedPlan]:
        return self._cached.get(key)

    def add(self, key: Any, plan: CallPlan, updates: Sequence[str]) -> CachedPlan:
        """Cache a plan unless it contains pickled values, and return it; if the cache is full, drop the oldest plan."""
        if any(argument.kind == "value" for argument in plan.arguments):
            return CachedPlan(plan, None, updates)  # a pickled value can be large and rarely repeats
        if len(self._cached) >= MAX_PLANS:
            del self._cached[next(iter(self._cached))]
        cached = self._cached[key] = CachedPlan(plan, (plan.number, self._next), updates)
        self._next = (self._next + 1) % MAX_PLANS
        return cached


class RankPlan:
    """A plan prepared on one rank, with all data that its calls share.

    ``pieces[i]``: the weight, rows and shared rows of this rank's slice i; the list is empty if the rank makes no call.
    With collectives, ``weights[i]``: all ranks' weights in slice i; ``rows[i]``: the start and end of this rank's rows
    in slice i, and the number of all rows. Without collectives, both lists are empty.
    """

    def __init__(self, plan: CallPlan, context: RankContext) -> None:
        self.plan, self.engine = plan, context.registry.functions[plan.number].engine
        self.pieces = plan.division.pieces(context.rank)
        #: Whether this rank contributes results; the updated variables, and the positions of those that it updates.
        self.counts = plan.division.takes_part(context.rank)
        self.entries = context.entries([number for number, _ in plan.updates])
        self.chosen = self.applied(self.counts)
        self.weights: List[Optional[Sequence[float]]] = []
        self.rows: List[Optional[Tuple[int, int, int]]] = []
        if plan.replicated_updates is not None:
            self.weights = [plan.division.slice_weights(i, context.root) for i in range(len(self.pieces))]
            self.rows = [plan.division.rows_of_slice(context.rank, piece) for piece in self.pieces]
        #: In slices: positions of the updates of random states, which advance from slice to slice.
        self.random: List[int] = []
        if plan.division.num_slices > 1:
            self.random = [i for i, one in enumerate(self.entries) if one.engine.is_random(one.reference())]
        #: Positions and axes of gathered outputs whose axis of rows is not the first axis.
        self.moved = [(i, op.axis) for i, op in enumerate(plan.ops) if op.axis]
        self._values: List[Any] = []
        self._indices: Optional[Indices] = None
        self._shared_rows: Any = None
        memory = context.kept(CallMemory)
        self._row_buffers, self.bytes_inside = memory.row_buffers, memory.bytes_inside
        if self.pieces:
            self._values = [_lasting(argument, self.engine, context) for argument in plan.arguments]
            self._indices = None if plan.indices is None else Indices(context.pools.here(plan.indices))
            if plan.division.shared_rows is not None:
                self._shared_rows = _selection(plan.division.shared_rows[context.rank], context)
        #: Handles of index lists on another host; the lists change from call to call.
        self._far_indices = [handle for handle in _indices_of(plan, context) if context.pools.is_far(handle)]
        self._parts = [None if self._indices is None else self._indices.part(*rows) for _, rows, _ in self.pieces]
        self._passing = [i for i, value in enumerate(self._values) if value is None]
        #: Positions of the arguments stored on another host.
        self._far = [i for i in self._passing if context.pools.is_far(plan.arguments[i].value)]

    def applied(self, counts: bool) -> List[int]:
        """Return the positions of the updates that this rank makes; ``counts``: whether it has rows."""
        return [i for i, is_common in enumerate(self.plan.replicated_updates or ()) if counts or is_common]

    @point("copy")
    def values(self, context: RankContext) -> List[Any]:
        """Return the whole value of every argument for one call; arrays on another host are not yet fetched."""
        if self._far_indices:
            context.pools.fetch(self._far_indices)
        values = list(self._values)
        for i in self._passing:
            kind, value, _, _ = self.plan.arguments[i]
            if kind == "state":
                continue  # `slice` reads the state, because steps change it
            if i in self._far:
                values[i] = context.pools.here(value)  # `slice` fetches the rows that it needs
            else:
                values[i] = cloudpickle.loads(value) if kind == "value" else context.pools.attach(value)
        return values

    def far(self, rows: Any) -> List[Ranges]:
        """Return the memory ranges that a call on ``rows`` (see `slice`) fetches from other hosts."""
        return [
            ranges_of(self.plan.arguments[j].value, self._numbers(i, j, self._part(i, rows)))
            for i in range(len(self.pieces) if self._far else 0)
            for j in self._far
        ]

    def _part(self, i: int, rows: Any) -> Any:
        """Return this rank's part of the rows to select in the i-th slice; None if there is nothing to select."""
        return self._parts[i] if rows is None else rows.part(*self.pieces[i][1])

    def _numbers(self, i: int, j: int, part: Any) -> Any:
        """Return the numbers of the j-th argument's rows that the i-th slice uses; None for all rows."""
        kind, (begin, end) = self.plan.arguments[j].kind, self.pieces[i][1]
        if kind not in ("selected", "batch"):
            return None
        return (part if kind == "selected" and part is not None else RowRange(begin, end, 1)).numbers

    @point("copy")
    def slice(
        self,
        i: int,
        values: Sequence[Any],
        rows: Any,
        shared_rows: Any,
        context: RankContext,
        ahead: Optional[RowsAhead] = None,
    ) -> List[Any]:
        """Return this rank's arguments for slice i; None for ``rows`` or ``shared_rows`` stands for the plan's rows.

        ``ahead`` has copied some of the rows: see `rows_ahead`.
        """
        turn = 0 if ahead is None else ahead.turn
        weight, (begin, end), shared_part = self.pieces[i]
        part = self._part(i, rows)
        is_view = part is not None and part.is_view
        for j in self._far:
            context.pools.fetch([self.plan.arguments[j].value], self._numbers(i, j, part))
        taken = []
        for j, ((kind, sent, mutable, axis), value) in enumerate(zip(self.plan.arguments, values)):
            if kind in ("selected", "batch") and type(value) is not np.ndarray and self.engine.is_on_device(value):
                rows_here = part if kind == "selected" and part is not None else RowRange(begin, end, 1)
                given = self.engine.take(value, rows_here)
            elif ahead is not None and j in ahead:
                given = ahead.take(j)
            elif kind == "selected" and part is not None:
                given = part.take(value, None if is_view else self._row_buffer(j, end - begin, value, turn))
            elif kind in ("selected", "batch"):
                given = value[begin:end]
            elif kind == "state":
                given = context.registry.shareds[sent].cell[0]
            else:
                given = value
            if mutable and kind == "value":
                given = cloudpickle.loads(sent)  # a new object for every slice
            elif mutable and isinstance(given, np.ndarray) and np.may_share_memory(given, value):
                given = given.copy()
            taken.append(moved(given, 0, axis) if axis else given)
        shared_rows = self._shared_rows if shared_rows is None else shared_rows
        if shared_rows is not None:
            of_slice = shared_rows.part(*shared_part)
            for number, axis in self.plan.sliceable:
                entry = context.registry.shareds[number]
                value = moved(entry.cell[0], axis, 0) if axis else entry.cell[0]
                given = entry.engine.take(value, of_slice)
                if shared_part[1] and not (weight or given.shape[0]):
                    row = value[:1] if value.shape[0] else _row_of_none(value)  # (empty variables have no first row)
                    given = entry.engine.to_device(entry.reference(), row)
                taken.append(moved(given, 0, axis) if axis else given)
        return taken

    def to_copy_ahead(self, values: Sequence[Any]) -> List[int]:
        """Return the positions of the arguments whose rows a step can copy ahead: see `rows_ahead`."""
        if len(self.pieces) != 1:
            return []
        (_, (begin, end), _), plan = self.pieces[0], self.plan
        found = [
            j
            for j, value in enumerate(values)
            if plan.arguments[j].kind == "selected" and type(value) is np.ndarray and j not in self._far
        ]
        return found if pays_off([values[j] for j in found], end - begin) else []

    def rows_ahead(self, chosen: Sequence[int], values: Sequence[Any], rows: Indices, turn: int) -> RowsAhead:
        """Return the rows of the ``chosen`` arguments in a later step, to be copied; ``turn`` alternates."""
        begin, end = self.pieces[0][1]
        part = rows.part(begin, end)
        copies = {j: (part, values[j], self._row_buffer(j, end - begin, values[j], turn)) for j in chosen}
        return RowsAhead(copies, turn)

    def _row_buffer(self, i: int, n_rows: int, array: np.ndarray[Any, Any], turn: int) -> np.ndarray[Any, Any]:
        """Return a reusable buffer for rows of the i-th argument; copying them to new memory takes twice as long."""
        shape = (n_rows,) + array.shape[1:]
        nbytes = array.itemsize * math.prod(shape)
        place, buffers = (self.plan.number, i, turn), self._row_buffers
        buffer = buffers.get(place)
        if buffer is None or buffer.nbytes < nbytes:
            buffers.pop(place, None)  # free the old buffer before allocating
            buffer = buffers[place] = np.empty(nbytes, np.uint8)
        return np.ndarray(shape, array.dtype, buffer)


class CallMemory(Kept):
    """By the numbers of a graph and of its plan, argument or collective: plans, buffers for rows, bytes reduced.

    ``seconds_of_step`` has the measured time of a step, by the numbers of a graph and of the ranks' rows.
    """

    of = "function"

    def __init__(self) -> None:
        self.plans: Dict[Tuple[int, int], RankPlan] = {}
        self.row_buffers: Dict[Tuple[int, int, int], np.ndarray[Any, Any]] = {}
        self.bytes_inside: Dict[Tuple[int, int], int] = {}
        self.seconds_of_step: Dict[Tuple[int, ...], float] = {}

    def saved(self) -> Dict[Tuple[int, int], CallPlan]:
        return {place: prepared.plan for place, prepared in self.plans.items()}

    def restore(self, saved: Dict[Tuple[int, int], CallPlan], context: RankContext) -> None:
        there = context.registry.functions  # a function may have been dropped meanwhile
        self.plans = {place: RankPlan(plan, context) for place, plan in saved.items() if plan.number in there}


def _row_of_none(value: Any) -> np.ndarray[Any, Any]:
    """Return a placeholder row that replaces an empty value in a call that does not count."""
    dtype = np.dtype(value.dtype)
    # Ones are safe divisors; zero is a valid index into a single row.
    return np.full((1, *value.shape[1:]), 1 if dtype.kind in "fc" else 0, dtype)


def _lasting(argument: Argument, engine: Any, context: RankContext) -> Optional[np.ndarray[Any, Any]]:
    """Return the array of an argument if it can be cached for later calls; else None.

    Files and named memory are not cached: they may be replaced, and each mapping needs a file descriptor. Memory on
    another host may have changed, unless it is constant.
    """
    handle = argument.value
    lasts = isinstance(handle, Handle) and (handle.constant > 0 or not context.pools.is_far(handle))
    if not lasts:
        return None
    array = context.pools.attach(handle)
    return engine.constant(context.rank, handle, array) if handle.on_device else array


def may_be_refused(plan: CallPlan, context: RankContext) -> bool:
    """Return whether another host may lack memory or files for the arguments; the result is equal on all ranks."""
    return context.pools.may_lack(argument.value for argument in plan.arguments)


def _selection(selection: Any, context: RankContext) -> Any:
    return selection if isinstance(selection, (RowRange, Indices)) else Indices(context.pools.here(selection))


def _indices_of(plan: CallPlan, context: RankContext) -> List[Any]:
    shared_rows = plan.division.shared_rows
    return [plan.indices, None if shared_rows is None else shared_rows[context.rank]]
