"""What calls of a function have in common: made once on the master, kept by every rank.

A training loop makes the same call again and again, of other rows. What a call keeps is in the table: a `Data` is not
checked again, nothing is divided or attached again, and the command is kept as bytes. In every call plain arguments are
converted and copied, ``batch`` is parsed, files and named memory are attached, and every rank unpickles the envelope. A
slice as ``batch`` is part of the command, which is then pickled each time, and calls in slices or with sliceable
variables are divided each time.

==================  ====================================  ============================  ==============================
what is kept        key                                   what is reused                what makes it invalid
==================  ====================================  ============================  ==============================
`Arguments.taken`   the input                             the check of a Data, and its  another Data, or its memory
                                                          `Argument`                    moved (another handle), or its
                                                                                        ``minibatch`` changed
`Arguments.staging` the input, or the list of indices     memory for plain arguments    another shape or dtype; another
                                                          and indices                   session (its pool)
`Plans`             arguments, rows to divide, indices    the `Plan`, and the command   `MAX_PLANS` later plans;
                    (as handles), slices, subset          pickled                       another session
`Prepared`          the plan's place, on each rank        arrays attached, this rank's  another plan in that place; the
                                                          parts, weights in collectives function dropped
``row_buffers``     the function's number and the         memory for the rows that      more bytes of rows; the function
of the context      argument's, on each rank              indices select                dropped or freed
``_is_own`` of a    the engine's function (weakly)        which outputs are the         nothing: such a function
graph's engine                                            caller's without a copy       never changes
==================  ====================================  ============================  ==============================

What changes from call to call is never part of a key: values and indices lie in shared memory at the same place, and
are written before the command is sent.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from ..memory.handles import FileHandle, Handle, NameHandle
from ..memory.ranges import Ranges, ranges_of
from ..reductions import ReduceOp
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.registry import RUNNING, Origin, SharedEntry
from ..runtime.session import Session
from ..selection import Indices, Rows, moved
from ..trace import point
from .division import Division

#: Plans that the master keeps of one function: the batches of an epoch, and the shorter one at its end. Ranks keep up
#: to that many for each of its graphs.
MAX_PLANS = 8


#: Bytes of an argument from which on hosts are asked whether they have memory for it, before a new call begins.
CHECK_FROM_BYTES = 1 << 20


class Argument(NamedTuple):
    """One argument of a call.

    ``kind`` says which rows of the array a rank takes: "whole" all of them, "selected" its part of the selected ones,
    "batch" its part of an array that holds the selected rows only. A "value" is not an array and travels pickled. A
    "state" is what the rank itself holds of a shared variable, which keeps the input's value between calls.
    """

    kind: str
    value: Any  # the handle of the array, or the pickle; of a state the input, in a plan the variable's number
    mutable: bool = False  # the function may destroy it, so a rank needs its own copy
    axis: int = 0  # where the function has the rows, which are first in what is sent


class SecondHalf(NamedTuple):
    """What a call of an exact function in slices computes once, after all of them.

    Attributes
    ----------
    number : int
        Of the graph, in the registry.
    ops : list of (ReduceOp or None)
        Of every value that the slices pass on: by what it is put together; None if all are the same.
    outputs : sequence of (int, int)
        Of the wanted outputs, which the graph computes, and the positions among its outputs.
    n_outputs : int
        How many outputs it has, before the new values.
    """

    number: int
    ops: Sequence[Optional[ReduceOp]]
    outputs: Sequence[Tuple[int, int]]
    n_outputs: int


class Plan(NamedTuple):
    """Everything about a call except which rows ``batch`` selects.

    Attributes
    ----------
    number : int
        The function's (or its variant's), in the registry.
    name : str
        How messages call it.
    arguments : sequence of Argument
        In the order of the function's inputs.
    indices : handle, optional
        If the call is about a list of rows of the whole data set: that list, before it is divided.
    division : Division
        Which rows every rank takes; its ``shared_rows`` may also be handles.
    subset : sequence of int, optional
        The outputs that are wanted.
    wanted : sequence of int, optional
        The same of the graph that the ranks call, which may have new values as further outputs.
    ops : list of ReduceOp
        One per wanted output.
    labels : list of str
        How messages call them.
    dtypes : list of dtype, or None
        Theirs, if all outputs are of 0 dimensions and travel with the ranks' answers, which saves a barrier.
    on_device : bool
        Whether outputs may have to be brought to where the engine's own function returns them.
    sliceable : list of (int, int)
        The shared variables whose rows are further inputs, and the axes along which they have these.
    updates : list of (int, ReduceOp or None)
        The shared variables whose new values are further outputs of the graph, in slices or with collectives, and how
        slices are combined.
    common : list of bool, optional
        If the function has collectives: which of these all ranks make, also those without rows.
    second_half : SecondHalf, optional
        Of a call of an exact function in slices.
    writes : list of int
        If dead ranks are replaced: the variables that a call updates.
    rows : int, optional
        The number of rows that the program has written, for a graph that divides rows itself.
    """

    number: int
    name: str
    arguments: Sequence[Argument]
    indices: Any
    division: Division
    subset: Optional[Sequence[int]]
    wanted: Optional[Sequence[int]]
    ops: Sequence[ReduceOp]
    labels: Sequence[str]
    dtypes: Optional[Sequence[Any]]
    on_device: bool = False
    sliceable: Sequence[Tuple[int, int]] = ()
    updates: Sequence[Tuple[int, Optional[ReduceOp]]] = ()
    common: Optional[Sequence[bool]] = None
    second_half: Optional[SecondHalf] = None
    writes: Sequence[int] = ()
    rows: Optional[int] = None

    def prepared(self, context: RankContext) -> Prepared:
        """Return the plan on one rank."""
        return Prepared(self, context)


class Kept:
    """A plan that the ranks keep.

    Attributes
    ----------
    plan : Plan
    place : (int, int) or None
        The place at which they keep it; None if they do not.
    updates : list of str
        The variables that each rank updates by itself.
    skips : bool
        Whether ranks without rows make no call, while others do.
    command : Command, optional
        Sent from the second call on, if that is always the same.
    known : bool
        Whether all ranks have it: after a call in which nothing went wrong.
    """

    __slots__ = ("plan", "place", "updates", "skips", "command", "known")

    def __init__(self, plan: Plan, place: Optional[Tuple[int, int]], updates: Sequence[str]) -> None:
        self.plan, self.place, self.updates, self.skips = plan, place, updates, plan.division.skips
        self.command: Optional[Command] = None
        self.known = False


class Plans:
    """The plans that the ranks of one session keep of one function.

    Parameters
    ----------
    session : Session
    watched : sequence of SharedEntry
        The variables that the program may change on the master: the function uses them.
    common : sequence of SharedEntry
        Those that must be the same on all ranks, because the function is exact.
    given : sequence of SharedEntry
        Those in which the master's value counts on all ranks if the program has changed it: `common`, those that keep
        values of inputs, and random streams.
    updated : sequence of SharedEntry
        Those that the function updates.
    own : sequence of SharedEntry
        Of these, what every rank updates by its own rows.
    states : sequence of State
        Those that have the batch's rows, in no other list; see `state_rows`.
    used : sequence of SharedEntry
        All others that the function uses.
    """

    def __init__(
        self,
        session: Session,
        watched: Sequence[SharedEntry] = (),
        common: Sequence[SharedEntry] = (),
        given: Sequence[SharedEntry] = (),
        updated: Sequence[SharedEntry] = (),
        own: Sequence[SharedEntry] = (),
        states: Sequence[Any] = (),
        used: Sequence[SharedEntry] = (),
    ) -> None:
        self.session, self.watched, self.common, self.given = weakref.ref(session), watched, common, given
        self.own, self.states, self.used = own, states, used
        self.all = [*watched, *(entry for entry in given if entry not in watched)]
        #: The numbers of dense arrays that are no random states.
        self.dense = {entry.number for entry in watched}
        self._updated = {entry.number for entry in updated}
        self._kept: Dict[Any, Kept] = {}
        self._next = 0

    def find(self, key: Any) -> Optional[Kept]:
        """Return the plan that was made for an equal key."""
        return self._kept.get(key)

    def add(self, key: Any, plan: Plan, updates: Sequence[str]) -> Kept:
        """Keep a plan, in the place of the oldest if there are enough of them."""
        if any(argument.kind == "value" for argument in plan.arguments):
            return Kept(plan, None, updates)  # of any size, and rarely the same again
        if len(self._kept) >= MAX_PLANS:
            del self._kept[next(iter(self._kept))]
        kept = self._kept[key] = Kept(plan, (plan.number, self._next), updates)
        self._next = (self._next + 1) % MAX_PLANS
        return kept

    def are_known(self) -> bool:
        """Return whether the variables hold what commands have left in them; for 20 it takes 0.3 microseconds."""
        for entry in self.all:
            if entry.cell[0] is not entry.known:
                return False
        return True

    def are_common(self) -> bool:
        """Return whether all ranks have the same values of what they must have in common."""
        for entry in self.common:
            if entry.origin is not Origin.COMMON:
                return False
        return True

    def release(self) -> None:
        """Let go of what the variables held before a long command, in which functions may put new values beside it."""
        for entry in self.all:
            if entry.known is not None:
                entry.known = RUNNING

    def note_step(self) -> None:
        """Note what a step has left of what the program has borrowed, in the middle of a long command."""
        if any(entry.borrowed is not None for entry in self.all):
            self.note()
            self.release()

    def note(self) -> None:
        """Note what the variables hold after a command."""
        for entry in self.all:
            if entry.known is not None:
                entry.known = entry.cell[0]
            elif entry.borrowed is not None:
                entry.ran(entry.number in self._updated)
        for entry in self.own:
            entry.origin = Origin.OWN


class Prepared:
    """A plan on one rank: what can be done once for all calls.

    Attributes
    ----------
    pieces : list of (int, (int, int), (int, int))
        For every slice on which this rank calls the function: its weight, its rows, and its rows of the sliceable
        shared variables. Empty if the rank makes no call.
    weights : list of (list of float, or None)
        If the function has collectives: for every slice, what the ranks weigh in them.
    rows : list of (int, int), or None
        Likewise: how many rows this rank computes with, and all ranks in the whole call.
    """

    def __init__(self, plan: Plan, context: RankContext) -> None:
        self.plan = plan
        self.pieces = plan.division.pieces(context.rank)
        self.weights: List[Optional[Sequence[float]]] = []
        self.rows: List[Optional[Tuple[int, int, int]]] = []
        if plan.common is not None:
            self.weights = [plan.division.slice_weights(i, context.root) for i in range(len(self.pieces))]
            self.rows = [plan.division.rows_of_slice(context.rank, piece) for piece in self.pieces]
        #: Outputs with rows along another axis than the first, where they are gathered.
        self.moved = [(i, op.axis) for i, op in enumerate(plan.ops) if op.axis]
        self._values: List[Any] = []
        self._indices: Optional[Indices] = None
        self._shared_rows: Any = None
        if self.pieces:
            self._values = [_lasting(argument, context) for argument in plan.arguments]
            self._indices = None if plan.indices is None else Indices(context.pools.here(plan.indices))
            if plan.division.shared_rows is not None:
                self._shared_rows = _selection(plan.division.shared_rows[context.rank], context)
        #: Lists of indices that lie on another host, where they change from call to call.
        self._far_indices = [handle for handle in _indices_of(plan, context) if context.pools.is_far(handle)]
        # Of the same list of indices a rank takes the same part in every call.
        self._parts = [None if self._indices is None else self._indices.part(*rows) for _, rows, _ in self.pieces]
        self._passing = [i for i, value in enumerate(self._values) if value is None]
        #: The arguments that lie on another host.
        self._far = [i for i in self._passing if context.pools.is_far(plan.arguments[i].value)]

    @point("copy")
    def values(self, context: RankContext) -> List[Any]:
        """Return the whole value of every argument, for one call; what lies on another host is not there yet."""
        if self._far_indices:
            context.pools.fetch(self._far_indices)
        values = list(self._values)
        for i in self._passing:
            kind, value, _, _ = self.plan.arguments[i]
            if kind == "state":
                continue  # `slice` takes it: steps change it
            if i in self._far:
                values[i] = context.pools.here(value)  # `slice` brings what it takes of it
            else:
                values[i] = cloudpickle.loads(value) if kind == "value" else context.pools.attach(value)
        return values

    def far(self, rows: Any) -> List[Ranges]:
        """Return what a call, of ``rows`` as `slice` takes them, fetches from other hosts."""
        return [
            ranges_of(self.plan.arguments[j].value, self._numbers(i, j, self._part(i, rows)))
            for i in range(len(self.pieces) if self._far else 0)
            for j in self._far
        ]

    def _part(self, i: int, rows: Any) -> Any:
        """Return this rank's part of the rows of a call, in its i-th slice; None if the call is about all rows."""
        return self._parts[i] if rows is None else rows.part(*self.pieces[i][1])

    def _numbers(self, i: int, j: int, part: Any) -> Any:
        """Return the numbers of the rows of the j-th argument that the i-th slice takes; None if it takes all."""
        kind, (begin, end) = self.plan.arguments[j].kind, self.pieces[i][1]
        if kind not in ("selected", "batch"):
            return None
        return (part if kind == "selected" and part is not None else Rows(begin, end, 1)).numbers

    @point("copy")
    def slice(self, i: int, values: Sequence[Any], rows: Any, shared_rows: Any, context: RankContext) -> List[Any]:
        """Return what this rank gives to the function for its i-th slice.

        Parameters
        ----------
        i : int
        values : sequence
            From `values`.
        rows : Selection, optional
            The rows of the whole data set that the call is about; those of the plan by default.
        shared_rows : Selection, optional
            This rank's rows of its sliceable shared variables; those of the plan by default.
        context : RankContext
        """
        weight, (begin, end), shared_part = self.pieces[i]
        part = self._part(i, rows)
        for j in self._far:
            context.pools.fetch([self.plan.arguments[j].value], self._numbers(i, j, part))
        taken = []
        for j, ((kind, sent, mutable, axis), value) in enumerate(zip(self.plan.arguments, values)):
            if kind == "selected" and part is not None:
                buffer = None if part.is_view else self._row_buffer(context, j, end - begin, value)
                given = part.take(value, buffer)
            elif kind in ("selected", "batch"):
                given = value[begin:end]
            elif kind == "state":
                given = context.shareds[sent].cell[0]
            else:
                given = value
            if mutable and kind == "value":
                given = cloudpickle.loads(sent)  # another one for every slice
            elif mutable and np.may_share_memory(given, value):
                given = given.copy()
            taken.append(moved(given, 0, axis) if axis else given)
        shared_rows = self._shared_rows if shared_rows is None else shared_rows
        if shared_rows is not None:
            of_slice = shared_rows.part(*shared_part)
            for number, axis in self.plan.sliceable:
                entry = context.shareds[number]
                value = moved(entry.cell[0], axis, 0) if axis else entry.cell[0]
                given = entry.engine.take(value, of_slice)
                if shared_part[1] and not (weight or given.shape[0]):
                    row = value[:1] if value.shape[0] else _row_of_none(value)  # of another it has none, perhaps
                    given = entry.engine.to_device(entry.reference(), row)
                taken.append(moved(given, 0, axis) if axis else given)
        return taken

    def _row_buffer(
        self, context: RankContext, i: int, n_rows: int, array: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Return memory for rows of the i-th argument, the same for every call: fresh memory takes twice the time."""
        shape = (n_rows,) + array.shape[1:]
        nbytes = array.itemsize * math.prod(shape)
        buffer = context.row_buffers.get((self.plan.number, i))
        if buffer is None or buffer.nbytes < nbytes:
            context.row_buffers.pop((self.plan.number, i), None)  # given back before the new one is taken
            buffer = context.row_buffers[self.plan.number, i] = np.empty(nbytes, np.uint8)
        return np.ndarray(shape, array.dtype, buffer)


def _row_of_none(value: Any) -> np.ndarray[Any, Any]:
    """Return a row for a call that does not count, like those of a value that has none."""
    dtype = np.dtype(value.dtype)
    # Numbers that can be divided by; positions in what has one alone.
    return np.full((1, *value.shape[1:]), 1 if dtype.kind in "fc" else 0, dtype)


def _lasting(argument: Argument, context: RankContext) -> Optional[np.ndarray[Any, Any]]:
    """Return the array of an argument if it can be kept for later calls.

    Files and named memory are attached for every call: they may be replaced, and every mapping takes a descriptor. What
    lies on another host may have changed there, unless it is never written.
    """
    handle = argument.value
    lasts = isinstance(handle, Handle) and (handle.constant > 0 or not context.pools.is_far(handle))
    return context.pools.attach(handle) if lasts else None


def may_be_refused(plan: Plan, context: RankContext) -> bool:
    """Return whether another host may lack the memory for the arguments, or their files; the same on all ranks."""
    return context.pools.spans_hosts and any(_is_large(argument.value) for argument in plan.arguments)


def _is_large(value: Any) -> bool:
    if isinstance(value, Handle):
        return value.constant > 0 or math.prod(value.shape) * value.dtype.itemsize >= CHECK_FROM_BYTES
    return isinstance(value, (FileHandle, NameHandle))


def _selection(selection: Any, context: RankContext) -> Any:
    """Return the selection, which may be a handle of its indices."""
    return selection if isinstance(selection, (Rows, Indices)) else Indices(context.pools.here(selection))


def _indices_of(plan: Plan, context: RankContext) -> List[Any]:
    """Return the handles of the lists of indices that this rank uses."""
    shared_rows = plan.division.shared_rows
    return [plan.indices, None if shared_rows is None else shared_rows[context.rank]]
