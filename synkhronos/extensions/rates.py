"""Learning rates for large batches: the linear scaling rule, warm-up, and momentum correction.

A `LearningRate` sets a shared variable of any engine on all ranks. Source: Goyal, P., et al. (2017). Accurate, large
minibatch SGD: training ImageNet in 1 hour. arXiv 1706.02677.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError
from synkhronos.extending import find_engine

from .arguments import choice, real
from .shared_variables import assignment, check_params, like

__all__ = ["LearningRate", "rate_at"]


def rate_at(
    epoch: float, base_rate: float, factor: Optional[float] = None, warm_up: float = 5, growth: str = "linear"
) -> float:
    """Return the learning rate for a batch size multiplied by k: it grows from :math:`\\eta` to :math:`k \\eta`.

    .. math:: \\eta (1 + (k - 1) t) \\quad \\text{("linear")}, \\qquad \\eta k^t \\quad \\text{("exponential")},
              \\qquad t = \\min(1, \\text{epoch} / \\text{warm_up})

    Parameters
    ----------
    epoch : float
        The training time so far, in epochs: 1.5 in the middle of the second epoch.
    base_rate : float
        :math:`\\eta`, the rate for the small batch.
    factor : float, optional
        k; by default the number of ranks, for batches with as many rows *on each rank* as in the serial program.
    warm_up : float
        Length of the warm-up in epochs; 0 for no warm-up.
    growth : str
        ``"linear"``, or ``"exponential"`` as in Theano-MPI.

    Examples
    --------
    >>> from synkhronos.extensions.rates import rate_at
    >>> [rate_at(epoch, 0.1, factor=8, warm_up=2) for epoch in (0, 0.5, 1, 2, 3)]
    [0.1, 0.275, 0.45, 0.8, 0.8]
    """
    factor = synk.size() if factor is None else factor
    for name, value in (("base_rate", base_rate), ("factor", factor)):
        real(name, value, "more than 0", lambda number: number > 0)
    for name, value in (("epoch", epoch), ("warm_up", warm_up)):
        real(name, value, "at least 0", lambda number: number >= 0)
    part = epoch / warm_up if epoch < warm_up else 1.0
    if choice("growth", growth, "linear", "exponential") == "linear":
        return base_rate * (1 + (factor - 1) * part)
    return base_rate * float(factor**part)


class LearningRate:
    """A learning rate that can be changed on all ranks, with momentum correction (Goyal et al., 2017, remark 2).

    Velocities that are sums of steps (:math:`v \\leftarrow \\mu v - \\eta g`, as in Lasagne and
    `synkhronos.extensions.updates`) still contain the old rate after a change. Momentum correction multiplies every
    rank's velocities by :math:`\\eta_{new} / \\eta_{old}` once. The steps then equal those of
    :math:`u \\leftarrow \\mu u + g, \\; w \\leftarrow w - \\eta u` for any sequence of positive rates.

    Parameters
    ----------
    rate : shared variable
        A floating-point scalar.
    velocities : list of shared variables
        Velocities with the dtype of ``rate``: the ``state`` of a training function built with ``momentum`` or
        ``nesterov_momentum``. By default, no velocities are corrected.

    Examples
    --------
    >>> import synkhronos as synk, numpy as np, theano, theano.tensor as T
    >>> from synkhronos.extensions import rates, train, updates
    >>> synk.fork(2)
    2
    >>> x, w, rate = T.dvector("x"), theano.shared(0., "w"), theano.shared(0.1, "rate")
    >>> step = train.make_train_function(T.sqr(x - w).mean(), [w], x, None, updates.momentum, rate)
    >>> learning_rate = rates.LearningRate(rate, step.state)
    >>> loss = step(np.ones(4))
    >>> learning_rate.set(0.4)
    >>> float(rate.get_value()), round(float(step.state[0].get_value()), 9), synk.in_sync([rate, *step.state])
    (0.4, 0.8, in sync)
    """

    def __init__(self, rate: Any, velocities: Sequence[Any] = ()) -> None:
        (self.rate,) = check_params([rate], "rate")
        self.velocities = check_params(list(velocities), "velocities", allow_none=True)
        engine = find_engine([rate])
        type_ = engine.shared_type(rate)
        if type_.ndim:
            raise ArgumentTypeError("rate", "a 0-dimensional variable", type_.words)
        for i, velocity in enumerate(self.velocities):
            dtype = engine.shared_type(velocity).dtype
            if dtype != type_.dtype:
                hint = "use a rate with the dtype of the velocities"
                raise ArgumentTypeError(f"velocities[{i}]", f"{type_.dtype}, like the rate", str(dtype), hint)
        self._engine = engine
        self._correct: Any = None
        if self.velocities:
            self._ratio, self._is_correct = like(rate, "ratio"), True
            self._ratio.set_value(type_.dtype.type(1))
            corrected = [velocity * self._ratio for velocity in self.velocities]
            one = self._ratio * type_.dtype.type(0) + type_.dtype.type(1)  # prevents a second correction on any rank
            self._correct = assignment([*self.velocities, self._ratio], [*corrected, one])

    @property
    def value(self) -> float:
        """The rate on the master."""
        return float(np.asarray(self._engine.to_host(self._engine.get(self.rate))))

    def set(self, value: float) -> None:
        """Set the rate on all ranks, and correct their velocities unless the old rate is 0.

        Raises `ArgumentTypeError` or `ArgumentValueError`, before any change, if the value is not a finite number >= 0.
        """
        value = real("value", value, "finite, and at least 0", lambda number: number >= 0)
        if self._correct is not None and not self._is_correct:  # the last change was interrupted
            self._correct()
        old = self.value
        if self._correct is None or not old or value == old:
            synk.broadcast(self.rate, value)
            return
        self._is_correct = False
        synk.broadcast([self.rate, self._ratio], [value, value / old])
        self._correct()
        self._is_correct = True
