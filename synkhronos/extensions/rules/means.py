"""Means over the ranks in separate variables, computed with or without blocking, in full precision or in 16 bits.

In 16 bits, ranks send differences from the last mean, which is equal on all ranks. The differences are small if the
ranks have stayed close to each other. The rounding error is added to the next exchange (error feedback).
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Sequence

import synkhronos as synk
from synkhronos.errors import ArgumentValueError
from synkhronos.kernels.encoding import FORMATS

from .variables import like


class Means:
    """Means of variables over the ranks, stored in ``values`` and equal on all ranks.

    Variables that are exchanged in 16 bits must be equal on all ranks initially. ``state`` belongs in a checkpoint.
    """

    def __init__(self, variables: Sequence[Any], exchange: Optional[str] = None) -> None:
        if exchange is not None and exchange not in list(FORMATS):  # a list, because `exchange` may be unhashable
            raise ArgumentValueError("exchange", " or ".join(map(repr, FORMATS)), repr(exchange))
        self.variables, self.exchange = list(variables), exchange
        self.values = [like(variable, "mean") for variable in variables]
        self._under_way: Any = None
        self._drops: Any = None
        self.state: List[Any] = []
        if exchange is not None:
            self._differences = [like(variable, "difference", zero=True) for variable in variables]
            errors = [like(variable, "error", zero=True) for variable in variables]
            self.state = [*self.values, *errors]
            # Never called, but creates the error variables on all ranks, for a checkpoint loaded before any exchange.
            self._reads_errors = synk.function([], [(error, None) for error in errors])
            self._coded: Dict[str, Any] = {"exchange": exchange, "feedback": errors}
            pairs = list(zip(self.values, self.variables, self._differences))
            self._subtract = synk.function(
                [], updates=[(difference, value - x) for value, x, difference in pairs], exact=False
            )
            self._add = synk.function(
                [], updates=[(value, value - difference) for value, _, difference in pairs], exact=False
            )

    def take(self, weights: Any = None) -> None:
        """Compute the means of the current values, and wait for them."""
        self.drop()
        if self.exchange is None:
            synk.all_reduce(self.variables, into=self.values, weights=weights)
        else:
            self._subtract()
            synk.all_reduce(self._differences, weights=weights, **self._coded)
            self._add()

    def drop(self) -> None:
        """Drop pending means left over from an interrupted step."""
        if self._under_way is not None:
            self._drops()
            self._under_way = None

    def start(self, weights: Any = None) -> None:
        """Start computing the means of the current values; `arrive` completes the computation."""
        self.arrive()  # completes means that a Ctrl-C has left pending
        if self.exchange is None:
            self._under_way = synk.all_reduce(self.variables, into=self.values, weights=weights, wait=False)
        else:
            self._subtract()
            self._under_way = synk.all_reduce(self._differences, weights=weights, wait=False, **self._coded)
        # Garbage collection of a rule drops its pending mean, so that a new mean can start and `close` need not wait.
        self._drops = weakref.finalize(self, self._under_way.drop)
        self._drops.atexit = False

    def arrive(self) -> bool:
        """Wait until the pending means are in `values`; return whether any were pending."""
        if self._under_way is None:
            return False
        under_way, self._under_way = self._under_way, None
        self._drops.detach()
        under_way.wait()
        if self.exchange is not None:
            self._add()
        return True
