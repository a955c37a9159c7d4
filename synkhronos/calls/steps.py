"""Many calls to a function in one command: each rank computes its part of every call, step by step.

::

    f.steps(x, batches=[...])                                                                    where
    ------------------------------------------------------------------------------------------  -----------------------
    read     all batches, from sequences or generators                                           batches.read_all
    table    the rows of every step, in two arrays                                               Arguments.prepare_steps
    plans    one plan per division, shared by steps with equal numbers of rows                   PlanBuilder.steps
    run      every rank:  allocate memory for the outputs of all steps                           RankSteps
                          for each step:  select rows, call the engine, store the outputs        RunSteps.run
    finish   the master:  combine the outputs in the memory of all ranks                         Combiner

Between steps, ranks wait for each other only in collectives of the graph and for ``on_step`` (see `LastStep`). Before
each step, a rank checks the control block for an abort. After the step, it writes its step count to the block.

A command ends after a step if ``on_step`` changes a value that all ranks need; the next command sends the value. If
dead ranks are replaced, a command takes about a second, so that a death costs little work.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentValueError
from ..runtime.command import Command, CommandStats
from ..runtime.context import RankContext
from ..selection import moved
from ..sync.control_block import STOP_REQUESTED
from .command import presented, rounded
from .on_step import OnStep
from .plan import CallPlan
from .rank_steps import RankSteps, StepSequence, rows_taken
from .step_outputs import Combiner, Stored
from .steps_together import StepsTogether
from .together import combined, is_possible


class StepsAnswer(NamedTuple):
    n_steps: int  # number of completed steps, equal on all ranks
    stored: Stored
    totals: Optional[List[Any]]  # on the master, with `total`: accumulated outputs, None for gathered ones
    plans: Optional[Sequence[CallPlan]]  # on the master: the plans, with the divisions that the graph itself made


class LastStep:
    """The ranks' agreement on the last step, if ``on_step`` may end the steps early.

    In functions with collectives and exact functions, ranks exchange after every step whether it was the last. Ranks of
    other functions end after the furthest step of any. If one thread runs all ranks (``of_all``), they end at once.
    """

    def __init__(self, steps: StepSequence, context: RankContext, of_all: bool = False) -> None:
        self._context, self._words, self._of_all = context, context.barrier.block.words, of_all
        self._n_steps, asks = sum(steps.counts), steps.asks and not of_all
        self._meets = asks and (steps.is_collective or steps.is_exact)
        self._may_end = asks and not self._meets
        self.is_requested = False

    def is_before(self, i: int) -> bool:
        if self._may_end and self._words[STOP_REQUESTED] >= self._context.barrier.command:
            self._agree(i)
        return i == self._n_steps

    def request(self) -> None:
        self.is_requested = True
        if not self._of_all:
            self._words[STOP_REQUESTED] = self._context.barrier.command

    def end_step(self, i: int) -> None:
        ends = self.is_requested and self._of_all
        if self._meets:
            notice = b"end" if self.is_requested else b""
            ends = b"end" in self._context.barrier.exchange(notice, self._context.pool, self._context.pools)
        if ends:
            self._n_steps = i + 1

    def settle(self) -> int:
        if self._may_end:
            self._agree(self._n_steps)  # other ranks may be waiting to agree on the last step
        return self._n_steps

    def _agree(self, n_begun: int) -> None:
        barrier, pool, pools = self._context.barrier, self._context.pool, self._context.pools
        self._may_end, self._n_steps = False, max(map(int, barrier.exchange(str(n_begun).encode(), pool, pools)))


class RunSteps(Command):
    """Run the steps on every rank, and combine the outputs on the master; only the master has ``on_step``."""

    has_steps = True
    _on_step: Optional[OnStep] = None
    _n_reported = 0  # number of steps reported to `on_step`, which are not reported again if the command is repeated
    ends_early = False  # whether `on_step` has returned False or changed a value that all ranks need

    def __init__(self, name: str, steps: StepSequence, on_step: Optional[OnStep] = None) -> None:
        self.name, self.steps = name, steps
        self._on_step = on_step

    def __getstate__(self) -> Any:
        return {"name": self.name, "steps": self.steps}

    @property
    def title(self) -> str:
        return f"steps of function {self.name}"

    def unsaved(self, failed: bool) -> Sequence[int]:
        return self.steps.plans[0].writes if failed else ()  # completed steps before the failure keep their updates

    def refusal(self) -> str:
        alone = "" if self._on_step is None else ", ".join(self._on_step.alone)
        return alone and f"on_step has changed {alone}, so the steps cannot be repeated"

    def details(self, context: RankContext) -> str:
        return f"steps: {sum(self.steps.counts)}"

    def amounts(self, context: RankContext) -> CommandStats:
        weights = [plan.division.weights for plan in self.steps.plans]
        n_steps, rows = max(0, context.barrier.block.steps[context.rank] - self.steps.begin), -1
        if n_steps == sum(self.steps.counts) and None not in weights:  # otherwise, counting the rows requires the table
            rows = int(sum(n * some[context.rank] for n, some in zip(self.steps.counts, weights) if some))
        return CommandStats("steps", self.name, rows, arrays=n_steps)

    def reads(self, context: RankContext) -> Iterable[Any]:
        return self.steps.table, self.steps.shared_table, self.steps.indices

    def run(self, context: RankContext) -> StepsAnswer:
        steps, writes = self.steps, self.steps.plans[0].writes
        if self._on_step is not None:
            self._on_step.begin(writes)
        context.pools.hold(self.reads(context))
        own = RankSteps(steps, context)
        own.prepare_outputs()
        context.transaction.results = own.store
        context.barrier.wait()  # no rank begins before all ranks and hosts have enough memory
        if writes:
            context.transaction.protect(context.entries(writes), keeps=True)
        n_steps = self._run_steps(own, own.rows(), own.run, LastStep(steps, context))
        if steps.is_collective:
            context.transaction.commit(label=f"the end of the steps of function {self.name}")
        totals = None if own.totals is None else own.totals.finish(n_steps)
        made = StepsAnswer(n_steps, own.store.stored(), totals, own.plans if context.rank == context.root else None)
        if writes:
            context.transaction.commit(result=made)
        return made

    def run_together(self, contexts: Sequence[RankContext], root: int) -> Optional[List[Any]]:
        steps = self.steps
        if not all(is_possible(plan, contexts) for plan in steps.plans):
            return None
        if self._on_step is not None:
            self._on_step.begin(())
        ranks = [RankSteps(steps, context) for context in contexts]
        for each in ranks:
            each.prepare_outputs()
        own = ranks[root]
        own.context.transaction.results = [each.store for each in ranks]
        together = StepsTogether(ranks, root, self._on_step is not None)
        rows_of_all = zip(*[steps.rows(context) for context in contexts])
        n_steps = self._run_steps(own, rows_of_all, together.run, LastStep(steps, own.context, of_all=True))
        totals: Any = None
        if own.totals is not None:
            plan, division = own.totals.plan(n_steps)
            of_ranks = [each.totals.values() for each in ranks if each.totals is not None]
            totals = presented(plan, own.context, combined(plan, of_ranks, division.weights, root))
        made = [StepsAnswer(n_steps, each.store.stored(), None, None) for each in ranks]
        made[root] = made[root]._replace(totals=totals, plans=own.plans)
        return made

    def _run_steps(
        self,
        own: RankSteps,
        rows: Iterable[Any],
        run: Callable[[Iterator[Any]], Iterator[Tuple[CallPlan, List[Any]]]],
        last: LastStep,
    ) -> int:
        """Let ``run`` complete the steps in sequence; return their number."""
        begin, context, asks = self.steps.begin, own.context, self.steps.asks

        def begun() -> Iterator[Any]:
            for i, of_step in enumerate(rows):
                context.barrier.check()
                if asks and last.is_before(i):
                    break
                yield of_step

        for i, (plan, outputs) in enumerate(run(begun())):
            if self._on_step is not None and not last.is_requested:
                if i == self._n_reported:
                    self.failed_step = begin + i  # in case `_on_step` raises
                    self.ends_early = not self._on_step(begin + i, presented(plan, context, outputs))
                    self.failed_step = None
                    self._n_reported += 1
                elif i + 1 == self._n_reported:
                    self._on_step.put_again()
                if self.ends_early and i + 1 == self._n_reported:
                    last.request()
            if asks:
                last.end_step(i)
        return last.settle()

    def finish(self, results: List[StepsAnswer], context: RankContext) -> Tuple[List[Any], Optional[List[int]], int]:
        """Return the outputs, the number of rows that each rank computed in all steps, and the number of steps."""
        steps, (n_steps, _, totals, plans) = self.steps, results[context.root]
        assert plans is not None
        divisions = steps.divisions(context, n_steps)
        stored = [made.stored for made in results]
        combiner = Combiner(
            plans, steps.ops, steps.dtypes, divisions, steps.counts, stored, context.root, context.pools
        )
        outputs: List[Any] = []
        try:
            for i, op in enumerate(steps.ops):
                if totals is not None and op.name != "gather":
                    outputs.append(totals[i])
                    continue
                found = combiner.combined(i)
                if totals is not None:
                    found = np.concatenate([np.atleast_1d(each) for each in found])
                if op.dtypes:
                    found = [rounded(each, op) for each in found] if type(found) is list else rounded(found, op)
                if op.axis:
                    found = [moved(each, 0, op.axis) for each in found] if totals is None else moved(found, 0, op.axis)
                outputs.append(found)
        except ValueError:
            self.failed_step = None if combiner.failed_step is None else steps.begin + combiner.failed_step
            raise
        finally:
            context.transaction.results = None
        return outputs, rows_taken(plans, divisions), n_steps


#: Number of steps of the first command; target duration of later commands in seconds.
FIRST_STEPS, SECONDS = 16, 1.0


class Results(NamedTuple):
    """The result of `RunSteps.finish`, and whether the program has ended the steps."""

    outputs: List[Any]
    rows: Optional[List[int]]
    n_steps: int
    has_ended: bool = False


def run_in_chunks(
    steps: StepSequence, table: Any, run: Callable[[StepSequence], Results], heals: bool = True
) -> Results:
    """Run steps in one or more commands; with ``total``, raise if ``on_step`` changes a value that all ranks need.

    With ``heals``, dead ranks are replaced. Up to `FIRST_STEPS` steps are one command nevertheless, as are all steps
    with ``total``. ``run`` completes all steps that it receives, or only the first few.
    """
    in_chunks = heals and not steps.total and len(table) > FIRST_STEPS
    found: List[Results] = []
    n_steps, n_most = 0, FIRST_STEPS if in_chunks else len(table)
    while not found or n_steps < len(table) and not found[-1].has_ended:
        counts = np.bincount(table[n_steps : n_steps + n_most, 0], minlength=len(steps.plans)).tolist()
        began = time.monotonic()
        found.append(run(steps._replace(begin=n_steps, counts=counts)))
        n_steps += found[-1].n_steps
        if steps.total and n_steps < len(table) and not found[-1].has_ended:
            raise ArgumentValueError(
                "total",
                "False, because on_step changes a shared variable, which is sent to all ranks between two commands",
                f"True, and a change after step {n_steps - 1} of {len(table)}; all steps up to this one are complete",
            )
        if in_chunks:
            n_most = max(1, int(sum(counts) * min(4.0, SECONDS / max(time.monotonic() - began, 1e-6))))
    if len(found) == 1:
        return found[0]
    rows = [each.rows for each in found if each.rows is not None]
    return Results(
        [joined(parts) for parts in zip(*[each.outputs for each in found])],
        [sum(of_rank) for of_rank in zip(*rows)] if rows else None,
        n_steps,
        found[-1].has_ended,
    )


def joined(parts: Sequence[Any]) -> Any:
    """Return the values of an output over all steps, in the form that a single command returns."""
    if all(isinstance(part, np.ndarray) for part in parts) and len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    return [np.asarray(value) if isinstance(part, np.ndarray) else value for part in parts for value in part]
