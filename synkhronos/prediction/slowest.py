"""The slowest of many ranks, whose work varies and who may have to share cores."""

from __future__ import annotations

import functools
import math
from typing import Tuple

import numpy as np

#: Times that a step of all ranks is drawn, and the numbers drawn in all at most.
DRAWS, MAX_NUMBERS = 400, 4_000_000


@functools.lru_cache(maxsize=1024)
def slowest(spread: Tuple[float, ...], ranks: int, machines: int, cores: float, steps: int = 1) -> float:
    """Return how long all ranks take until the last is done, as a multiple of what one takes alone: the median.

    The ranks of a machine are done when the longest work is, but not before the cores have done all of them:
    ``max(max_r w_r, sum_r w_r / cores)``, the shortest time that sharing work-conserving cores can come to (McNaughton,
    1959). If each has its own core and all meet after every step, the median of the largest of n is the quantile of one
    at ``0.5 ** (1 / n)``. Else work is drawn, of one seed; so the result depends on the arguments alone, by which it is
    kept, since many predictions need the same one.

    Parameters
    ----------
    spread : tuple of float
        The work of a rank as part of its median: values that are equally frequent.
    ranks, machines : int
    cores : float
        Of a machine.
    steps : int
        That ranks make between two meetings; the result is that of one of them.

    Examples
    --------
    >>> slowest((1.0,), 8, 1, 4.0)
    2.0
    """
    each = math.ceil(ranks / machines)
    values = np.sort(spread)
    if steps == 1 and each <= cores:
        return float(values[math.ceil(0.5 ** (1 / ranks) * len(values)) - 1])
    random = np.random.RandomState(0)
    draws = max(20, min(DRAWS, MAX_NUMBERS // (ranks * steps))) if len(values) > 1 else 1
    last = []
    for _ in range(draws):
        work = values[random.randint(len(values), size=(each * machines, steps))].mean(axis=1)
        work[ranks:] = 0  # machines that are not full
        of_machine = work.reshape(each, machines)
        last.append(float(np.maximum(of_machine.max(axis=0), of_machine.sum(axis=0) / cores).max()))
    return float(np.median(last))
