"""Time of the slowest of many ranks, if their work varies and they may share cores."""

from __future__ import annotations

import functools
import math
from typing import Any, Tuple

import numpy as np
from numpy.typing import NDArray

#: Maximum number of simulations, and of random numbers in all of them. If work varies, at least 20 simulations run.
DRAWS, MAX_NUMBERS = 400, 4_000_000

#: Seconds until Linux moves a waiting process to an idle core. Three processes on two cores take twice as long as one
#: for up to 10 ms of work each. For 30 to 300 ms, they take 1.5 times as long plus 5 to 9 ms.
MOVED_AFTER_S = 6e-3


def slowest(
    spread: Tuple[float, ...], ranks: int, machines: int, cores: float, seconds: float = 0.0, steps: int = 1
) -> float:
    """Return the median time until the last rank is done, as a multiple of the time of one rank alone.

    `spread` contains equally frequent values of a rank's work divided by its median. `cores` counts the cores of a
    machine, `seconds` is the work of one rank in a step, and `steps` is the number of steps between synchronizations.
    The result is per step.

    If each rank has its own core and all synchronize after every step, the median of the largest of n values is the
    quantile of one value at ``0.5 ** (1 / n)``. Otherwise, work is drawn at random, with a fixed seed; without work,
    the result is 1. The ranks of a machine take ``min(a, b + MOVED_AFTER_S)``. Here, ``a`` is the time if ranks stay
    on their cores, and ``b = max(max_r w_r, sum_r w_r / cores)`` if ranks share cores evenly (McNaughton, 1959).

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
    """Draw times of shape ``(draws, machines)``, for ranks that stay on their cores and for ranks that share cores."""
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
        by_core = work.reshape(of_core, -1, machines)  # spreads ranks evenly over cores and machines
        stay[i] = by_core.sum(axis=0).max(axis=0)
        share[i] = np.maximum(by_core.max(axis=(0, 1)), by_core.sum(axis=(0, 1)) / n_cores)
    return stay, share
