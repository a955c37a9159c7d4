"""`data_parallel` with ``ranks``: start a session, measure whether ranks speed up the gradient, and choose a model."""

from __future__ import annotations

import logging
import time
from typing import Callable

import numpy as np
import pymc as pm
from pymc.blocking import DictToArrayBijection

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

logger = logging.getLogger("synkhronos")

ROUNDS, ROUND_S = 5, 0.1  #: Rounds of calls, and seconds of each round; the best round counts.
GAIN = 1.1  #: How many times as fast the gradient must be for the parallel model to be returned.


def faster(model: pm.Model, ranks: int, build: Callable[[], pm.Model]) -> pm.Model:
    """Return the model that ``build`` returns if its gradient is more than `GAIN` times as fast; else the given model.

    If this call starts a session, the session stays open only if the parallel model is returned.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, (int, np.integer)):
        raise ArgumentTypeError("ranks", "an int", f"{ranks!r} of type {type(ranks).__name__}")
    if ranks < 1:
        raise ArgumentValueError("ranks", "at least 1", str(ranks))
    starts = not synk.is_forked()
    if not starts and synk.size() != ranks:
        hint = "leave out ranks=, or call synkhronos.close() first"
        raise ArgumentValueError("ranks", f"{synk.size()}, the number of ranks of the session", str(ranks), hint)
    parallel = build()
    plain_s = seconds_per_gradient(model)  # before `fork`, which limits the threads of the master
    if starts:
        synk.fork(int(ranks))
    pays = False
    try:
        parallel_s = seconds_per_gradient(parallel)
        pays = plain_s > GAIN * parallel_s
    finally:
        if starts and not pays:
            synk.close()
    logger.log(
        logging.INFO if pays else logging.WARNING,
        "a gradient of the model takes %.3g ms with n_ranks=%d and %.3g ms without ranks: %s",
        1e3 * parallel_s,
        ranks,
        1e3 * plain_s,
        f"{plain_s / parallel_s:.2g} times as fast" + ("" if pays else f" (< {GAIN}): the plain model is returned"),
    )
    return parallel if pays else model


def seconds_per_gradient(model: pm.Model) -> float:
    """Return the time to compute the log-probability and its gradient at the initial point, as a sampler would."""
    start = model.initial_point()
    function = model.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values(start)
    point = DictToArrayBijection.map({value.name: start[value.name] for value in model.continuous_value_vars})
    times = []
    for _ in range(ROUNDS + 1):  # the first round compiles
        n_calls, begun = 0, time.perf_counter()
        while not n_calls or time.perf_counter() < begun + ROUND_S:
            function(point)
            n_calls += 1
        times.append((time.perf_counter() - begun) / n_calls)
    return min(times[1:])
