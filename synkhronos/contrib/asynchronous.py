"""Asynchronous steps: one command whose calls run on any free rank, each on all rows of its batch.

::

    every rank                                                 shared by all ranks
    ---------------------------------------------------------  -------------------------------------------------
    ── barrier: all ranks are ready, or none begins ──
    while batches remain:                                      the next batch
        fetch a batch and call the function on it                and its lock
        run the hooks (`StepHooks`): for example, exchange        the hooks' memory, the number of the next exchange,
        values with memory that all ranks share                  a count per rank; and a lock
    run the hook `last`
    ── barrier: all ranks have finished their batches ──
    run the hook `end`
    ── barrier: all ranks have finished their hooks ──
    answer: this rank's batches, their outputs, and the hooks' report

Ranks run in no fixed order, so they use no collectives, only the master's shared memory. Locks exclude other ranks from
memory that one rank is writing; the kernel releases a lock when its owner dies. A waiting rank polls at short
intervals, and thus notices if the command is aborted because a rank failed, died or is late.
"""

from __future__ import annotations

import copy
import time
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..calls.batches import read_all, selection
from ..calls.command import presented
from ..calls.rank_call import RankCall
from ..calls.rank_steps import RankSteps, StepSequence
from ..collectives.arguments import checked
from ..errors import ArgumentValueError
from ..runtime.command import Command, CommandStats
from ..runtime.context import RankContext
from ..runtime.registry import Origin
from ..runtime.session import check_timeout
from ..sync.file_lock import FileLock
from ..transports.base import TrafficCounter

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2e-5, 1e-3

#: Exchange count of a rank that has finished exchanging.
FINISHED_COUNT = 1 << 62

_NEXT, _ORDER, _COUNTS = range(3)  # positions in the region's array; the ranks' exchange counts begin at _COUNTS


class AsyncRegion:
    """Memory and locks that all ranks share during asynchronous steps, as seen from one rank.

    After an exchange, a rank waits while its lead over an active rank exceeds ``staleness`` exchanges (None: no limit).
    """

    def __init__(self, context: RankContext, handle: Any, n_batches: int, staleness: Optional[int]) -> None:
        self.context, self.rank, self.size = context, context.rank, context.size
        self.n_batches, self.staleness = n_batches, staleness
        self._words = context.pools.attach(handle)
        self._locks: List[FileLock] = []
        for i in range(2):  # one lock for batches, one for exchanges
            self._locks.append(FileLock(context.pools.reopen(handle.pool), handle.offset + i))

    def close(self) -> None:
        for lock in self._locks:
            lock.close()

    def attach(self, handle: Any) -> Any:
        return self.context.pools.attach(handle)

    @property
    def traffic(self) -> TrafficCounter:
        return self.context.transport.traffic

    def next_batch(self) -> Optional[int]:
        """Claim the next batch for this rank; return its number, or None if no batches remain."""
        with self._locked(self._locks[0]):
            batch = int(self._words[_NEXT])
            if batch == self.n_batches:
                return None
            self._words[_NEXT] = batch + 1
        return batch

    @contextmanager
    def alone(self) -> Iterator[int]:
        """Exclude all other ranks from this block; yield the number of the exchange."""
        with self._locked(self._locks[1]):
            number = int(self._words[_ORDER])
            self._words[_ORDER] = number + 1
            yield number

    def count(self) -> None:
        """Count an exchange by this rank; wait until its lead over every active rank is at most ``staleness``."""
        mine = int(self._words[_COUNTS + self.rank]) + 1
        self._words[_COUNTS + self.rank] = mine
        if self.staleness is not None:
            least, counts = mine - self.staleness, self._words[_COUNTS:]
            self._wait(lambda: bool(counts.min() >= least))

    def end(self) -> None:
        """Mark this rank as finished, so that no rank waits for its exchanges."""
        self._words[_COUNTS + self.rank] = FINISHED_COUNT

    @contextmanager
    def _locked(self, lock: FileLock) -> Iterator[None]:
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


