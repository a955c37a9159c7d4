"""Calls of a function in one command, each made by whichever rank is free, on all rows of its batch.

::

    every rank                                                 shared by all ranks
    ---------------------------------------------------------  -------------------------------------------------
    ── barrier: all are ready, or none begins ──
    as long as there is a batch:                               the next batch
        takes it, and calls the function on it                   and its lock
        does what the `Visits` of the program say: exchanges    their memory, the number of the next exchange,
        values with what all ranks share, say                    how many each rank has made; and a lock
    ── barrier: all batches are gone ──
    does what is left to do
    ── barrier: all are done ──
    answers: its batches and their outputs

Ranks are in no order, so nothing here is a collective: they meet in memory of the master alone. What one rank must not
see another do half of is done with a lock (`Region.alone`), which the kernel gives back when its holder dies; whoever
waits looks, in short steps, whether the command was given up: because a rank has failed or died, or is late.
"""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentValueError
from ..runtime.command import Amounts, Command
from ..runtime.context import RankContext
from ..runtime.session import Session, check_timeout
from ..sync.file_lock import FileLock
from .batches import read_all, selection
from .call import presented
from .calling import call
from .plan import Prepared
from .steps import Steps

#: Seconds from one look to the next of a rank that waits: the shortest and the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2e-5, 1e-3

#: The count of a rank that will make no more exchanges.
ENDED = 1 << 62

_NEXT, _ORDER, _COUNTS = range(3)  # places of the region's words; the counts of all ranks are the last of them


class Region:
    """What ranks have in common while their steps are in no order, as one rank sees it.

    Parameters
    ----------
    context : RankContext
    handle : handle
        Of the words, which `words` has made.
    n_batches : int
    staleness : int, optional
        How many exchanges a rank may be ahead of the slowest when it begins another step.
    """

    def __init__(self, context: RankContext, handle: Any, n_batches: int, staleness: Optional[int]) -> None:
        self.context, self.rank, self.size = context, context.rank, context.size
        self.n_batches, self.staleness = n_batches, staleness
        self._words = context.pools.attach(handle)
        self._locks: List[FileLock] = []
        for i in range(2):  # one for batches, one for exchanges
            self._locks.append(FileLock(context.pools.reopen(handle.pool), handle.offset + i))

    @staticmethod
    def words(pool: Any, size: int) -> Any:
        """Return the memory of a new region, which must live as long."""
        found = pool.allocate((_COUNTS + size,), np.int64)
        found[...] = 0
        return found

    def close(self) -> None:
        """Give the locks back."""
        for lock in self._locks:
            lock.close()

    def take(self) -> Optional[int]:
        """Return the next batch; None if they are gone."""
        with self._held(self._locks[0]):
            batch = int(self._words[_NEXT])
            if batch == self.n_batches:
                return None
            self._words[_NEXT] = batch + 1
        return batch

    @contextmanager
    def alone(self) -> Iterator[int]:
        """Be the only rank in such a block; have the number of the exchange that is made in it."""
        with self._held(self._locks[1]):
            number = int(self._words[_ORDER])
            self._words[_ORDER] = number + 1
            yield number

    def count(self) -> None:
        """Count an exchange of this rank; wait until it is not too far ahead of any that still makes some."""
        mine = int(self._words[_COUNTS + self.rank]) + 1
        self._words[_COUNTS + self.rank] = mine
        if self.staleness is not None:
            least, counts = mine - self.staleness, self._words[_COUNTS:]
            self._wait(lambda: bool(counts.min() >= least))

    def end(self) -> None:
        """Make no more exchanges: nobody waits for this rank any more."""
        self._words[_COUNTS + self.rank] = ENDED

    @contextmanager
    def _held(self, lock: FileLock) -> Iterator[None]:
        self._wait(lock.try_acquire)
        try:
            yield
        finally:
            lock.release()

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        pause = FIRST_PAUSE_S
        while not is_ready():
            self.context.barrier.look()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


class Visits(ABC):
    """What a rank does between its steps: made on the master, picklable, the same for all ranks."""

    @property
    @abstractmethod
    def writes(self) -> Sequence[int]:
        """The numbers of the shared variables that it changes."""

    @abstractmethod
    def begin(self, region: Region) -> Visit:
        """Return what one rank does."""


class Visit(ABC):
    """What this rank does between its steps. Values that others read or write are in `Region.alone`."""

    @abstractmethod
    def before(self) -> None:
        """Called before each step."""

    @abstractmethod
    def after(self, batch: int) -> None:
        """Called after each step, which was about that batch."""

    @abstractmethod
    def last(self) -> None:
        """Called once there are no batches for this rank any more, while others may still have some."""

    @abstractmethod
    def end(self) -> Any:
        """Called once all ranks have returned from `last`; return what the master is to know."""


class Made(NamedTuple):
    """A rank's answer: its batches, their outputs, and what its visit has returned."""

    batches: List[int]
    outputs: List[List[Any]]
    report: Any


class Result(NamedTuple):
    """What has become of all batches.

    Attributes
    ----------
    outputs
        In the form of a call, each with a leading axis of batches.
    rows : list of int
        How many rows each rank has taken.
    reports : list
        By rank.
    """

    outputs: Any
    rows: List[int]
    reports: List[Any]


