"""DASO: frequent averages inside groups, and averages over all ranks at intervals that adapt to the loss."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import synkhronos as synk
from synkhronos.extending import parse_groups

from ..arguments import choice, real, whole
from ..shared_variables import assignment, local_function, nearer
from .means import Means, RowCount
from .recurrence import Rule


class Skips(NamedTuple):
    """Steps ``between`` means over all ranks, between means ``inside`` groups, and to ``wait`` for a merge."""

    between: int
    inside: int
    wait: int


BLOCKING = Skips(0, 0, 0)


class Phases:
    """The schedule of `DASO`: how often ranks exchange values in each epoch.

    ::

            warm-up     (0, 0, 0)                                every step, blocking
            then        (4, 1, 1)                                with ``largest=8``
            plateaus    (2, 1, 1)  (1, 1, 1)  (8, 2, 2)  (4, 1, 1)  ...
            cool-down   (0, 0, 0)

    The numbers are the steps between means over all ranks, between means inside groups, and from the start of a mean to
    its merge. A plateau is more than ``patience`` epochs without improving the best loss by a fraction ``threshold``.

    Parameters
    ----------
    warm_up, cool_down, patience : int
        Durations in epochs.
    epochs : int, optional
        The number of epochs of the whole training; by default, there is no cool-down.
    largest : int
        The largest number of steps between means over all ranks.
    threshold : float
    """

    def __init__(
        self, warm_up: int, cool_down: int, epochs: Optional[int], largest: int, patience: int, threshold: float
    ) -> None:
        self.warm_up, self.cool_down, self.epochs = warm_up, cool_down, epochs
        self.largest, self.patience, self.threshold = largest, patience, threshold
        self.epoch, self.best, self.bad = 0, float("inf"), 0
        self._skips = self.first() if warm_up == 0 else BLOCKING

    @property
    def skips(self) -> Skips:
        is_last = self.epochs is not None and self.epoch >= self.epochs - self.cool_down
        return BLOCKING if is_last else self._skips

    def end(self, loss: float) -> None:
        improved = loss < self.best - self.threshold * abs(self.best) if self.best < float("inf") else True
        self.best = min(self.best, loss) if improved else self.best
        self.epoch += 1
        if self.epoch == self.warm_up:
            self._skips, self.bad = self.first(), 0
        elif self.epoch > self.warm_up:
            self.bad = 0 if improved else self.bad + 1
            if self.bad > self.patience:
                self._skips, self.bad = self._next(), 0

    def first(self) -> Skips:
        """Return the steps of the first phase after the warm-up."""
        return Skips(*[max(1, self.largest // part) for part in (2, 8, 8)])

    @property
    def counters(self) -> List[Any]:
        """Numbers that a checkpoint needs."""
        return [self.epoch, self.best, self.bad, list(self._skips)]

    @counters.setter
    def counters(self, counters: List[Any]) -> None:
        self.epoch, self.best, self.bad, skips = counters
        self._skips = Skips(*skips)

    def _next(self) -> Skips:
        between, inside, wait = self._skips
        if between == 1:
            return Skips(*[max(1, self.largest // part) for part in (1, 4, 4)])
        between = between // 2
        return Skips(between, max(1, inside // 2), min(between, max(1, wait - 1)))  # one pending mean at a time


class DASO(Rule):
    """DASO: average frequently inside groups, and over all ranks at longer intervals without blocking.

    .. math:: x_r \\leftarrow x_r + (\\bar y - y_r) \\quad \\text{("delta")}, \\qquad
              x_r \\leftarrow \\frac{2 W x_r + G \\bar y}{2 W + G} \\quad \\text{("daso")}

    y denotes the parameters W steps earlier, when the mean started, and G the number of groups. ``"delta"`` loses no
    progress (as in LOSCAR-SGD, arXiv 2605.20866). ``"daso"``, the paper's merge, keeps a fraction
    1 - G W / ((2 W + G) B) of the progress of each cycle of B steps. `Phases` sets the intervals. Call
    ``rule.epoch(loss)`` at the end of each epoch; this also averages over all ranks.

    Source: Coquelin, D., et al. (2022). Accelerating neural network training with distributed asynchronous and
    selective optimization (DASO). Journal of Big Data 9:14. arXiv 2104.05588.

    Parameters
    ----------
    function, params, state, state_is
        As for `Rule`; the state is exchanged when a mean over all ranks starts.
    groups : list of lists of ranks
        Groups of ranks with fast connections, such as the ranks of each host; by default, one group of all ranks.
    epochs, warm_up, cool_down, largest, patience, threshold
        As for `Phases`.
    merge : str
        ``"delta"`` or ``"daso"``.
    exchange : str, optional
        As for `LocalSGD`, but only for means over all ranks. The paper uses bfloat16, which is no faster on one host.
    """

    def __init__(
        self,
        function: Any = None,
        params: Any = None,
        state: Any = None,
        groups: Any = None,
        epochs: Optional[int] = None,
        warm_up: int = 4,
        cool_down: int = 4,
        largest: int = 8,
        patience: int = 2,
        threshold: float = 0.05,
        merge: str = "delta",
        exchange: Optional[str] = None,
        state_is: str = "kept",
    ) -> None:
        super().__init__(function, params, state, state_is=state_is)
        self.groups = parse_groups([list(range(synk.size()))] if groups is None else groups, synk.size())
        self._meet_inside = any(len(group) > 1 for group in self.groups)  # a single rank needs no mean
        self.merge = choice("merge", merge, "delta", "daso")
        threshold = real("threshold", threshold, "at least 0, less than 1", lambda part: 0 <= part < 1)
        for name, value, least in (("warm_up", warm_up, 0), ("cool_down", cool_down, 0), ("patience", patience, 0)):
            whole(name, value, least)
        if epochs is not None:
            whole("epochs", epochs, 1)
        self.phases = Phases(warm_up, cool_down, epochs, whole("largest", largest, 1), patience, threshold)
        self.means = Means(self.params, exchange, delayed=True)
        self._adopt = assignment(self.params, self.means.values)
        self._merges: Dict[float, Any] = {}
        self._in_epoch, self._inside = 0, RowCount()
        self._merge_function(self.phases.first().wait)  # compile now, not during an epoch

    def epoch(self, loss: float) -> None:
        """End an epoch with the given loss: average over all ranks, and adapt the exchange intervals."""
        self._check_moment("epoch()")
        loss = real("loss", loss, "finite", lambda loss: True)
        self._merge_what_is_begun()
        self._exchange()
        self._in_epoch = 0
        self.phases.end(loss)

    @property
    def state(self) -> List[Any]:
        self.means.arrive()
        return [*self.means.state, *self.means.values, *self.means.before]

    def _counted(self) -> Dict[str, Any]:
        mine = dict(in_epoch=self._in_epoch, begun=self.means.begun, inside=list(self._inside.rows))
        return dict(super()._counted(), **mine, phases=self.phases.counters)

    def _restore(self, counters: Dict[str, Any]) -> None:
        super()._restore(counters)
        self._in_epoch, self.means.begun = counters["in_epoch"], counters["begun"]
        self._inside.restore(counters["inside"])
        self.phases.counters = counters["phases"]

    def finish(self) -> None:
        self._check_moment("finish()")
        self._merge_what_is_begun()
        super().finish()
        self.means.drop()
        self._inside.clear()

    def _count(self, n_steps: int) -> None:
        super()._count(n_steps)
        self._inside.add(self.function)
        self._in_epoch += n_steps

    def _events(self, n_steps: int) -> Tuple[bool, bool, bool, bool]:
        """Return whether a step ends with a blocking mean, a mean inside groups, a merge, or the start of a mean."""
        skips, t = self.phases.skips, n_steps - self.n_steps + self._in_epoch
        if skips == BLOCKING:
            return True, False, False, False
        starts = t % skips.between == 0
        is_inside = self._meet_inside and (starts or t % skips.inside == 0)
        return False, is_inside, self.means.is_due(n_steps, skips.wait), starts

    def _is_time(self, n_steps: int) -> bool:
        return any(self._events(n_steps))

    def _due(self) -> bool:
        is_blocking, is_inside, merges, starts = self._events(self.n_steps)
        if is_blocking:
            self._exchange()
        if is_inside:
            synk.all_reduce(self.params, weights=self._inside.weights, groups=self.groups)
            self._inside.clear()
        if merges:
            self._merge_what_is_begun()
        if starts:
            self.means.start(self._rows.weights)
            self.means.begun = self.n_steps
            self._end_exchange()
        return is_blocking or starts

    def _exchange(self) -> None:
        self.means.take(self._rows.weights)
        self._adopt()
        self._end_exchange()
        self._inside.clear()

    def _merge_what_is_begun(self) -> None:
        if self.means.begun is not None:
            merge = self._merge_function(self.phases.skips.wait)
            self.means.arrive()
            self.means.begun = None  # before the merge, so that no mean is merged twice after an interrupt
            merge()

    def _merge_function(self, wait: int) -> Any:
        """Return the function that merges a mean started ``wait`` steps ago."""
        part = 1.0 if self.merge == "delta" else len(self.groups) / (2 * wait + len(self.groups))
        if part not in self._merges:
            bases = self.means.before if self.merge == "delta" else self.params
            triples = zip(self.params, self.means.values, bases)
            self._merges[part] = local_function((x, nearer(x, mean, base, part)) for x, mean, base in triples)
        return self._merges[part]