class StepHooks:
    """One rank's hooks between asynchronous steps, which may change the shared variables with these ``numbers``.

    The program creates one object. Every rank works with a copy, which has the rank's ``region``, and no attributes
    whose names begin with an underscore. Access to other ranks' values requires `AsyncRegion.alone`. ``has_begun``:
    whether the ranks may already have changed values; valid only for the program's object.
    """

    region: AsyncRegion

    def __init__(self, shareds: Sequence[Any]) -> None:
        variables = checked(shareds)
        self._session, self.numbers, self.has_begun = variables.session, list(variables.numbers), False

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def shared(self, values: Any) -> Tuple[Any, Any]:
        """Copy values into an array that all ranks share; return it and its handle, for `AsyncRegion.attach`."""
        array = self._session.pool.allocate(np.shape(values), np.asarray(values).dtype)
        array[...] = values
        return array, self._session.pool.handle(array)

    def values(self) -> List[Any]:
        """Return this rank's values of the shared variables."""
        return [np.asarray(entry.engine.to_host(entry.cell[0])) for entry in self._entries]

    def put(self, values: Sequence[Any]) -> None:
        """Set this rank's values of the shared variables."""
        for entry, value in zip(self._entries, values):
            entry.set(entry.engine.to_device(entry.reference(), value), Origin.OWN)

    def begin(self, region: AsyncRegion) -> None:
        """Run on each rank's copy before its first step."""
        self.region = region
        self._entries = [region.context.registry.shareds[number] for number in self.numbers]

    def before(self) -> None:
        """Run before each step."""

    def after(self, batch: int) -> None:
        """Run after each step, with the number of its batch."""

    def last(self) -> None:
        """Run after this rank's last step; other ranks may still be working."""

    def end(self) -> Any:
        """Run after all ranks have returned from `last`; return this rank's report to the master."""


class AsyncState(NamedTuple):
    """Answer of one rank: its batches, their outputs, and the report of its hooks."""

    batches: List[int]
    outputs: List[List[Any]]
    report: Any


class Result(NamedTuple):
    """Result of asynchronous steps; the values of an output are stacked, or listed if their shapes differ."""

    outputs: Any  # in the form of one call's outputs, with the values of all batches in order
    reports: List[Any]  # by rank


