"""Rules with an outer optimizer, whose steps may be delayed or divided into fragments."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from synkhronos.errors import ArgumentValueError

from ..arguments import choice, real, whole
from ..shared_variables import like, local_function, n_bytes, nearer, number
from .centred import CentredRule
from .means import Means, RowCount

Update = Tuple[Any, Any]


class DiLoCo(CentredRule):
    """DiLoCo: many steps of each rank form one step of an outer optimizer with Nesterov momentum.

    .. math:: D = z - \\bar x, \\quad v \\leftarrow \\mu v + D, \\quad z \\leftarrow z - \\eta (D + \\mu v), \\quad
              x_r \\leftarrow z

    The mean is weighted by rows. By default each rank keeps its own ``state``. With a delay of W steps, the mean of the
    ranks' values y is computed while the ranks take W more steps. ``merge`` determines how these steps are combined
    with z:

    .. math:: x_r \\leftarrow x_r + m (z - y_r) \\quad \\text{("delta")}, \\qquad
              x_r \\leftarrow x_r + m (z - x_r) \\quad \\text{("pull")}

    ``"pull"`` loses a fraction m W / k of all progress, where k is ``every``; ``"delta"`` loses no progress.

    With P fragments, the parameters are divided into P parts of similar size, which reduces the data per exchange. One
    part is exchanged every k / P steps; the last part is exchanged at every k-th step.

    Sources: Douillard, A., et al. (2023). DiLoCo: distributed low-communication training of language models. arXiv
    2311.08105. Douillard, A., et al. (2025). Streaming DiLoCo with overlapping communication. arXiv 2501.18512 (for
    ``fragments``, ``delay``, ``mix`` and ``"pull"``).

    Parameters
    ----------
    function, params, state, every, start, exchange, state_is
        As for `LocalSGD`.
    outer_rate, outer_momentum, mix : float
        :math:`\\eta`, :math:`\\mu` and m.
    nesterov : bool
        If False, heavy-ball momentum: :math:`z \\leftarrow z - \\eta v`.
    delay : int
        W, less than ``every``.
    merge : str
        ``"delta"`` or ``"pull"``.
    fragments : int
        P, at most ``every`` and at most the number of parameters.
    """

    def __init__(
        self,
        function: Any = None,
        params: Any = None,
        state: Any = None,
        every: int = 500,
        start: int = 0,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        delay: int = 0,
        merge: str = "delta",
        mix: float = 1.0,
        exchange: Optional[str] = None,
        fragments: int = 1,
        state_is: str = "kept",
    ) -> None:
        self.outer_rate = real("outer_rate", outer_rate, "more than 0", lambda rate: rate > 0)
        self.outer_momentum = real("outer_momentum", outer_momentum, "at least 0, less than 1", lambda mu: 0 <= mu < 1)
        self.mix = real("mix", mix, "more than 0, at most 1", lambda m: 0 < m <= 1)
        self.nesterov, self.delay = bool(nesterov), whole("delay", delay, 0)
        self.merge = choice("merge", merge, "delta", "pull")
        if self.delay >= whole("every", every, 1):
            raise ArgumentValueError("delay", f"less than every ({every})", str(delay))
        if whole("fragments", fragments, 1) > every:
            raise ArgumentValueError("fragments", f"at most every ({every})", str(fragments))
        super().__init__(function, params, state, every, start, state_is)
        if fragments > len(self.params):
            expected = f"at most {len(self.params)}, the number of parameters"
            raise ArgumentValueError("fragments", expected, str(fragments))
        self.velocity = [like(param, "outer velocity", zero=True) for param in self.params]
        self.fragments = [
            Fragment(self, part, (i + 1) * self.every // fragments, exchange)
            for i, part in enumerate(parts_of([n_bytes(param) for param in self.params], fragments))
        ]

    @property
    def state(self) -> List[Any]:
        self._arrive()
        return [*super().state, *self.velocity, *(variable for each in self.fragments for variable in each.state)]

    def _counted(self) -> Dict[str, Any]:
        of_fragments = [[each.means.begun, list(each.rows.rows)] for each in self.fragments]
        return dict(super()._counted(), fragments=of_fragments)

    def _restore(self, counters: Dict[str, Any]) -> None:
        super()._restore(counters)
        for fragment, (begun, rows) in zip(self.fragments, counters["fragments"]):
            fragment.means.begun = begun
            fragment.rows.restore(rows)

    def _fragment(self, n_steps: int) -> Optional[Fragment]:
        turns = (each for each in self.fragments if (n_steps - each.turn) % self.every == 0)
        return next(turns, None) if n_steps >= self.start else None

    def _is_time(self, n_steps: int) -> bool:
        return self._fragment(n_steps) is not None or any(
            each.means.is_due(n_steps, self.delay) for each in self.fragments
        )

    def _due(self) -> bool:
        for fragment in self.fragments:
            if fragment.means.is_due(self.n_steps, self.delay):
                fragment.merge()
        return self._fragment(self.n_steps) is not None and super()._due()

    def _count(self, n_steps: int) -> None:
        super()._count(n_steps)
        for each in self.fragments:
            each.rows.add(self.function)

    def _exchange(self) -> None:
        fragment = self._fragment(self.n_steps)
        if fragment is not None:
            fragment.exchange(self.n_steps)

    def _arrive(self) -> None:
        """Apply all pending outer steps to the center; the ranks' own values change at the merge."""
        for fragment in self.fragments:
            fragment.means.arrive()

    def _answer(self) -> None:
        self._arrive()
        super()._answer()

    def finish(self) -> None:
        super().finish()
        for fragment in self.fragments:
            fragment.means.begun = None  # all ranks now have the consensus
            fragment.rows.clear()

    def outer_step(self, z: Any, velocity: Any, mean: Any) -> List[Update]:
        """Return the updates of the outer optimizer for one parameter; the center's update is the last."""
        rate, momentum = number(self.outer_rate, z), number(self.outer_momentum, z)
        difference = z - mean
        new_velocity = velocity * momentum + difference
        step = difference + new_velocity * momentum if self.nesterov else new_velocity
        return [(velocity, new_velocity), (z, z - step * rate)]


