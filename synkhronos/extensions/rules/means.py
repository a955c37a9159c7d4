"""Means over the ranks, in variables of their own: at once or later, whole or in 16 bits.

In 16 bits it is differences from the last mean that travel, which is the same on all ranks: they are small where ranks
have stayed near each other, and what rounding leaves out of them is sent with the next.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Sequence

import synkhronos as synk
from synkhronos.errors import ArgumentValueError
from synkhronos.reductions.sixteen_bits import FORMATS

from .variables import like


class Means:
    """The means of some variables over the ranks.

    Parameters
    ----------
    variables : list of shared variables
        The same on all ranks at first if they are exchanged in 16 bits.
    exchange : str, optional
        As for `synkhronos.all_reduce`.

    Attributes
    ----------
    values : list of shared variables
        The means, one for each variable, the same on all ranks.
    state : list of shared variables
        What a checkpoint needs.
    """

    def __init__(self, variables: Sequence[Any], exchange: Optional[str] = None) -> None:
        if exchange is not None and exchange not in list(FORMATS):  # (also of what cannot be a key)
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
            # Never called: a function by which ranks know them before the first exchange, when a checkpoint is loaded.
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
        """Take the means of the values that there are."""
        if self._under_way is not None:  # of a program that went on after Ctrl-C
            self._drops()
            self._under_way = None
        if self.exchange is None:
            synk.all_reduce(self.variables, into=self.values, weights=weights)
        else:
            self._subtract()
            synk.all_reduce(self._differences, weights=weights, **self._coded)
            self._add()

    def start(self, weights: Any = None) -> None:
        """Begin to take the means of the values that there are; `arrive` ends it."""
        self.arrive()  # (of a program that went on after Ctrl-C)
        if self.exchange is None:
            self._under_way = synk.all_reduce(self.variables, into=self.values, weights=weights, wait=False)
        else:
            self._subtract()
            self._under_way = synk.all_reduce(self._differences, weights=weights, wait=False, **self._coded)
        # A rule that the program drops takes with it what it has begun: another may begin, and `close` misses nothing.
        self._drops = weakref.finalize(self, self._under_way.drop)
        self._drops.atexit = False

    def arrive(self) -> bool:
        """Have the means in `values`, if they are not there yet; return whether they have come."""
        if self._under_way is None:
            return False
        under_way, self._under_way = self._under_way, None
        self._drops.detach()
        under_way.wait()
        if self.exchange is not None:
            self._add()
        return True
