"""Steps of all ranks in one thread, for engines that compute all ranks' results together.

::

    this thread    step 0   steps 1 to 64    outputs of step 0    steps 65 to 128    outputs of steps 1 to 64   ...
    the devices             step 0           steps 1 to 64                           steps 65 to 128            ...

Outputs are fetched after the next steps have begun, so that devices do not wait for this thread. If the arguments are
on the devices, the engine may compute many steps at once, in a loop. Nothing can interrupt a loop. The first loops of a
function therefore have one step, and the number of steps of later loops follows from the measured time.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from .plan import CallMemory, CallPlan
from .rank_call import RankResult
from .rank_steps import RankSteps, StepRows
from .together import apply, call_together, can_repeat, on_host

MAX_STEPS = 64  #: Maximum number of steps that are computed at once.
LOOP_S = 0.25  #: Maximum time of the steps that are computed at once; an interrupt waits for up to two such loops.
MAX_BYTES = 1 << 26  #: Approximate maximum size of their outputs, on each rank.

clock = time.perf_counter  # replaced in tests


class StepsTogether:
    """Runs steps on all ranks; ``waits`` means that each step's outputs are needed before the next step."""

    def __init__(self, ranks: Sequence[RankSteps], root: int, waits: bool) -> None:
        self._ranks, self._root, self._waits = ranks, root, waits
        self._n_begun, self._values = 0, [each.values for each in ranks]
        own = ranks[root]
        has_large = own.totals is not None and any(
            op.name != "gather" and (type_ is None or type_.ndim) for op, type_ in zip(own.steps.ops, own.steps.types)
        )
        n_bytes = max(1, own.store.nbytes // max(1, sum(own.steps.counts)))
        n_most = 1 if waits or has_large else max(1, min(MAX_STEPS, MAX_BYTES // n_bytes))
        #: By division: the maximum number of steps of a loop, which has memory for all of them.
        self._n_most = [
            min(n_most, own.steps.counts[division])
            if can_repeat([each.prepared[division] for each in ranks], self._values)
            else 1
            for division in range(len(own.prepared))
        ]
        self._seconds = own.context.kept(CallMemory).seconds_of_step
        self._places = [(plan.number, *(plan.division.weights or ())) for plan in own.plans]
        self._done_at = 0.0  # when the last results arrived

    def run(self, begun: Iterator[Sequence[StepRows]]) -> Iterator[Tuple[CallPlan, List[Any]]]:
        """Complete each step on all ranks; yield the plan and the outputs of the root, on the host."""
        ahead: List[Tuple[int, List[RankResult]]] = []
        begun_at, contexts = 0.0, [each.context for each in self._ranks]
        error: Optional[Exception] = None
        chunks, i = self._chunks(begun), 0
        while True:
            now = clock()
            try:
                made = next(chunks, None)
            except Exception as raised:
                made, error = None, raised  # the results of earlier steps come first
            if self._waits and made is not None:
                ahead, made = made, []
            for k, (division, found) in enumerate(ahead):
                plan = self._ranks[self._root].plans[division]
                outputs = on_host(plan, [one.outputs for one in found], contexts, self._root, partial(self._count, i))
                if k == 0:
                    self._note_time(division, begun_at, len(ahead))
                for rank, of_rank in zip(self._ranks, outputs):
                    rank.keep(i, division, of_rank)
                i += 1
                yield plan, outputs[self._root]
            if made is None:
                break
            ahead, begun_at = made, now
        if error is not None:
            raise error

    def _chunks(self, begun: Iterator[Sequence[StepRows]]) -> Iterator[List[Tuple[int, List[RankResult]]]]:
        """Begin as many steps at once as possible, and yield their results."""
        waiting: List[Sequence[StepRows]] = []
        for of_ranks in begun:
            for each in self._ranks if self._ranks[0].steps.lengths else ():
                each.check_lengths()
            if waiting and waiting[0][0][0] != of_ranks[0][0]:
                yield from self._begin(waiting)
                waiting = []
            waiting.append(of_ranks)
            if len(waiting) >= self._n_now(of_ranks[0][0]):
                yield from self._begin(waiting)
                waiting = []
        yield from self._begin(waiting)

    def _begin(self, steps: List[Sequence[StepRows]]) -> Iterator[List[Tuple[int, List[RankResult]]]]:
        ranks = self._ranks
        while steps:
            division = steps[0][0][0]
            n_now = self._n_now(division)
            made = call_together(
                [each.prepared[division] for each in ranks],
                self._values,
                [(of_ranks[0][1], [one[2] for one in of_ranks]) for of_ranks in steps[:n_now]],
                [each.context for each in ranks],
                self._root,
                self._n_most[division],
            )
            if len(made) < min(n_now, len(steps)):
                self._n_most[division] = 1  # the engine cannot repeat these calls
            for each, one in zip(ranks, made[-1]):
                each.note_division(division, one.division)
            apply([one.change for one in made[-1]])
            self._n_begun += len(made)
            self._count(self._n_begun)
            steps = steps[len(made) :]
            yield [(division, found) for found in made]

    def _count(self, n_steps: int) -> None:
        for each in self._ranks:
            each.count(n_steps)

    def _n_now(self, division: int) -> int:
        """Return the number of steps of the next loop."""
        seconds = self._seconds.get(self._places[division])
        fitting = 1 if seconds is None else int(min(MAX_STEPS, LOOP_S / max(seconds, 1e-9)))
        return max(1, min(self._n_most[division], fitting))

    def _note_time(self, division: int, begun_at: float, n_steps: int) -> None:
        """Record the time of a step, when the first outputs of a loop have arrived."""
        before, self._done_at = self._done_at, clock()
        self._seconds[self._places[division]] = (self._done_at - max(before, begun_at)) / n_steps
