"""Rules without a center: ranks average or exchange their parameters in place."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np

import synkhronos as synk
from synkhronos.errors import ArgumentValueError
from synkhronos.extending import parse_groups

from ..arguments import real, whole
from ..shared_variables import assignment
from .asynchronous import MailExchanges
from .means import Means
from .recurrence import Rule


class LocalSGD(Rule):
    """Local SGD: independent steps on every rank, then an average over all ranks or inside groups.

    .. math:: x_r \\leftarrow \\textstyle\\sum_s w_s x_s / \\sum_s w_s

    The weights are the rows that each rank has processed since the last exchange. By default, the ``state`` is averaged
    as well. With ``every=1`` and an update rule linear in the gradient, steps equal the serial steps up to rounding.

    Sources: McMahan, B., et al. (2017). Communication-efficient learning of deep networks from decentralized data.
    AISTATS. Stich, S. U. (2019). Local SGD converges fast and communicates little. ICLR. Lin, T., et al. (2020). Don't
    use large mini-batches, use local SGD. ICLR (for ``start`` and ``groups``).

    Parameters
    ----------
    function, params, state, every, start, state_is
        As for `Rule`. For the first phase of post-local SGD, use a function that averages gradients in every step.
    groups : list of lists of ranks, optional
        Average inside each group only.
    exchange : str, optional
        ``"bfloat16"`` or ``"float16"``: send 16-bit differences with error feedback.
    """

    def __init__(
        self,
        function: Any = None,
        params: Any = None,
        state: Any = None,
        every: int = 8,
        start: int = 0,
        groups: Any = None,
        exchange: Optional[str] = None,
        state_is: str = "averaged",
    ) -> None:
        super().__init__(function, params, state, every, start, state_is)
        self.groups = None if groups is None else parse_groups(groups, synk.size())
        if exchange is not None and groups is not None:
            raise ArgumentValueError("exchange", "None with groups, which have no common mean", repr(exchange))
        self.means = None if exchange is None else Means(self._mixed, exchange)
        self._adopt: Any = None if self.means is None else assignment(self.means.variables, self.means.values)

    _mixes = True

    def _exchange(self) -> None:
        if self.means is None:
            synk.all_reduce(self._mixed, weights=self._rows.weights, groups=self.groups)
        else:
            self.means.take(self._rows.weights)
            self._adopt()

    @property
    def state(self) -> List[Any]:
        return [] if self.means is None else self.means.state


class DrawnRule(Rule):
    """Base class of rules with pairs of ranks drawn by the master, so that equal seeds produce equal runs."""

    _mixes = True

    def __init__(self, function: Any, params: Any, state: Any, every: int, seed: int, state_is: str) -> None:
        super().__init__(function, params, state, every, state_is=state_is)
        if whole("seed", seed, 0) >= 2**32:
            raise ArgumentValueError("seed", "less than 2 ** 32", str(seed))
        self._random = np.random.RandomState(seed)

    def _counted(self) -> Dict[str, Any]:
        state: Any = self._random.get_state(legacy=True)
        kind, keys, *more = state
        return dict(super()._counted(), random=[kind, keys.tolist(), *more])

    def _restore(self, counters: Dict[str, Any]) -> None:
        super()._restore(counters)
        kind, keys, *more = counters["random"]
        self._random.set_state((kind, np.array(keys, np.uint32), *more))


class Gossip(DrawnRule):
    """GoSGD: each rank occasionally sends its parameters to another rank, drawn at random.

    .. math:: x_r \\leftarrow (\\alpha_r x_r + \\alpha_s x_s) / (\\alpha_r + \\alpha_s), \\quad
              \\alpha_r \\leftarrow \\alpha_r + \\alpha_s, \\quad \\text{after } \\alpha_s \\leftarrow \\alpha_s / 2

    The weights :math:`\\alpha` are 1/n initially. An exchange changes neither their sum nor
    :math:`\\sum_r \\alpha_r x_r`. Source: Blot, M., et al. (2016). Gossip training for deep learning. arXiv 1611.09726
    (for ``probability=0.01``).

    Parameters
    ----------
    function, params, state, state_is
        As for `Rule`, except that ``state_is="reset"`` is invalid.
    every : int
        The number of steps from one draw to the next.
    probability : float
        The probability that a rank sends its parameters at a draw.
    seed : int
    """

    def __init__(
        self,
        function: Any = None,
        params: Any = None,
        state: Any = None,
        every: int = 1,
        probability: float = 0.01,
        seed: int = 0,
        state_is: str = "kept",
    ) -> None:
        if state_is == "reset":  # a sender continues unchanged, so no rank's state should be reset
            raise ArgumentValueError("state_is", "'averaged' or 'kept'", "'reset'")
        super().__init__(function, params, state, every, seed, state_is)
        self.probability = real("probability", probability, "more than 0, at most 1", lambda p: 0 < p <= 1)
        self.alphas = [1 / synk.size()] * synk.size()
        self.sent: List[Tuple[int, int]] = []

    def _due(self) -> bool:
        return super()._due() and bool(self.sent)

    def _exchange(self) -> None:
        n = len(self.alphas)
        self.sent = []
        if n > 1:
            senders = np.flatnonzero(self._random.rand(n) < self.probability)
            others = self._random.randint(n - 1, size=len(senders))
            self.sent = [(int(s), int(r + (r >= s))) for s, r in zip(senders, others)]
        if not self.sent:
            return
        # Messages are applied in sequence. Each message mixes the sender's row of the matrix into the receiver's row.
        matrix, alphas = np.eye(n), list(self.alphas)
        for sender, receiver in self.sent:
            alphas[sender] /= 2
            whole = alphas[receiver] + alphas[sender]
            matrix[receiver] = (alphas[receiver] * matrix[receiver] + alphas[sender] * matrix[sender]) / whole
            alphas[receiver] = whole
        synk.all_reduce(self._mixed, weights=matrix)
        self.alphas = alphas

    def _exchanges(self, n_batches: int, records: bool) -> MailExchanges:
        """Draw the receiver for each batch (-1: none), independently of the rank that processes the batch."""
        n = len(self.alphas)
        receivers = np.full(n_batches, -1)
        if n > 1:
            sends = self._random.rand(n_batches) < self.probability
            receivers = np.where(sends, self._random.randint(n - 1, size=n_batches), -1)
        values = [np.asarray(param.get_value()) for param in self.params]
        return MailExchanges(receivers, self.alphas, values, *self._settings(records))

    def _adopt_exchanges(self, exchanges: MailExchanges, is_cut_off: bool) -> None:
        self.alphas = exchanges.alphas()

    @property
    def _answer_weights(self) -> List[float]:
        return self.alphas

    def _counted(self) -> Dict[str, Any]:
        return dict(super()._counted(), alphas=list(self.alphas))

    def _restore(self, counters: Dict[str, Any]) -> None:
        super()._restore(counters)
        n = len(self.alphas)
        self.alphas = list(counters["alphas"]) if len(counters["alphas"]) == n else [1 / n] * n


class Swap(DrawnRule):
    """Exchange parameters and state between random pairs of ranks; with an odd number of ranks, one keeps its values.

    Use it for networks that train each other, such as generators and discriminators. Each network then trains against
    other ranks' networks. Source: Im, D. J., et al. (2016). Generative adversarial parallelization. arXiv 1612.04021.

    Parameters
    ----------
    function, params, state, every
        As for `Rule`.
    seed : int
    """

    def __init__(
        self, function: Any = None, params: Any = None, state: Any = None, every: int = 1, seed: int = 0
    ) -> None:
        super().__init__(function, params, state, every, seed, "averaged")
        self.pairs: List[Tuple[int, int]] = []

    def _exchange(self) -> None:
        order = self._random.permutation(synk.size()).tolist()
        self.pairs = list(zip(order[::2], order[1::2]))
        matrix = np.eye(len(order))
        for one, other in self.pairs:
            matrix[[one, other]] = matrix[[other, one]]
        synk.all_reduce(self._mixed, weights=matrix)

    @property
    def _answer_weights(self) -> List[float]:
        raise ArgumentValueError("rule", "a rule with a consensus of all ranks", "Swap", "each rank has its own model")
