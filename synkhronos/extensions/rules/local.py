"""Rules without a centre: ranks average their parameters where they are."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np

import synkhronos as synk
from synkhronos.collectives.mixing import parse_groups
from synkhronos.errors import ArgumentValueError

from .asynchronous import MailExchanges
from .means import Means
from .recurrence import Rule, real, whole
from .variables import assignment


class LocalSGD(Rule):
    """Steps of one's own, and the average of all ranks every so many: local SGD, also post-local and in groups.

    .. math:: x_r \\leftarrow \\textstyle\\sum_s w_s x_s / \\sum_s w_s

    The weights are the rows that each rank took since the last exchange. The steps' ``state`` is averaged as well if
    ``state_is`` says nothing else, so that with ``every=1`` and a rule that is linear in the gradient the steps are the
    serial ones.

    Parameters
    ----------
    function, params, state, every, start, state_is
        As for `Rule`. Post-local SGD communicates every step up to some point: another function does that.
    groups : list of lists of ranks, optional
        Ranks average inside their group alone.
    exchange : str, optional
        ``"bfloat16"`` or ``"float16"``: what travels are the 16 bits of differences, with their errors fed back.

    References
    ----------
    Stich, S. U. (2019). Local SGD converges fast and communicates little. ICLR. Lin, T., et al. (2020). Don't use large
    mini-batches, use local SGD. ICLR. (``start``, ``groups``)
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
            raise ArgumentValueError("exchange", "None with groups, which have no mean in common", repr(exchange))
        self.means = None if exchange is None else Means(self._mixed, exchange)
        self._adopt: Any = None if self.means is None else assignment(self.means.variables, self.means.values)

    _mixes = True

    def _exchange(self) -> None:
        if self.means is None:
            synk.all_reduce(self._mixed, weights=self._weights, groups=self.groups)
        else:
            self.means.take(self._weights)
            self._adopt()

    @property
    def state(self) -> List[Any]:
        return [] if self.means is None else self.means.state


class DrawnRule(Rule):
    """A rule by which the master draws whose values meet, so that every run with the same seed is the same.

    Parameters
    ----------
    function, params, state, every, state_is
        As for `Rule`.
    seed : int
    """

    _mixes = True

    def __init__(self, function: Any, params: Any, state: Any, every: int, seed: int, state_is: str) -> None:
        super().__init__(function, params, state, every, state_is=state_is)
        if whole("seed", seed, 0) >= 2**32:
            raise ArgumentValueError("seed", "less than 2 ** 32", str(seed))
        self._random = np.random.RandomState(seed)

    @property
    def counters(self) -> Dict[str, Any]:
        state: Any = self._random.get_state(legacy=True)
        kind, keys, *more = state
        return dict(super().counters, random=[kind, keys.tolist(), *more])

    @counters.setter
    def counters(self, counters: Dict[str, Any]) -> None:
        Rule.counters.fset(self, counters)  # type: ignore[attr-defined]
        kind, keys, *more = counters["random"]
        self._random.set_state((kind, np.array(keys, np.uint32), *more))


class Gossip(DrawnRule):
    """Now and then a rank sends its parameters to another, drawn at random: GoSGD.

    .. math:: x_r \\leftarrow (\\alpha_r x_r + \\alpha_s x_s) / (\\alpha_r + \\alpha_s), \\quad
              \\alpha_r \\leftarrow \\alpha_r + \\alpha_s, \\quad \\text{where } \\alpha_s \\text{ was halved before}

    The weights :math:`\\alpha` are 1/n at first; no exchange changes their sum, nor :math:`\\sum_r \\alpha_r x_r`.

    Parameters
    ----------
    function, params, state, every, state_is
        As for `Rule`; draws are made after every so many steps.
    probability : float
        That a rank sends.
    seed : int

    References
    ----------
    Blot, M., et al. (2016). Gossip training for deep learning. arXiv 1611.09726. (``probability=0.01``)
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
        if state_is == "reset":  # whose? a sender goes on as it is
            raise ArgumentValueError("state_is", "'averaged' or 'kept'", "'reset'")
        super().__init__(function, params, state, every, seed, state_is)
        self.probability = real("probability", probability, "more than 0, at most 1", lambda p: 0 < p <= 1)
        #: The ranks' weights.
        self.alphas = [1 / synk.size()] * synk.size()
        #: Who sent to whom in the last exchange.
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
        # One message after the other: each is a matrix of two columns in one row, and together they are their product.
        matrix, alphas = np.eye(n), list(self.alphas)
        for sender, receiver in self.sent:
            alphas[sender] /= 2
            whole = alphas[receiver] + alphas[sender]
            matrix[receiver] = (alphas[receiver] * matrix[receiver] + alphas[sender] * matrix[sender]) / whole
            alphas[receiver] = whole
        synk.all_reduce(self._mixed, weights=matrix)
        self.alphas = alphas

    def _exchanges(self, variables: Any, n_batches: int, records: bool) -> MailExchanges:
        """Draw for each batch, whichever rank will make its step, whether that sends, and to which of the others."""
        n = len(self.alphas)
        receivers = np.full(n_batches, -1)
        if n > 1:
            sends = self._random.rand(n_batches) < self.probability
            receivers = np.where(sends, self._random.randint(n - 1, size=n_batches), -1)
        values = [np.asarray(param.get_value()) for param in self.params]
        return MailExchanges(receivers, self.alphas, values, *self._settings(variables, records))

    def _adopt_exchanges(self, exchanges: MailExchanges, is_cut_off: bool) -> None:
        self.alphas = exchanges.alphas()

    @property
    def _answer_weights(self) -> List[float]:
        return self.alphas

    @property
    def counters(self) -> Dict[str, Any]:
        return dict(super().counters, alphas=list(self.alphas))

    @counters.setter
    def counters(self, counters: Dict[str, Any]) -> None:
        DrawnRule.counters.fset(self, counters)  # type: ignore[attr-defined]
        n = len(self.alphas)
        self.alphas = list(counters["alphas"]) if len(counters["alphas"]) == n else [1 / n] * n


class Swap(DrawnRule):
    """Ranks exchange parameters and state in pairs, drawn at random; with an odd number one keeps its own.

    For networks that train each other, as generators and discriminators do: each meets those of the other ranks.

    Parameters
    ----------
    function, params, state, every
        As for `Rule`.
    seed : int

    References
    ----------
    Im, D. J., et al. (2016). Generative adversarial parallelization. arXiv 1612.04021.
    """

    def __init__(
        self, function: Any = None, params: Any = None, state: Any = None, every: int = 1, seed: int = 0
    ) -> None:
        super().__init__(function, params, state, every, seed, "averaged")
        #: The pairs of the last exchange.
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
        raise ArgumentValueError("rule", "one by which ranks come to one answer", "Swap", "each rank has its own")
