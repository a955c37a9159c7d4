"""`data_parallel` with ``ranks``: start a session or groups, measure the speed of the gradient, and choose a model."""

from __future__ import annotations

import logging
import time
from typing import Any, Callable, Optional, Sequence

import numpy as np
import pymc as pm
from pymc.blocking import DictToArrayBijection

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError

from .operation import DataParallelLogp

logger = logging.getLogger("synkhronos")

ROUNDS, ROUND_S = 5, 0.1  #: Rounds of calls, and seconds of each round; the best round counts.
GAIN = 1.1  #: How many times as fast the gradient must be for the parallel model to be returned.


def faster(model: pm.Model, ranks: int, build: Callable[[], pm.Model], groups: Optional[int] = None) -> pm.Model:
    """Return the model that ``build`` returns if its gradient is more than `GAIN` times as fast; else the given model.

    If this call starts a session or groups, they stay open only if the parallel model is returned.
    """
    for argument, value in (("ranks", ranks), ("groups", 1 if groups is None else groups)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ArgumentTypeError(argument, "an int", f"{value!r} of type {type(value).__name__}")
        if value < 1:
            raise ArgumentValueError(argument, "at least 1", str(value))
    starts = not synk.is_forked()
    if groups is not None and not starts:
        hint = "call synkhronos.close() first"
        raise ArgumentValueError("groups", "None, because a session is open, which has one group", str(groups), hint)
    if not starts and synk.size() != ranks:
        hint = "leave out ranks=, or call synkhronos.close() first"
        raise ArgumentValueError("ranks", f"{synk.size()}, the number of ranks of the session", str(ranks), hint)
    parallel = build()
    if groups is not None:
        start_groups(parallel, int(groups), int(ranks))
    pays = False
    try:
        plain_s = seconds_per_gradient(model)  # before `fork`, which limits the threads of the master
        if starts and groups is None:
            synk.fork(int(ranks))
        parallel_s = seconds_per_gradient(parallel)
        pays = plain_s > GAIN * parallel_s
    finally:
        if starts and not pays:
            synk.close()
    logger.log(
        logging.INFO if pays else logging.WARNING,
        "a gradient of the model takes %.3g ms with n_ranks=%d%s and %.3g ms without ranks: %s",
        1e3 * parallel_s,
        ranks,
        "" if groups is None else f" in each of {groups} groups",
        1e3 * plain_s,
        f"{plain_s / parallel_s:.2g} times as fast" + ("" if pays else f" (< {GAIN}): the plain model is returned"),
    )
    return parallel if pays else model


def start_groups(model: pm.Model, groups: int, ranks: int) -> None:
    """Start groups that compute the likelihoods of a parallel model at once."""
    ops = [potential.owner.op for potential in model.potentials if potential.owner is not None]
    likelihoods = {op.key: op.likelihood for op in ops if isinstance(op, DataParallelLogp)}

    def compute(key: str, params: Sequence[Any]) -> Any:
        try:
            return likelihoods[key].compute(params)
        except np.linalg.LinAlgError as error:  # a divergence
            return error

    started = synk.Groups(compute, groups, ranks)
    for likelihood in likelihoods.values():
        likelihood.groups = started


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