class Fragment:
    """Parameters of a rule (at positions ``numbers``) that are exchanged together, at step ``turn`` of each period."""

    def __init__(self, rule: DiLoCo, numbers: Sequence[int], turn: int, exchange: Optional[str]) -> None:
        self.turn, self.rows = turn, RowCount()
        params, centre, velocity = ([of[i] for i in numbers] for of in (rule.params, rule.centre, rule.velocity))
        self.means = Means(params, exchange, delayed=rule.delay > 0)
        steps = [rule.outer_step(*each) for each in zip(centre, velocity, self.means.values)]
        outer = [update for step in steps for update in step]
        self._merge: Any = None
        if rule.delay:
            self.means.then = local_function(outer)
            bases = self.means.before if rule.merge == "delta" else params
            merged = zip(params, centre, bases)
            self._merge = local_function((x, nearer(x, z, base, rule.mix)) for x, z, base in merged)
        else:
            whole, news = rule.mix == 1, [step[-1][1] for step in steps]
            pulled = [(x, z * number(1, x) if whole else nearer(x, z, x, rule.mix)) for x, z in zip(params, news)]
            self._step_out = local_function([*outer, *pulled])

    @property
    def state(self) -> List[Any]:
        """Variables for a checkpoint besides the parameters, center and velocity; valid when no mean is pending."""
        return [*self.means.state, *self.means.before]

    def exchange(self, n_steps: int) -> None:
        """Compute the mean and perform the outer step; with a delay, only start computing the mean."""
        if self._merge is not None:
            self.means.start(self.rows.weights)
            self.means.begun = n_steps
        else:
            self.means.take(self.rows.weights)
            self._step_out()
        self.rows.clear()

    def merge(self) -> None:
        """Apply the pending mean to the center, and merge the center into the ranks' own values."""
        self.means.arrive()
        self.means.begun = None
        self._merge()


class SlowMo(DiLoCo):
    """SlowMo (slow momentum): `DiLoCo` with heavy-ball momentum as the outer optimizer.

    .. math:: u \\leftarrow \\beta u + (z - \\bar x) / \\gamma, \\quad z \\leftarrow z - \\alpha \\gamma u

    The learning rate :math:`\\gamma` of the steps is assumed to be constant, so that :math:`v = \\gamma u` in `DiLoCo`.
    Source: Wang, J., et al. (2020). SlowMo: improving communication-efficient distributed SGD with slow momentum. ICLR.
    arXiv 1910.00643.

    Parameters
    ----------
    function, params, state, every, start, state_is
        As for `Rule`.
    momentum, rate : float
        :math:`\\beta` and :math:`\\alpha`.
    """

    def __init__(
        self,
        function: Any = None,
        params: Any = None,
        state: Any = None,
        every: int = 48,
        start: int = 0,
        momentum: float = 0.5,
        rate: float = 1.0,
        state_is: str = "kept",
    ) -> None:
        super().__init__(function, params, state, every, start, rate, momentum, nesterov=False, state_is=state_is)


def parts_of(sizes: Sequence[int], n_parts: int) -> List[List[int]]:
    """Divide items into nonempty parts of similar total size, greedily from the largest; return their indices."""
    parts: List[List[int]] = [[] for _ in range(n_parts)]
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        min(parts, key=lambda part: (sum(sizes[j] for j in part), len(part))).append(i)
    return [sorted(part) for part in parts]
