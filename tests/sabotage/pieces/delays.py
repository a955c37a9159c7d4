"""Programs with delays at random steps of every process, or all ranks on one core."""

from __future__ import annotations

import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Dict, List

from everyday import Program, Wrong
from kill_steps import Steps

from pieces.report import Row, clean, names_left, scaled

RUNS, LATE, ON_ONE_CORE = 10000, 0.1, 100

#: Simultaneous programs: they sleep most of the time.
AT_A_TIME = 128

_here: Dict[str, Any] = {}


def begin(late: float, cores: Any) -> None:
    """Prepare a process of the pool."""
    if cores:
        os.sched_setaffinity(0, cores)
    _here["steps"] = Steps()
    _here["steps"].late = late
    _here["steps"].install()
    _here["programs"] = {n: Program(n, pin=bool(cores)) for n in (2, 3, 4)}


def play(number: int) -> int:
    """Run a program from fork() to close() and check all values; return the number of its ranks' steps."""
    n = random.Random(number).choice((2, 2, 3, 4))
    _here["steps"].plan()
    operation, error, _ = _here["programs"][n].run()
    if error is not None:
        raise Wrong(f"run {number} of {n} ranks failed in {operation}") from error
    return sum(len(_here["steps"].names(rank)) for rank in range(1, n))


def play_many(what: str, runs: int, at_a_time: int, late: float, cores: Any, progress: Any) -> int:
    """Run programs; return the number of their ranks' steps."""
    steps = 0
    with ProcessPoolExecutor(at_a_time, multiprocessing.get_context("fork"), begin, (late, cores)) as pool:
        try:
            for i, took in enumerate(pool.map(play, range(runs))):
                steps += took
                progress(what, i + 1, runs)
        except BaseException:
            pool.shutdown(wait=False)  # the remaining programs need not be awaited
            raise
    left = names_left()
    if left:
        raise Wrong(f"left behind: {left}")
    return steps


def run(scale: float, progress: Any) -> List[Row]:
    """Run the piece."""
    runs = scaled(RUNS, scale)
    steps = play_many("late by 0-100 ms, one step in five", runs, min(runs, AT_A_TIME), LATE, None, progress)
    rows = [
        Row(
            "programs of all everyday operations, each process late by 0-100 ms at one step in five (2 to 4 ranks)",
            runs,
            clean([f"{(f'{steps:,}')} steps of ranks; {min(runs, AT_A_TIME)} programs at a time"]),
        )
    ]
    core = {min(os.sched_getaffinity(0))}
    runs = scaled(ON_ONE_CORE, scale)
    play_many("all ranks on one core", runs, 1, 0.0, core, progress)
    rows.append(Row("programs with all ranks (2 to 4) on one core", runs, clean()))
    return rows
