"""Rules with a center: shared values that are equal on all ranks, in addition to each rank's own parameters."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple, Type

import numpy as np

import synkhronos as synk
from synkhronos.errors import ArgumentValueError

from ..arguments import real
from ..shared_variables import assignment, like, local_function, number
from .asynchronous import DownpourExchanges, ElasticExchanges, ServerExchanges
from .means import Means
from .recurrence import Rule


class CentredRule(Rule):
    """Base class of rules with a center z: in ``centre``, a variable for each parameter, with the master's values."""

    def __init__(
        self, function: Any, params: Any, state: Any, every: int, start: int = 0, state_is: str = "kept"
    ) -> None:
        super().__init__(function, params, state, every, start, state_is)
        self.centre = [like(param, "centre") for param in self.params]
        self._to_centre = assignment(self.params, self.centre)

    def _answer(self) -> None:
        self._to_centre()

    @property
    def state(self) -> List[Any]:
        return list(self.centre)


class AtOnce(CentredRule):
    """Base class of rules that have a center and exchange all parameters together, with equal weights for all ranks."""

    asynchronous_exchanges: Type[ServerExchanges]

    def __init__(
        self, function: Any, params: Any, state: Any, every: int, factor: float, exchange: Any, state_is: str
    ) -> None:
        super().__init__(function, params, state, every, state_is=state_is)
        self._factor, self.means = factor, Means(self.params, exchange)
        self._merge = self._merge_function()

    def _merge_function(self) -> Any:
        triples = zip(self.params, self.centre, self.means.values)
        return local_function(update for triple in triples for update in self._updates(*triple))

    def _exchange(self) -> None:
        self.means.take()
        self._merge()

    @property
    def state(self) -> List[Any]:
        return [*super().state, *self.means.state]

    def _exchanges(self, n_batches: int, records: bool) -> ServerExchanges:
        if self.means.exchange is not None:
            raise ArgumentValueError("asynchronous", "False with exchange=, which averages synchronously", "True")
        values = [np.asarray(z.get_value()) for z in self.centre]
        return self.asynchronous_exchanges(values, self._factor, *self._settings(records))

    def _adopt_exchanges(self, exchanges: ServerExchanges, is_cut_off: bool) -> None:
        values = exchanges.centre()
        if synk.is_forked():
            synk.broadcast(self.centre, values)
        else:  # a rank has died: keep the center on the master
            for variable, value in zip(self.centre, values):
                variable.set_value(value)

    def _updates(self, x: Any, z: Any, mean: Any) -> List[Tuple[Any, Any]]:
        """Return the updates of a parameter x and its center z in an exchange."""
        raise NotImplementedError


class EASGD(AtOnce):
    """Elastic averaging SGD: the ranks' parameters and a center move toward each other.

    .. math:: x_r \\leftarrow x_r - \\alpha (x_r - z), \\quad z \\leftarrow z + \\alpha \\textstyle\\sum_s (x_s - z)

    The right-hand sides use the values from before the exchange. The sum :math:`\\sum_r x_r + z` does not change. All
    ranks have equal weights. Source: Zhang, S., Choromanska, A., LeCun, Y. (2015). Deep learning with elastic averaging
    SGD. NIPS. arXiv 1412.6651.

    Parameters
    ----------
    function, params, state, every, exchange, state_is
        As for `LocalSGD`.
    alpha : float, optional
        0.9/n by default, as in the paper. It must be less than 2/(n+1), because the center would diverge otherwise.
    """

    asynchronous_exchanges = ElasticExchanges

    def __init__(
        self,
        function: Any = None,
        params: Any = None,
        state: Any = None,
        every: int = 10,
        alpha: Optional[float] = None,
        exchange: Optional[str] = None,
        state_is: str = "kept",
    ) -> None:
        n = synk.size()
        alpha = 0.9 / n if alpha is None else alpha
        bound = f"more than 0 and less than 2 / (n + 1) = {2 / (n + 1):.4g} with n = {n} (larger values diverge)"
        self.alpha = real("alpha", alpha, bound, lambda value: 0 < value < 2 / (n + 1))
        super().__init__(function, params, state, every, self.alpha, exchange, state_is)

    def _updates(self, x: Any, z: Any, mean: Any) -> List[Tuple[Any, Any]]:
        alpha, beta = number(self.alpha, x), number(self.alpha * synk.size(), x)
        return [(x, x - (x - z) * alpha), (z, z + (mean - z) * beta)]


class ASGD(AtOnce):
    """Downpour SGD: add every rank's progress since the last exchange to a center, then copy the center to all ranks.

    .. math:: z \\leftarrow z + \\rho \\textstyle\\sum_s (x_s - z), \\quad x_r \\leftarrow z

    Source: Dean, J., et al. (2012). Large scale distributed deep networks. NIPS.

    Parameters
    ----------
    function, params, state, every, exchange, state_is
        As for `LocalSGD`.
    rate : float, optional
        :math:`\\rho`; 1/n by default, which averages the ranks' progress. A rate of 1 adds up the progress and needs
        a learning rate about n times smaller.
    """

    asynchronous_exchanges = DownpourExchanges

    def __init__(
        self,
        function: Any = None,
        params: Any = None,
        state: Any = None,
        every: int = 1,
        rate: Optional[float] = None,
        exchange: Optional[str] = None,
        state_is: str = "kept",
    ) -> None:
        rate = 1 / synk.size() if rate is None else rate
        self.rate = real("rate", rate, "more than 0, at most 1", lambda value: 0 < value <= 1)
        super().__init__(function, params, state, every, self.rate, exchange, state_is)

    def _updates(self, x: Any, z: Any, mean: Any) -> List[Tuple[Any, Any]]:
        new = z + (mean - z) * number(self.rate * synk.size(), x)
        return [(z, new), (x, new * number(1, x))]

    def _adopt_exchanges(self, exchanges: ServerExchanges, is_cut_off: bool) -> None:
        super()._adopt_exchanges(exchanges, is_cut_off)
        if is_cut_off and synk.is_forked():  # the ranks' progress since their last exchange is lost
            self._to_centre()