class RunAsynchronously(Command):
    """Run every step on any free rank; ``words`` is the handle of the region's memory."""

    has_steps = True
    repeats = False

    def __init__(self, name: str, steps: StepSequence, words: Any, hooks: StepHooks, staleness: Optional[int]) -> None:
        self.name, self.steps, self.words, self.hooks, self.staleness = name, steps, words, hooks, staleness

    @property
    def title(self) -> str:
        return f"steps of function {self.name}"

    def unsaved(self, failed: bool) -> Sequence[int]:
        return sorted({*self.steps.plans[0].writes, *self.hooks.numbers})

    def details(self, context: RankContext) -> str:
        return f"asynchronous steps: {sum(self.steps.counts)}"

    def amounts(self, context: RankContext) -> CommandStats:
        return CommandStats("other", f"asynchronous {self.title}")

    def run(self, context: RankContext) -> AsyncState:
        barrier, own = context.barrier, RankSteps(self.steps, context)
        region = AsyncRegion(context, self.words, sum(self.steps.counts), self.staleness)
        try:
            self.hooks.has_begun = True
            hooks = copy.copy(self.hooks)
            hooks.begin(region)
            barrier.wait()
            batches, outputs = self._make(hooks, own)
            hooks.last()
            region.end()
            barrier.wait()
            made = AsyncState(batches, outputs, hooks.end())
            barrier.wait()  # an answer before this barrier would abort the command while the master waits for a lock
            return made
        finally:
            region.close()

    def _make(self, hooks: StepHooks, own: RankSteps) -> Tuple[List[int], List[List[Any]]]:
        """Run steps until no batches remain; return the numbers of this rank's batches, and their outputs."""
        steps, region, context = self.steps, hooks.region, hooks.region.context
        batches: List[int] = []
        made: List[List[Any]] = []
        table, indices = context.pools.attach(steps.table), context.pools.attach(steps.indices)
        engine, counted = context.registry.functions[steps.plans[0].number].engine, context.barrier.block.steps
        while True:
            context.barrier.check()
            batch = region.next_batch()
            if batch is None:
                return batches, made
            hooks.before()
            division, *row = table[batch].tolist()
            found = RankCall(own.prepared[division], own.values, selection(row, indices), None, context).run()
            found.change()
            batches.append(batch)
            on_host = [engine.to_host(output) for output in presented(steps.plans[division], context, found.outputs)]
            made.append([np.array(one) if isinstance(one, np.ndarray) else one for one in on_host])
            counted[context.rank] = len(batches)
            hooks.after(batch)

    def finish(self, results: List[AsyncState], context: RankContext) -> Tuple[List[Any], List[int], List[Any]]:
        """Return each output's values in batch order, the number of rows per rank, and the hooks' reports."""
        in_order: List[Any] = [None] * sum(self.steps.counts)
        divisions, rows = context.pools.attach(self.steps.table)[:, 0], []
        for made in results:
            weights = [self.steps.plans[divisions[batch]].division.weights for batch in made.batches]
            rows.append(sum(1 if each is None else each[0] for each in weights))
            for batch, outputs in zip(made.batches, made.outputs):
                in_order[batch] = outputs
        return [_stacked(list(values)) for values in zip(*in_order)], rows, [made.report for made in results]


def _stacked(values: List[Any]) -> Any:
    """Return the values of all batches as one array if their shapes are equal, else as a list."""
    if {getattr(value, "shape", None) for value in values} == {np.shape(values[0])}:
        return np.stack(values)
    return values


def run_asynchronously(
    function: Any,
    hooks: StepHooks,
    args: Sequence[Any],
    kwargs: Dict[str, Any],
    batches: Sequence[Any],
    staleness: Optional[int] = None,
    timeout: Optional[float] = None,
) -> Result:
    """Call a function once per batch, each call on any free rank; the function must not contain collectives.

    ``args``, ``kwargs``, ``batches`` and ``timeout`` are as in `Function.steps`; `AsyncRegion` explains
    ``staleness``. Step numbers in errors count each rank's own steps.
    """
    independent = "a function that any rank can call independently"
    if function._variants.states:
        label = function.engine.label(next(iter(function._variants.states)), "a shared variable")
        raise ArgumentValueError("function", independent, f"a function that divides the rows of {label}")
    if timeout is not None:
        check_timeout(timeout)
    name, values, session = function.name or "without a name", function._bind(tuple(args), kwargs, {}), hooks._session
    of_inputs, _ = read_all(batches, None, None)
    if session.hosts.are_several:
        raise ArgumentValueError(
            "asynchronous", "False with several hosts", "True", "asynchronous ranks share memory and locks of one host"
        )
    with session.lock:
        session.check()
        function._plans_in(session)
        steps = function._planner.steps(function, session, values, of_inputs, None, None, 1, None, False, whole=True)
        if steps.plans[0].replicated_updates is not None:
            got = f"function {name}, which contains collectives (synkhronos.ops, or exact=True)"
            raise ArgumentValueError("function", independent, got)
        words, handle = hooks.shared(np.zeros(_COUNTS + session.size, np.int64))  # `words` keeps the memory alive
        command = RunAsynchronously(name, steps, handle, hooks, staleness)
        outputs, rows, reports = function._run(session, command, timeout, function._variants.updated_in_graph(False))
        function.last_rows, function._called_in = rows, weakref.ref(session)
    return Result(function._form.wrap(outputs, None), reports)
