"""The slowest of many ranks, whose work varies and who may have to share cores."""

from __future__ import annotations

import functools
import math
from typing import Any, Tuple

import numpy as np
from numpy.typing import NDArray

#: Times that a step of all ranks is drawn, and the numbers drawn in all at most.
DRAWS, MAX_NUMBERS = 400, 4_000_000

#: Seconds after which Linux moves a process that waits for its core to one that is idle: three processes on two cores
#: take twice as long as one for up to 10 ms of work each, and for 30 to 300 ms 1.5 times as long and 5 to 9 ms more.
MOVED_AFTER_S = 6e-3


def slowest(
    spread: Tuple[float, ...], ranks: int, machines: int, cores: float, seconds: float = 0.0, steps: int = 1
) -> float:
    """Return how long all ranks take until the last is done, as a multiple of what one takes alone: the median.

    If each has its own core and all meet after every step, the median of the largest of n is the quantile of one at
    ``0.5 ** (1 / n)``. Else work is drawn (of one seed, so the result is always the same), and the ranks of a machine
    are done after ``min(a, b + MOVED_AFTER_S)``: ``a`` if each stays on its core, ``b`` if they share cores evenly,
    which is ``max(max_r w_r, sum_r w_r / cores)`` (McNaughton, 1959).

    Parameters
    ----------
    spread : tuple of float
        The work of a rank as part of its median: values that are equally frequent.
    ranks, machines : int
    cores : float
        Of a machine.
    seconds : float
        Of work, of one rank in a step.
    steps : int
        That ranks make between two meetings; the result is that of one of them.

    Examples
    --------
    >>> slowest((1.0,), 3, 1, 2.0, seconds=0.001), slowest((1.0,), 3, 1, 2.0, seconds=1.0)
    (2.0, 1.506)
    """
    if steps == 1 and math.ceil(ranks / machines) <= cores:
        values = np.sort(spread)
        return float(values[math.ceil(0.5 ** (1 / ranks) * len(values)) - 1])
    if not seconds:
        return 1.0
    stay, share = drawn(spread, ranks, machines, cores, steps)
    of_machine = np.minimum(stay, share + MOVED_AFTER_S / (seconds * steps))
    return float(np.median(of_machine.max(axis=1)))


@functools.lru_cache(maxsize=256)
def drawn(
    spread: Tuple[float, ...], ranks: int, machines: int, cores: float, steps: int
) -> Tuple[NDArray[Any], NDArray[Any]]:
    """Return drawn times of machines if ranks stay on their cores, and if they share them, ``(draws, machines)``.

    They are kept by the arguments, on which alone they depend, since many predictions need the same.
    """
    of_machine = math.ceil(ranks / machines)
    n_cores = min(of_machine, cores)
    of_core = math.ceil(of_machine / n_cores)
    random = np.random.RandomState(0)
    values = np.array(spread)
    draws = max(20, min(DRAWS, MAX_NUMBERS // (ranks * steps))) if len(values) > 1 else 1
    stay, share = np.empty((draws, machines)), np.empty((draws, machines))
    work = np.zeros(of_core * math.ceil(n_cores) * machines)
    for i in range(draws):
        work[:ranks] = values[random.randint(len(values), size=(ranks, steps))].mean(axis=1)
        by_core = work.reshape(of_core, -1, machines)  # the ranks that are missing are spread over cores and machines
        stay[i] = by_core.sum(axis=0).max(axis=0)
        share[i] = np.maximum(by_core.max(axis=(0, 1)), by_core.sum(axis=(0, 1)) / n_cores)
    return stay, share
