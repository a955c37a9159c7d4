"""Ranks that are killed at every step of the protocol are replaced, and the program's values stay correct."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import Any, Dict, Iterable, List

import numpy as np
from everyday import Wrong

import synkhronos as synk
from pieces.endurance import check_same, measure
from pieces.kills import Victims
from pieces.report import Row, check_nothing_left, clean, scaled
from synkhronos.program.program import PROGRAM
from synkhronos.testing import numpy_engine as engine

HEALINGS, LEAST = 1000, 5

#: Steps in a session, and steps between two kills.
STEPS, EVERY = 1000000, 10000


def heal(victims: Victims, count: int, least: int, progress: Any, operations_hit: Iterable[str] = ()) -> List[Row]:
    """Kill until ``count`` ranks were replaced, each step was hit ``least`` times, and each given operation once."""
    seconds, operations, silent, done = [], Counter(), 0, 0
    while done < count or min(victims.hit.values()) < least or not set(operations_hit) <= set(operations):
        victims.plan(signal.SIGKILL) if done % 4 else victims.plan_moment()
        seen = _Log()
        logging.getLogger("synkhronos").addHandler(seen)
        try:
            operation, step, error, _ = victims.run()
        finally:
            logging.getLogger("synkhronos").removeHandler(seen)
        if step is None:
            continue  # the command had ended before the kill
        if error is not None:
            raise Wrong(f"rank {victims.rank} was killed at {step} in {operation}, and not replaced: {error!r}")
        check_nothing_left()
        if not seen.moments:  # in close(), which no longer needs the rank
            silent += 1
            continue
        done += 1
        operations[seen.commands[0]] += 1
        seconds.append(seen.moments[0] - victims.killed)
        progress("a rank is killed and replaced", done, count)
    least_hit = min(victims.hit, key=lambda name: victims.hit[name])
    spread = ", ".join(f"{name} {count}" for name, count in sorted(operations.items(), key=lambda item: -item[1]))
    words = (
        f"{len(victims.hit)} protocol steps, each hit {victims.hit[least_hit]} times or more (least often: {least_hit})"
    )
    return [
        Row(
            "kill -9 of a rank that is replaced, `fork(heal=1)`; times until the command is repeated",
            done,
            clean([words + f"; {silent} more too late to affect close()", spread]),
            seconds,
        )
    ]


def soak(count: int, progress: Any, seed: int = 1) -> Row:
    """Run very many steps in one session while its ranks are killed repeatedly: memory does not grow."""
    rng, every = random.Random(seed), min(EVERY, count)
    w, x = engine.shared(np.zeros(3), "w"), engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.mean(x), "avg"), updates=[(w, w + 1)], exact=False)
    values = np.random.RandomState(seed).randint(0, 1000, 4096) / 8.0  # so that all means are exact
    synk.fork(3, heal=count)
    data = synk.data(values)
    held: List[Dict[str, int]] = []
    kills = 0
    for done in range(0, count, every):
        batches = np.array([rng.sample(range(len(values)), 4) for _ in range(every)])
        timer = threading.Timer(rng.uniform(0, 0.3), _kill, [1 + kills % 2])
        timer.start()
        means = f.steps(data, batches=batches)
        timer.join()
        kills += 1
        if not np.array_equal(means, values[batches].mean(axis=1)):
            raise Wrong(f"outputs of the steps from {done} on")
        if not np.array_equal(synk.gather(w, nd_up=1), np.full((3, 3), done + float(every))):
            raise Wrong(f"values after {done + every} steps: {synk.gather(w, nd_up=1)}")
        gc.collect()
        held.append(measure(os.getpid()))
        if len(held) > 10:
            check_same(f"the master after {done + every} steps", held[10], held[-1])
        progress("steps in which ranks are replaced", done + every, count)
    healed = len(PROGRAM.current().healing.deaths)
    if healed < kills - 1:
        raise Wrong(f"{healed} of {kills} deaths were repaired")
    synk.close()
    check_nothing_left()
    words = f"{healed} ranks replaced; memory, files and threads of the master unchanged; all values equal to NumPy's"
    return Row(f"steps of one session (3 ranks), a rank is killed every {every:,}", count, clean([words]))


def _kill(rank: int) -> None:
    try:
        os.kill(PROGRAM.current().launcher.pid(rank), signal.SIGKILL)
    except (OSError, synk.SynkhronosError):  # another process is replacing it
        pass


class _Log(logging.Handler):
    """Records the times and commands of log messages about replaced ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: List[float] = []
        self.commands: List[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "the rank was replaced after" in record.msg:
            self.moments.append(time.monotonic())
            self.commands.append(str(record.args[2]))  # type: ignore[index]


def run(scale: float, progress: Any, seed: int = 1) -> List[Row]:
    """Run the piece."""
    rows = heal(Victims(seed, heal=1), scaled(HEALINGS, scale), int(LEAST * scale), progress)
    PROGRAM.shut_down()
    rows.append(soak(scaled(STEPS, scale), progress, seed))
    PROGRAM.shut_down()
    return rows