class RunAsynchronously(Command):
    """Make the steps, each on one rank.

    Parameters
    ----------
    name : str
        The function's.
    steps : Steps
        Each rank may take all rows of each.
    words : handle
        Of the region.
    visits : Visits
    staleness : int, optional
    """

    has_steps = True
    repeats = False

    def __init__(self, name: str, steps: Steps, words: Any, visits: Visits, staleness: Optional[int]) -> None:
        self.name, self.steps, self.words, self.visits, self.staleness = name, steps, words, visits, staleness

    @property
    def title(self) -> str:
        return f"steps of function {self.name}"

    def undeposited(self, failed: bool) -> Sequence[int]:
        return sorted({*self.steps.plans[0].writes, *self.visits.writes})

    def details(self, context: RankContext) -> str:
        return f"{sum(self.steps.counts)} steps, asynchronous"

    def amounts(self, context: RankContext) -> Amounts:
        return Amounts("other", f"asynchronous {self.title}")

    def run(self, context: RankContext) -> Made:
        barrier, rank = context.barrier, context.rank
        block = barrier.block
        block.steps[rank] = block.undone[rank] = 0
        block.steps_command[rank] = barrier.command
        prepared = [Prepared(plan, context) for plan in self.steps.plans]
        values = prepared[0].values(context)
        region = Region(context, self.words, sum(self.steps.counts), self.staleness)
        try:
            visit = self.visits.begin(region)
            barrier.wait()
            made = Made([], [], None)
            self._make(region, visit, prepared, values, made)
            visit.last()
            region.end()
            barrier.wait()
            made = made._replace(report=visit.end())
            barrier.wait()  # a rank that has answered waits for nobody, so those who wait for a lock would give up
            return made
        finally:
            region.close()

    def _make(
        self, region: Region, visit: Visit, prepared: Sequence[Prepared], values: Sequence[Any], made: Made
    ) -> None:
        """Make steps until there are no batches any more."""
        steps, context = self.steps, region.context
        table, indices = context.pools.attach(steps.table), context.pools.attach(steps.indices)
        engine, counted = context.functions[steps.plans[0].number].engine, context.barrier.block.steps
        while True:
            context.barrier.check()
            batch = region.take()
            if batch is None:
                return
            visit.before()
            division, *row = table[batch].tolist()
            each = prepared[division]
            outputs, change, _ = call(each, values, selection(row, indices), None, context)
            change()
            made.batches.append(batch)
            on_host = [engine.to_host(output) for output in presented(each.plan, context, outputs)]
            made.outputs.append([np.array(one) if isinstance(one, np.ndarray) else one for one in on_host])
            counted[context.rank] = len(made.batches)
            visit.after(batch)

    def finish(self, results: List[Made], context: RankContext) -> Tuple[List[Any], List[int], List[Any]]:
        """Return the outputs, those of each batch in its place; the rows of every rank; what visits have returned."""
        in_order: List[Any] = [None] * sum(self.steps.counts)
        divisions, rows = context.pools.attach(self.steps.table)[:, 0], []
        for made in results:
            weights = [self.steps.plans[divisions[batch]].division.weights for batch in made.batches]
            rows.append(sum(1 if each is None else each[0] for each in weights))
            for batch, outputs in zip(made.batches, made.outputs):
                in_order[batch] = outputs
        return [_stacked(list(values)) for values in zip(*in_order)], rows, [made.report for made in results]


def _stacked(values: List[Any]) -> Any:
    """Return the values of all batches as one array, if all are arrays of one shape."""
    if {getattr(value, "shape", None) for value in values} == {np.shape(values[0])}:
        return np.stack(values)
    return values


def run_asynchronously(
    function: Any,
    session: Session,
    visits: Visits,
    args: Sequence[Any],
    kwargs: Dict[str, Any],
    batches: Sequence[Any],
    staleness: Optional[int] = None,
    timeout: Optional[float] = None,
) -> Result:
    """Have whichever rank is free make the next call of a function, until there are no batches.

    Parameters
    ----------
    function : Function
        Its steps are each rank's own: it has no collectives.
    session : Session
    visits : Visits
    args, kwargs, batches, timeout
        As for `Function.steps`.
    staleness : int, optional
        See `Region`.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, before any rank has begun.
    StateError, WorkerError, WorkerDied, WorkerTimeout
        As for `Function.steps`; the steps that errors count are each rank's own.
    """
    if function._variants.states:
        label = function.engine.label(next(iter(function._variants.states)), "a shared variable")
        expected = "one whose steps any rank can make, alone"
        raise ArgumentValueError("function", expected, f"one with the batch's rows in {label}: each rank has its own")
    if timeout is not None:
        check_timeout(timeout)
    name, values = function.name or "without a name", function._bind(tuple(args), kwargs, {})
    of_inputs, _ = read_all(batches, None, None)
    if session.hosts is not None:
        raise ArgumentValueError(
            "asynchronous", "False with several hosts", "True", "asynchronous ranks share memory and locks of one host"
        )
    with session.lock:
        session.check()
        function._plans_in(session)
        steps = function._planner.steps(function, session, values, of_inputs, None, None, 1, None, False, whole=True)
        if steps.plans[0].common is not None:
            expected = "one whose steps are each rank's own"
            got = f"{name}, in which ranks meet (synkhronos.ops, or exact=True)"
            raise ArgumentValueError("function", expected, got)
        words = Region.words(session.pool, session.size)
        command = RunAsynchronously(name, steps, session.pool.handle(words), visits, staleness)
        outputs, rows, reports = function._run(session, command, timeout, function._variants.updated_in_graph(False))
        function.last_rows, function._called_in = rows, weakref.ref(session)
    return Result(function._form.wrap(outputs, None), rows, reports)
