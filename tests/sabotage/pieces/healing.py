"""Ranks that are killed at every step of the protocol, and replaced: the program goes on, and its values are right."""

from __future__ import annotations

import logging
import signal
import time
from collections import Counter
from typing import Any, Iterable, List

from everyday import Wrong

from pieces.kills import Victims
from pieces.report import Row, check_nothing_left, clean, scaled
from synkhronos.program.program import PROGRAM

HEALINGS, LEAST = 1000, 5


def heal(victims: Victims, count: int, least: int, progress: Any, operations_hit: Iterable[str] = ()) -> List[Row]:
    """Kill until so many deaths were repaired, every step was hit at least so often, and each of these operations once."""
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
            continue  # it had ended before the moment came
        if error is not None:
            raise Wrong(f"rank {victims.rank} was killed at {step} in {operation}, and not replaced: {error!r}")
        check_nothing_left()
        if not seen.moments:  # in close(), which needs nothing of the rank any more
            silent += 1
            continue
        done += 1
        operations[seen.commands[0]] += 1
        seconds.append(seen.moments[0] - victims.killed)
        progress("a rank is killed and replaced", done, count)
    least_hit = min(victims.hit, key=lambda name: victims.hit[name])
    spread = ", ".join(f"{name} {count}" for name, count in sorted(operations.items(), key=lambda item: -item[1]))
    words = f"{len(victims.hit)} protocol steps, each hit {victims.hit[least_hit]} times or more (least: {least_hit})"
    return [
        Row(
            "kill -9 of a rank that is replaced, `fork(heal=1)`; times until the command is repeated",
            done,
            clean([words + f"; {silent} more too late to matter to close()", spread]),
            seconds,
        )
    ]


class _Log(logging.Handler):
    """Notes when the log says that a death was repaired, and in which command."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: List[float] = []
        self.commands: List[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "another process has taken its place" in record.msg:
            self.moments.append(time.monotonic())
            self.commands.append(str(record.args[2]))  # type: ignore[index]


def run(scale: float, progress: Any, seed: int = 1) -> List[Row]:
    """Run the piece."""
    rows = heal(Victims(seed, heal=1), scaled(HEALINGS, scale), int(LEAST * scale), progress)
    PROGRAM.shut_down()
    return rows
